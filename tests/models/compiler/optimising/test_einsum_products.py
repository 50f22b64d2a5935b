"""Einsums that are products of matrices become MatMul; others stay."""

import numpy as np
import pytest

from models.compiler.optimising.einsum_products import EinsumProducts
from models.graphs.graph import Graph
from models.network.names import Op
from tests.models.compiler.optimising.test_attention import computed, drawn, graph

_FACTORS = ", ".join(str(round(0.1 * i - 2, 1)) for i in range(60))


def summed(equation: str, inputs: str, constant: str, output: str) -> Graph:
    """Return an Einsum of ``x`` and a constant of 60 numbers."""
    body = f'y = Einsum<equation = "{equation}">(x, c)'
    return graph(body, inputs, output, constants=f", {constant} c = {{{_FACTORS}}}")


@pytest.mark.parametrize(
    ("equation", "inputs", "constant", "output", "moves"),
    [
        ("bhwc,hkc->bhwk", "float[2,3,6,4] x", "float[3,5,4]", "float[2,3,6,5] y", 0),
        ("bhwc, wkc -> bhwk", "float[2,6,3,4] x", "float[3,5,4]", "float[2,6,3,5] y", 2),
        ("chw,hck->kwh", "float[4,3,6] x", "float[3,4,5]", "float[5,6,3] y", 2),
    ],
)
def test_products_are_matmul(
    equation: str, inputs: str, constant: str, output: str, moves: int
) -> None:
    original = summed(equation, inputs, constant, output)
    rewritten = EinsumProducts(original).run()
    operators = [node.operator for node in rewritten.nodes]
    assert operators.count(Op.MatMul) == 1
    assert operators.count(Op.Transpose) == moves == len(operators) - 1
    arrays = drawn(original)
    expected = computed(original, arrays)
    np.testing.assert_allclose(computed(rewritten, arrays), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("equation", "inputs", "constant", "output"),
    [
        ("bhc,hkc->bk", "float[2,3,4] x", "float[3,5,4]", "float[2,5] y"),
        ("bhc,hkc->bhkc", "float[2,3,4] x", "float[3,5,4]", "float[2,3,5,4] y"),
        ("bhwc,hkc->bhwk", "float[2,3,6,4] x", "float[1,15,4]", "float[2,3,6,15] y"),
        ("hc,hkc->hk", "float[3,4] x", "float[3,5,4]", "float[3,5] y"),
        ("...hwc,hkc->...hwk", "float[2,3,6,4] x", "float[3,5,4]", "float[2,3,6,5] y"),
        ("bc,ck->bk", "float[2,6] x", "float[6,10]", "float[2,10] y"),
    ],
    ids=["two sums", "no sum", "spread", "vectors", "any axes", "a dense layer"],
)
def test_others_stay(equation: str, inputs: str, constant: str, output: str) -> None:
    original = summed(equation, inputs, constant, output)
    assert EinsumProducts(original).run() is original
