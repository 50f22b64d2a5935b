"""What is fused gives what it gives apart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from pipeline.devices.cuda.call import LaunchProgram
from pipeline.devices.cuda.lowering import geometries, lower
from pipeline.devices.cuda.scope import ConvolutionSettings
from tests.examples import over
from tests.pipeline.devices.cuda.lowering.graphs import Array, graph, node
from tests.pipeline.devices.cuda.lowering.lowered import execute, reference, same
from tests.pipeline.devices.nodes import numbers

pytestmark = pytest.mark.usefixtures("kernels")

INPUTS = [
    numbers(1, 6, 8, 7),
    numbers(5, 6, 3, 3) / 4,
    numbers(5),
    numbers(1, 5, 8, 7, seed=1),
]
CONV = node("Conv", "x0 x1 x2", "t0", pads=[1, 1, 1, 1])
BOUNDS = {"low": np.array(-0.5, np.float32), "high": np.array(1.5, np.float32)}


def activation(x: str, y: str, kind: str) -> list[onnx.NodeProto]:
    """Return the nodes of an activation."""
    p, q = f"{y}p", f"{y}q"
    groups = {
        "mish": [node("Softplus", x, p), node("Tanh", p, q), node("Mul", f"{x} {q}", y)],
        "silu": [node("Sigmoid", x, p), node("Mul", f"{p} {x}", y)],
        "hard swish": [
            node("HardSigmoid", x, p, alpha=1 / 6, beta=0.5),
            node("Mul", f"{x} {p}", y),
        ],
        "Clip": [node("Clip", f"{x} low high", y)],
    }
    return groups.get(kind) or [node(kind, x, y)]


KINDS = [
    *(
        "mish",
        "silu",
        "hard swish",
        "Celu",
        "Clip",
        "Elu",
        "Exp",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
    ),
    *("Mish", "Relu", "Sigmoid", "Softplus", "Tanh"),
]


def apart(piece: bytes) -> bytes:
    """Return a piece of the same nodes whose every value is an output: then nothing is fused."""
    model = onnx.load_model_from_string(piece)
    known = {port.name for port in model.graph.output}
    for item in model.graph.node:
        for name in item.output:
            if name not in known:
                model.graph.output.append(helper.make_empty_tensor_value_info(name))
    return bytes(model.SerializeToString())


def check(
    nodes: Sequence[onnx.NodeProto], calls: int, inputs: Sequence[Array] = INPUTS
) -> LaunchProgram:
    """Assert that a piece is ``calls`` launches and gives what its nodes give one by one."""
    piece = graph(nodes, inputs, BOUNDS)
    settings = ConvolutionSettings(1)
    program = same(piece, inputs, settings)
    assert len(program.calls) == calls
    separate = same(apart(piece), inputs, settings)
    assert len(separate.calls) == len(nodes)
    shape = _shape(inputs)
    (result,) = execute(program, inputs, [shape])
    others = [shape] * len(nodes)
    (expected, *_) = execute(separate, inputs, others)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    return program


def _shape(inputs: Sequence[Array]) -> Array:
    return np.empty_like(inputs[-1])


@over("kind", KINDS)
def test_activation(kind: str) -> None:
    program = check([CONV, *activation("t0", "y0", kind)], 1)
    assert program.inner_bytes == 0


@over("kind", ["Relu", "mish"])
@over("operands", ["t0 x3", "x3 t0"])
def test_sum_then_activation(kind: str, operands: str) -> None:
    check([CONV, node("Add", operands, "t1"), *activation("t1", "y0", kind)], 1)


@pytest.mark.parametrize("kind", ["LeakyRelu", "silu"])
def test_activation_then_sum(kind: str) -> None:
    check([CONV, *activation("t0", "t1", kind), node("Add", "x3 t1", "y0")], 1)


def test_two_convolutions_and_their_sum() -> None:
    other = node("Conv", "x0 x1 x2", "s0", pads=[1, 1, 1, 1])
    nodes = [CONV, other, node("Add", "t0 s0", "t1"), *activation("t1", "y0", "Relu")]
    check(nodes, 2)


def test_what_is_read_twice_is_written() -> None:
    nodes = [CONV, *activation("t0", "t1", "silu"), node("Sub", "t0 t1", "y0")]
    check(nodes, 3)


@pytest.mark.parametrize("multiprocessors", [1, 64])
def test_the_result_may_lie_where_the_residual_lies(multiprocessors: int) -> None:
    inputs = [numbers(1, 300, 3, 3), numbers(5, 300, 3, 3) / 8, numbers(5), numbers(1, 5, 3, 3)]
    nodes = [CONV, node("Add", "t0 x3", "t1"), *activation("t1", "y0", "Relu")]
    piece = graph(nodes, inputs)
    (key,) = geometries(piece, ConvolutionSettings(multiprocessors))
    expected = reference(piece, inputs)
    for algorithm in (
        None,
        *geometries(piece, ConvolutionSettings(multiprocessors, libraries=True))[key],
    ):
        known = {} if algorithm is None else {key: algorithm}
        program = lower(piece, ConvolutionSettings(multiprocessors, algorithms=known))
        (result,) = execute(program, inputs, expected, over=3)
        np.testing.assert_allclose(result, expected[0], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["Relu", "mish"])
def test_gemm(kind: str) -> None:
    inputs: list[Any] = [numbers(3, 9), numbers(7, 9), numbers(7), numbers(3, 7)]
    gemm = node("Gemm", "x0 x1 x2", "t0", transB=1)
    check([gemm, *activation("t0", "y0", kind)], 1, inputs)
    check([gemm, *activation("t0", "t1", kind), node("Add", "t1 x3", "y0")], 2, inputs)


@pytest.mark.parametrize("kind", ["silu", "Clip"])
def test_depthwise(kind: str) -> None:
    inputs = [numbers(1, 5, 8, 7), numbers(5, 1, 3, 3), numbers(5), numbers(1, 5, 8, 7, seed=1)]
    conv = node("Conv", "x0 x1 x2", "t0", pads=[1, 1, 1, 1], group=5)
    check([conv, *activation("t0", "t1", kind), node("Add", "t1 x3", "y0")], 1, inputs)


def test_a_sum_in_ranges() -> None:
    inputs = [numbers(1, 700, 2, 2), numbers(5, 700, 1, 1) / 8, numbers(5), numbers(1, 5, 2, 2)]
    nodes = [
        node("Conv", "x0 x1 x2", "t0"),
        node("Add", "t0 x3", "t1"),
        *activation("t1", "y0", "silu"),
    ]
    piece = graph(nodes, inputs)
    program = same(piece, inputs, ConvolutionSettings(8))
    assert [call.function for call in program.calls][1:] == ["reduce_splits"]
    assert lower(piece, ConvolutionSettings(8)).inner_bytes > 0
