"""Attention with a large bias is computed for some images or queries at a time, with the same bits."""

from dataclasses import replace

import numpy as np
import pytest

from models.compiler.optimising.split_attention import SplitAttention
from models.graphs.graph import Graph
from models.network.names import Op
from tests.models.compiler.optimising.test_attention import computed, drawn, graph

#: Queries of 4 rows and 3 columns, keys of 5 rows and 2 columns, 2 heads: the bias has 960 bytes an image.
_HEADS, _BYTES = 2, 2 * 12 * 10 * 4
_ATTENTION = "y = com.microsoft.MultiHeadAttention<num_heads = 2, scale = 0.5>(q, k, v, , , b)"


def relative(images: int, body: str = "", terms: str = "") -> Graph:
    """Return attention over 12 queries whose bias is a sum of terms for rows and columns of keys."""
    of_all = images * _HEADS
    shape = f"int64[4] shape = {{{images}, 2, 12, 10}}"
    body = body or "s = Add(h, w) b = Reshape(s, shape)"
    terms = terms or f"float[{of_all},4,3,5,1] h, float[{of_all},4,3,1,2] w"
    tokens = f"float[{images},12,8] q, float[{images},10,8] k, float[{images},10,4] v"
    result = f"float[{images},12,4] y"
    return graph(f"{body} {_ATTENTION}", f"{tokens}, {terms}", result, constants=f", {shape}")


def attentions(of: Graph) -> list[tuple[int, ...]]:
    """Return the shape of the bias of each attention."""
    return [
        of.values[node.inputs[5]].shape
        for node in of.nodes
        if node.operator == Op.MultiHeadAttention
    ]


@pytest.mark.parametrize(
    ("images", "max_bytes", "expected"),
    [
        (1, _BYTES // 2, [(1, 2, 6, 10)] * 2),
        (1, _BYTES // 3, [(1, 2, 3, 10)] * 4),
        (1, 1, [(1, 2, 3, 10)] * 4),
        (3, _BYTES, [(1, 2, 12, 10)] * 3),
        (3, 1, [(1, 2, 12, 10)] * 3),
    ],
)
def test_parts_have_the_bits_of_one_attention(
    images: int, max_bytes: int, expected: list[tuple[int, ...]]
) -> None:
    original = relative(images)
    split = SplitAttention(original, max_bytes).run()
    assert attentions(split) == expected
    inputs = drawn(original)
    assert np.array_equal(computed(split, inputs), computed(original, inputs))


def test_a_term_that_all_rows_of_queries_share_is_not_divided() -> None:
    original = relative(1, terms="float[2,4,3,5,1] h, float[1,3,1,2] w")
    split = SplitAttention(original, 1).run()
    assert len(attentions(split)) == 4
    assert sum(node.operator == Op.Slice for node in split.nodes) == 2 * 4  # of h and of queries
    inputs = drawn(original)
    assert np.array_equal(computed(split, inputs), computed(original, inputs))


@pytest.mark.parametrize(
    ("body", "terms", "max_bytes"),
    [
        ("", "", _BYTES),
        ("b = Identity(s)", "float[1,2,12,10] s", 1),
        ("s = Mul(h, w) b = Reshape(s, shape)", "", 1),
        ("s = Add(h, w) b = Reshape(s, shape)", "float[24,5,1] h, float[24,1,2] w", 1),
    ],
    ids=["small", "no sum", "a product", "queries and heads on one axis"],
)
def test_others_stay(body: str, terms: str, max_bytes: int) -> None:
    original = relative(1, body, terms)
    assert SplitAttention(original, max_bytes).run() is original


def test_one_that_counts_queries_stays() -> None:
    original = relative(1)
    *others, attention = original.nodes
    causal = attention.with_attributes(**attention.attributes, unidirectional=1)
    changed = replace(original, nodes=(*others, causal))
    assert SplitAttention(changed, 1).run() is changed
