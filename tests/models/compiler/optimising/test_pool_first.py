"""Maxima of bytes come before what keeps their order, right behind what they read; bits stay the same."""

import numpy as np
import pytest
from numpy.typing import NDArray

from models.compiler.optimising.normalise import PoolFirst
from models.graphs.graph import Graph
from models.graphs.text import from_text
from models.graphs.writer import model_of
from models.runtime.sessions import open_piece, run_session
from tests.examples import over

POOL = "com.microsoft.NhwcMaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>"
LEAKY = "com.microsoft.QLinearLeakyRelu<alpha=0.1>"


def net(body: str) -> Graph:
    scales = (f"float s{n} = {{{0.02 + 0.013 * n:.3f}}}" for n in range(4))
    zeros = (f"uint8 z{n} = {{{100 + 17 * n}}}" for n in range(4))
    return from_text(
        f"""<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        p (uint8[1,9,8,5] x) => (uint8[1,5,4,n] y) <{", ".join((*scales, *zeros))}> {{ {body} }}"""
    )


def answer(graph: Graph, x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return run_session(open_piece(model_of(graph).SerializeToString()), {"x": x})["y"]


BRANCHES = f"""
    a = {LEAKY}(x, s0, z0, s1, z1)
    b = com.microsoft.QLinearAdd(x, s0, z0, x, s0, z0, s2, z2)
    c = com.microsoft.QLinearConcat<axis=3>(s3, z3, a, s1, z1, b, s2, z2)
"""


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (f"a = {LEAKY}(x, s0, z0, s1, z1) y = {POOL}(a)", "NhwcMaxPool QLinearLeakyRelu"),
        (
            f"{BRANCHES} y = {POOL}(c)",
            "QLinearAdd NhwcMaxPool NhwcMaxPool QLinearLeakyRelu QLinearConcat",
        ),
        (
            f"a = com.microsoft.QLinearSigmoid(x, s0, z0, s1, z1) y = {POOL}(a)",
            "NhwcMaxPool QLinearSigmoid",
        ),
    ],
)
def test_bits_stay(body: str, kinds: str) -> None:
    graph = net(body)
    x = np.random.default_rng(0).integers(0, 256, (1, 9, 8, 5)).astype(np.uint8)
    pooled = PoolFirst(graph).run()
    assert " ".join(node.operator.rpartition(".")[2] for node in pooled.nodes) == kinds
    np.testing.assert_array_equal(answer(pooled, x), answer(graph, x))


@over(
    "body",
    [
        # Another reads it, too.
        f"a = {LEAKY}(x, s0, z0, s1, z1) b = {POOL}(a) "
        f"c = {POOL}(a) y = com.microsoft.QLinearAdd(b, s1, z1, c, s1, z1, s2, z2)",
        # It turns the order round.
        f"a = com.microsoft.QLinearLeakyRelu<alpha=-0.5>(x, s0, z0, s1, z1) y = {POOL}(a)",
        # Windows of it lie in several parts.
        f"c = com.microsoft.QLinearConcat<axis=1>(s3, z3, x, s0, z0, x, s0, z0) y = {POOL}(c)",
    ],
)
def test_others_stay(body: str) -> None:
    graph = net(body)
    assert PoolFirst(graph).run().nodes == graph.nodes
