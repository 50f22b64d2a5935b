"""Graphs drawn at random: whatever is fused, aliased or shares memory, the results are the same."""

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.devices.cuda.scope import ConvolutionSettings
from tests.examples import examples
from tests.pipeline.devices.cuda.lowering.graphs import graph, node
from tests.pipeline.devices.cuda.lowering.lowered import same
from tests.pipeline.devices.nodes import numbers

pytestmark = pytest.mark.usefixtures("kernels")

X = numbers(1, 4, 6, 5)
INPUTS = [X, numbers(4, 4, 3, 3) / 6, numbers(4), *(numbers(4, seed=i) ** 2 for i in range(1, 5))]
UNARY = ["Relu", "Sigmoid", "Softplus", "Tanh", "Neg", "LeakyRelu", "Identity"]
BINARY = ["Add", "Mul", "Sub"]
OTHERS = ["Conv", "BatchNormalization", "MaxPool", "mish", "silu"]


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[onnx.NodeProto], int]:
    """Draw nodes whose values all have the shape of X, and how many of them are outputs."""
    made: list[onnx.NodeProto] = []
    names = ["x0"]
    for index in range(draw(st.integers(1, 12))):
        # Mostly what came last is read, so that there is something to fuse.
        x = draw(st.sampled_from([names[-1], names[-1], *names]))
        kind = draw(st.sampled_from([*UNARY, *BINARY, *OTHERS, "Conv", "Add"]))
        result = f"t{index}"
        made += _nodes(kind, x, draw(st.sampled_from(names)), result)
        names.append(result)
    outputs = {made[-1].output[0], *draw(st.lists(st.sampled_from(names[1:]), max_size=2))}
    renamed = {name: f"y{index}" for index, name in enumerate(sorted(outputs))}
    for item in made:
        item.input[:] = [renamed.get(name, name) for name in item.input]
        item.output[:] = [renamed.get(name, name) for name in item.output]
    return made, len(outputs)


def _nodes(kind: str, x: str, z: str, y: str) -> list[onnx.NodeProto]:
    p, q = f"{y}p", f"{y}q"
    of_several = {
        "Conv": lambda: [node("Conv", f"{x} x1 x2", y, pads=[1, 1, 1, 1])],
        "BatchNormalization": lambda: [node(kind, f"{x} x3 x4 x5 x6", y)],
        "MaxPool": lambda: [node(kind, x, y, kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        "mish": lambda: [
            node("Softplus", x, p),
            node("Tanh", p, q),
            node("Mul", f"{x} {q}", y),
        ],
        "silu": lambda: [node("Sigmoid", x, p), node("Mul", f"{p} {x}", y)],
    }
    if kind in of_several:
        return of_several[kind]()
    return [node(kind, f"{x} {z}" if kind in BINARY else x, y)]


@given(nodes(), st.sampled_from([1, 64]))
@examples(12, many=1500, database=None)
def test_a_graph_gives_what_onnx_runtime_gives(
    drawn: tuple[list[onnx.NodeProto], int], multiprocessors: int
) -> None:
    made, outputs = drawn
    same(graph(made, INPUTS, outputs=outputs), INPUTS, ConvolutionSettings(multiprocessors))
