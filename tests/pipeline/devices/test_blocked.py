"""Operators on the blocked layout: the reference device beside ONNX Runtime, on random bytes."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.runtime.sessions import open_piece
from tests.examples import over
from tests.oracle.blocked import blocked, plain, plain_weight
from tests.pipeline.devices.nodes import (
    ACTIVATIONS,
    BLOCK,
    NCHWC,
    Array,
    agree,
    drawn,
    needs_blocks,
    numbers,
    piece,
    windows,
)


@needs_blocks
@given(
    windows(),
    st.sampled_from(["image", "depthwise", "whole", "grouped"]),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from(ACTIVATIONS),
    st.tuples(st.booleans(), st.booleans()),
)
@drawn
def test_blocked_conv(
    drawn: tuple[tuple[int, int], dict[str, Any]],
    kind: str,
    depth: int,
    rows: int,
    activation: dict[str, Any],
    optional: tuple[bool, bool],
) -> None:
    """Random bytes are a weight in any layout, and both sides read the same ones."""
    size, attributes = drawn
    kernel = attributes["kernel_shape"]
    group, channels, filters, per_group = {
        "image": (1, depth, rows * BLOCK, depth),
        "depthwise": (rows * BLOCK, rows * BLOCK, rows * BLOCK, 1),
        "whole": (1, depth * BLOCK, rows * BLOCK, depth * BLOCK),
        "grouped": (2, 2 * depth * BLOCK, 2 * rows * BLOCK, depth * BLOCK),
    }[kind]
    attributes = attributes | {"group": group} | activation
    x, weight = numbers(1, channels, *size), numbers(filters, per_group, *kernel)
    weight *= np.float32(1 / np.sqrt(weight[0].size))
    bias = numbers(filters) if optional[0] else None
    graph = piece("Conv", [x, weight, bias], attributes, domain=NCHWC, weights=True)
    inputs: list[Array | None] = [x, weight, bias]
    if optional[1]:
        fed = {f"x{i}": array for i, array in enumerate(inputs) if array is not None}
        inputs.append(numbers(*open_piece(graph).run(None, fed)[0].shape, seed=1))
    agree("Conv", inputs, attributes=attributes, domain=NCHWC, weights=True)


@needs_blocks
@given(windows(), st.sampled_from(["MaxPool", "AveragePool"]), st.booleans())
@drawn
def test_blocked_pool(
    drawn: tuple[tuple[int, int], dict[str, Any]], operator: str, padding: bool
) -> None:
    size, attributes = drawn
    if operator == "AveragePool":
        attributes |= {"count_include_pad": int(padding)}
    agree(operator, [numbers(2, 2 * BLOCK, *size)], attributes=attributes, domain=NCHWC)


@needs_blocks
@over(
    "operator, shape, attributes",
    [
        ("GlobalMaxPool", (2, 2 * BLOCK, 3, 5), {}),
        ("GlobalAveragePool", (2, 2 * BLOCK, 3, 5), {}),
        ("ReorderInput", (2, BLOCK + 4, 3, 5), {}),
        ("ReorderInput", (2, 3, 5, BLOCK + 4), {"channels_last": 1}),
        ("ReorderOutput", (2, 2 * BLOCK, 3, 5), {"channels": BLOCK + 3}),
        ("ReorderOutput", (2, 2 * BLOCK, 3, 5), {"channels": BLOCK + 4, "channels_last": 1}),
        ("Upsample", (1, 2 * BLOCK, 3, 5), {"scales": [1, 1, 2, 3]}),
    ],
)
def test_blocked_operator(
    operator: str, shape: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    agree(operator, [numbers(*shape)], attributes=attributes, domain=NCHWC)


def test_blocked_layout_is_the_documented_one() -> None:
    """Block 4, element by element, on a machine with any block or none."""
    x = np.arange(2 * 8 * 3, dtype=np.float32).reshape(2, 8, 1, 3)
    bytes_of = blocked(x, 4).reshape(2, 2, 1, 3, 4)
    for n, c, w in np.ndindex(2, 8, 3):
        assert bytes_of[n, c // 4, 0, w, c % 4] == x[n, c, 0, w]
    np.testing.assert_array_equal(plain(blocked(x, 4), 4), x)
    stored = np.arange(8 * 8 * 2, dtype=np.float32).reshape(8, 8, 1, 2)
    weight = plain_weight(stored, 4)
    for o, i, k in np.ndindex(8, 8, 2):
        assert (
            stored.reshape(2, 2, 1, 2, 4, 4)[o // 4, i // 4, 0, k, i % 4, o % 4]
            == (weight[o, i, 0, k])
        )
