"""Quantised pieces that a file may have and no compiler writes: ONNX Runtime checks them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from models.packs.records.pieces import Operand, Piece
from pipeline.devices.integers.nodes import MisfitError
from pipeline.devices.integers.recognising import recognised
from tests.pipeline.devices.integers.quantised import Network

Crafted = tuple[onnx.ModelProto, Piece]


def _crafted(network: Network) -> Crafted:
    return onnx.load_from_string(network.serialised()), network.piece()


def _layer() -> Crafted:
    return _crafted(Network(0, (1, 6, 7, 16)).conv(16, kernel=3, pad=1, group=16))


def _product() -> Crafted:
    return _crafted(Network(0, (6, 16)).product(6))


def _set(model: onnx.ModelProto, **attributes: list[int]) -> None:
    for item in model.graph.node[-1].attribute:
        if item.name in attributes:
            item.ints[:] = attributes[item.name]


def _padding_below_zero_in_32_bits() -> Crafted:
    model, piece = _layer()
    pads = [(1 << 32) - 5] * 2 + [1, 0]
    _set(model, pads=pads, strides=[1 << 32] * 2)
    made = replace(piece.outputs[0], shape=(1, 1, 1, 16))
    return model, replace(piece, outputs=(made,))


def _result_as_large_as_a_constant_of_its_name() -> Crafted:
    model, piece = _layer()
    constant = np.zeros((1, 6, 7, 16), np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(constant, model.graph.output[0].name))
    return model, replace(piece, outputs=(replace(piece.outputs[0], shape=(1,)),))


def _weights_as_large_as_their_default() -> Crafted:
    model, piece = _layer()
    weights = model.graph.node[-1].input[3]
    model.graph.input.append(onnx.ValueInfoProto(name=weights))
    given = Operand(dtype="int8", shape=(1,), kind="value", index=1)
    return model, replace(piece, inputs=(*piece.inputs, given))


def _more_inputs_than_operands() -> Crafted:
    model, piece = _layer()
    model.graph.input.append(onnx.ValueInfoProto(name="more"))
    return model, piece


def _image_of_other_channels() -> Crafted:
    model, piece = _layer()
    return model, replace(piece, inputs=(replace(piece.inputs[0], shape=(1, 6, 7, 15)),))


def _fewer_biases() -> Crafted:
    return _with_constant(_layer(), 8, np.zeros(15, np.int32))


def _fewer_scales() -> Crafted:
    return _with_constant(_layer(), 4, np.ones(15, np.float32))


def _with_constant(layer: Crafted, at: int, array: NDArray[Any]) -> Crafted:
    """Return ``layer`` with ``array`` as its input ``at``, a constant."""
    model, piece = layer
    name = model.graph.node[-1].input[at]
    (held,) = [each for each in model.graph.initializer if each.name == name]
    held.CopyFrom(numpy_helper.from_array(array, name))
    return model, piece


@pytest.mark.parametrize("crafted", [_layer, _product])
def test_what_a_compiler_writes_is_computed_here(crafted: Callable[[], Crafted]) -> None:
    model, piece = crafted()
    assert recognised(model.SerializeToString(), piece) is not None


@pytest.mark.parametrize("shape", [(), (1,), (1, 6), (6, 1), (6, 6)])
def test_biases_that_are_broadcast_are_not(shape: tuple[int, ...]) -> None:
    model, piece = _with_constant(_product(), 6, np.zeros(shape, np.int32))
    assert recognised(model.SerializeToString(), piece) is None


@pytest.mark.parametrize(
    "crafted", [_padding_below_zero_in_32_bits, _weights_as_large_as_their_default]
)
def test_what_would_lie_outside_of_its_memory_is_not(crafted: Callable[[], Crafted]) -> None:
    model, piece = crafted()
    assert recognised(model.SerializeToString(), piece) is None


@pytest.mark.parametrize(
    ("crafted", "what"),
    [
        (_result_as_large_as_a_constant_of_its_name, "the results of its QLinearConv"),
        (_more_inputs_than_operands, "1 inputs, of which its graph has 2"),
        (_image_of_other_channels, "the weights of its QLinearConv"),
        (_fewer_biases, "the biases of its QLinearConv"),
        (_fewer_scales, "the weights' scales and zero points of its QLinearConv"),
    ],
)
def test_tensors_that_nothing_could_compute_with_are_named(
    crafted: Callable[[], Crafted], what: str
) -> None:
    model, piece = crafted()
    with pytest.raises(MisfitError, match=what):
        recognised(model.SerializeToString(), piece)
