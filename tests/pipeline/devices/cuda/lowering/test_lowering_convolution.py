"""Convolutions and products of matrices: lowered, beside ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.devices.cuda.lowering import NotCoveredError, geometries, lower
from pipeline.devices.cuda.operators.convolutions.algorithms import geometry_key
from pipeline.devices.cuda.scope import ConvolutionSettings
from tests.examples import over
from tests.pipeline.devices.cuda.lowering.graphs import graph, node
from tests.pipeline.devices.cuda.lowering.lowered import agree, execute, reference, same
from tests.pipeline.devices.cuda.operators.convolving import make_shape
from tests.pipeline.devices.nodes import ACTIVATIONS, MICROSOFT, drawn, numbers, windows

pytestmark = pytest.mark.usefixtures("kernels")

X = numbers(2, 6, 9, 7)
DEEP = [numbers(1, 96, 6, 6), numbers(8, 96, 3, 3)]


@given(windows(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.booleans())
@drawn
def test_conv(
    drawn: tuple[tuple[int, int], dict[str, Any]], group: int, depth: int, rows: int, bias: bool
) -> None:
    size, attributes = drawn
    weight = numbers(group * rows, depth, *attributes["kernel_shape"])
    inputs = [numbers(2, group * depth, *size), weight, numbers(group * rows) if bias else None]
    agree("Conv", inputs, attributes | {"group": group}, weights=True)


def test_depthwise() -> None:
    program = agree("Conv", [X, numbers(6, 1, 3, 3)], {"group": 6, "pads": [1] * 4}, weights=True)
    assert [call.module for call in program.calls] == ["depthwise"]


def test_one_spatial_axis() -> None:
    inputs = [numbers(2, 3, 11), numbers(4, 3, 3), numbers(4)]
    attributes = {"pads": [2, 1], "strides": [2], "dilations": [2]}
    agree("Conv", inputs, attributes, weights=True)
    with pytest.raises(NotCoveredError, match="Conv: 3 spatial axes"):
        agree("Conv", [numbers(1, 2, 4, 5, 6), numbers(3, 2, 2, 1, 3)])


@over("attributes", ACTIVATIONS)
@over("with_sum", [False, True])
def test_fused_conv(attributes: dict[str, Any], with_sum: bool) -> None:
    inputs = [X, numbers(4, 6, 3, 3), numbers(4), *([numbers(2, 4, 7, 5)] if with_sum else [])]
    agree("FusedConv", inputs, attributes, domain=MICROSOFT, weights=True)


def test_an_activation_that_kernels_do_not_have() -> None:
    piece = graph(
        [node("FusedConv", "x0 x1", "y0", domain=MICROSOFT, activation="Affine")],
        [X, numbers(4, 6, 3, 3)],
    )
    with pytest.raises(NotCoveredError, match="FusedConv: activation Affine"):
        lower(piece, ConvolutionSettings())


@over(
    "inputs, attributes, reason",
    [
        ([X, numbers(4, 3, 3, 3)], {"group": 3}, "weights .* in 3 groups"),
        ([X, numbers(4, 2, 3, 3)], {"group": 3}, "weights .* in 3 groups"),
        ([X, numbers(0, 6, 3, 3)], {}, "a tensor is empty"),
        ([X, numbers(4, 6, 30, 3)], {}, "a kernel of .* does not fit"),
    ],
)
def test_sizes_that_do_not_fit(inputs: list[Any], attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotCoveredError, match=f"^Conv: {reason}"):
        lower(graph([node("Conv", "x0 x1", "y0", **attributes)], inputs), ConvolutionSettings())


def _key(piece: bytes) -> str:
    (key,) = geometries(piece, ConvolutionSettings(4))
    return key


def test_the_measured_algorithm_is_taken() -> None:
    piece = graph([node("Conv", "x0 x1", "y0", pads=[1] * 4)], DEEP)
    found = geometries(piece, ConvolutionSettings(4))
    assert {"direct", "split:2", "winograd"} < set(found[_key(piece)])
    for algorithm in found[_key(piece)]:
        settings = ConvolutionSettings(4, algorithms={_key(piece): algorithm})
        program = same(piece, DEEP, settings)
        assert (len(program.calls) == 1) == (program.inner_bytes == 0) == (algorithm == "direct")
        assert (program.calls[0].module == "winograd") == (algorithm == "winograd")


def test_an_algorithm_that_cannot_compute_a_layer_is_not_taken() -> None:
    piece = graph([node("Conv", "x0 x1", "y0", pads=[1] * 4, strides=[2, 2])], DEEP)
    default = lower(piece, ConvolutionSettings(4))
    for algorithm in ("winograd", "half", "depthwise"):
        assert lower(piece, ConvolutionSettings(4, algorithms={_key(piece): algorithm})) == default


def test_half_precision() -> None:
    piece = graph([node("Conv", "x0 x1", "y0", pads=[1] * 4)], DEEP)
    assert "half" not in geometries(piece, ConvolutionSettings(4))[_key(piece)]
    assert "half" in geometries(piece, ConvolutionSettings(4, "fp16"))[_key(piece)]
    (expected,) = reference(piece, DEEP)
    program = lower(piece, ConvolutionSettings(4, "fp16"))
    assert [call.module for call in program.calls] == ["half"]
    (result,) = execute(program, DEEP, [expected])
    error = np.abs(result - expected).max() / np.abs(expected).max()
    assert 1e-6 < error < 2e-3


def test_libraries_are_measured_where_they_may_be() -> None:
    piece = graph([node("Conv", "x0 x1", "y0")], [X, numbers(4, 6, 1, 1)])
    key = _key(piece)
    assert "cublas" not in geometries(piece, ConvolutionSettings(4))[key]
    assert "cublas" in geometries(piece, ConvolutionSettings(4, libraries=True))[key]


@given(st.integers(1, 64), st.integers(1, 64))
@drawn
def test_chunks_of_filters_have_one_key(one: int, other: int) -> None:
    keys = {
        geometry_key(make_shape(3, (8, 8), filters, (3, 3), pads=(1, 1)))
        for filters in (one, other)
    }
    assert len(keys) == 1
    assert geometry_key(make_shape(3, (8, 8), one, (3, 3), pads=(1, 0))) not in keys


def _bias(kind: str, rows: int, columns: int) -> np.ndarray[Any, Any] | None:
    shapes = {"row": (columns,), "column": (rows, 1), "full": (rows, columns), "one": (1,)}
    return numbers(*shapes[kind]) if kind in shapes else None


@over("bias", ["none", "row", "column", "full", "one"])
@over("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(bias: str, turned: tuple[int, int]) -> None:
    a, b = numbers(3, 5), numbers(5, 4)
    inputs = [a.T.copy() if turned[0] else a, b.T.copy() if turned[1] else b, _bias(bias, 3, 4)]
    attributes = {"transA": turned[0], "transB": turned[1], "alpha": 0.5, "beta": 2.0}
    program = agree("Gemm", inputs, attributes, weights=True)
    by_rows = turned == (0, 1) and bias in {"none", "row"}
    assert program.calls[0].function.startswith("fully" if by_rows else "multiply")


@over(
    "attributes",
    [
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "alpha": 0.5, "beta": 2.0},
        {"activation": "Sigmoid", "transB": 1},
    ],
)
def test_fused_gemm(attributes: dict[str, Any]) -> None:
    shape = (4, 5) if "transB" in attributes else (5, 4)
    inputs = [numbers(3, 5), numbers(*shape), numbers(4)]
    agree("FusedGemm", inputs, attributes, domain=MICROSOFT)


@over(
    "left, right",
    [
        ((3, 5), (5, 4)),
        ((2, 3, 5), (5, 4)),
        ((5,), (5, 4)),
        ((3, 5), (5,)),
        ((5,), (5,)),
        ((2, 6, 3, 5), (2, 6, 5, 4)),
        ((2, 3, 5), (1, 2, 5, 4)),
        ((3, 5), (6, 5, 4)),
        ((5,), (2, 5, 4)),
        ((2, 3, 5), (5,)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    agree("MatMul", [numbers(*left), numbers(*right)], weights=True)


@over("turned", [(0, 1), (1, 0), (1, 1)])
def test_fused_matmul(turned: tuple[int, int]) -> None:
    a, b = numbers(2, 3, 5), numbers(5, 4)
    inputs = [a.swapaxes(1, 2).copy() if turned[0] else a, b.T.copy() if turned[1] else b]
    attributes = {"transA": turned[0], "transB": turned[1], "alpha": 0.5}
    agree("FusedMatMul", inputs, attributes, domain=MICROSOFT)


def test_matmul_of_batches_that_broadcast() -> None:
    with pytest.raises(NotCoveredError, match="MatMul: batches"):
        agree("MatMul", [numbers(2, 1, 3, 5), numbers(1, 6, 5, 4)], weights=True)
