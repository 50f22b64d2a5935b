"""Operators on elements of bytes, and a softmax of them: the same bits as ONNX Runtime's."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.compiler.optimising.tables import Region, table_of
from models.network.node import NodeReader, Shape, UnsuitedError, Value, axis_of
from models.network.operators.movement import broadcast_strides, concat
from models.network.operators.quantised import BYTES
from pipeline.export_c.lowering.builder import Builder
from pipeline.export_c.lowering.movement import join_dimensions, move
from pipeline.export_c.lowering.steps import Function, Pointer, Record, Weight
from pipeline.export_c.network.scales import Scaled, of_bytes, scaled
from pipeline.export_c.network.tables import TABLE, as_onnx, opsets

_LATER_SOFTMAX = 13
#: QLinearSoftmax keeps this many powers of e free for the sum.
_RESERVE = 5


def quantize(to: Builder, read: NodeReader) -> None:
    """QuantizeLinear with one scale."""
    x, result = read.floats(0), scaled(read, 1)
    if result.scale.size > 1:
        raise UnsuitedError("a scale for each channel")
    y = result.made(read, x.shape)
    to.step(
        y,
        "quantize",
        *(to.operand(x), to.make(y), math.prod(x.shape)),
        *(result.one, result.zero, result.flip),
        operator=result,
    )


def dequantize(to: Builder, read: NodeReader) -> None:
    """DequantizeLinear with one scale."""
    x, given = of_bytes(read.value(0)), scaled(read, 1)
    if given.scale.size > 1:
        raise UnsuitedError("a scale for each channel")
    y = Value(name=read.output, dtype="float32", shape=x.shape)
    to.step(
        y,
        "dequantize",
        *(to.operand(x), to.make(y), math.prod(x.shape)),
        *(given.one, given.zero, given.flip),
    )


def add(to: Builder, read: NodeReader) -> None:
    """QLinearAdd, each operand broadcast to the shape of both."""
    places = (3, 0) if _repeats_the_first(read) else (0, 3)  # ONNX Runtime takes one number second
    one, other, result = (scaled(read, position) for position in (places[0] + 1, places[1] + 1, 6))
    single = np.float32
    factors = single(one.one) / single(result.one), single(other.one) / single(result.one)
    # Zero points as they are written: flipped ones would round otherwise.
    # One of the two products is not rounded, in ONNX Runtime as it is compiled for processors with fma.
    part = float(factors[1] * single(other.plain_zero))
    start = single(result.plain_zero) - single(float(factors[0]) * one.plain_zero + part)
    numbers = {"a": float(factors[0]), "b": float(factors[1]), "start": float(start)}
    flips = {"x_zero": one.flip, "w_zero": other.flip}
    operands = read.value(places[0]), read.value(places[1])
    _pair(to, read, "add_bytes", operands, (one, other, result), {**numbers, **flips})


def _repeats_the_first(read: NodeReader) -> bool:
    """Return whether along the last dimension that there is one number of input 0 meets several of 3."""
    operands = read.value(0), read.value(3)
    shape = _together(*operands)
    steps = [broadcast_strides(value.shape, shape) for value in operands]
    last = [pair for n, *pair in zip(shape, *steps, strict=True) if n > 1][-1:]
    return last == [[0, 1]]


def _together(one: Value, other: Value) -> Shape:
    """Return the shape of both together."""
    try:
        return np.broadcast_shapes(one.shape, other.shape)
    except ValueError:
        raise UnsuitedError(f"shapes {list(one.shape)} and {list(other.shape)}") from None


def multiply(to: Builder, read: NodeReader) -> None:
    """QLinearMul, each operand broadcast to the shape of both."""
    one, other, result = (scaled(read, position) for position in (1, 4, 6))
    single = np.float32
    factor = single(one.one) * single(other.one) / single(result.one)
    numbers = {"a": float(factor), "b": 0.0, "start": float(result.plain_zero)}
    zeros = {"x_zero": one.zero, "w_zero": other.zero}
    operands = read.value(0), read.value(3)
    _pair(to, read, "multiply_bytes", operands, (one, other, result), {**numbers, **zeros})


def _pair(
    to: Builder,
    read: NodeReader,
    function: str,
    operands: tuple[Value, Value],
    scales: tuple[Scaled, Scaled, Scaled],
    numbers: dict[str, float],
) -> None:
    """Add the step of an operator of two; ``numbers``: what ``function`` calculates with."""
    shape = _together(*operands)
    joined, steps = join_dimensions(
        shape, [broadcast_strides(value.shape, shape) for value in operands]
    )
    one, other, result = scales
    fields: dict[str, int | float | Shape] = {
        "size": joined,
        "first": steps[0],
        "second": steps[1],
        **numbers,
        "x_flip": one.flip,
        "w_flip": other.flip,
        "y_flip": result.flip,
    }
    y = result.made(read, shape)
    whole = dict.fromkeys(value.name for value in operands if value.shape == shape)
    to.step(
        y,
        "combine_bytes",
        *(to.operand(operands[0]), to.operand(operands[1]), to.make(y)),
        *(Record("byte_pairs", fields), Function(function, ())),
        in_place=[name for name in whole if name not in to.constants],
        pointwise=True,
    )


def softmax(to: Builder, read: NodeReader) -> None:
    """QLinearSoftmax of unsigned bytes: quotients of powers of e, which are looked up."""
    x, given, result = read.value(0), scaled(read, 1), scaled(read, 3)
    if given.flip or result.flip:
        raise UnsuitedError("int8; uint8 can be exported")
    later = int(read.attribute("opset")) >= _LATER_SOFTMAX
    axis = axis_of(int(read.attribute("axis", -1 if later else 1)), len(x.shape))
    length = x.shape[axis] if later else math.prod(x.shape[axis:])
    inner = math.prod(x.shape[axis + 1 :]) if later else 1
    # As large as their sum can be in a float: the largest byte of a row is looked up as 255.
    free = max(0.0, float(np.log(np.finfo(np.float32).max / np.float32(length))) - _RESERVE)
    powers = (np.arange(BYTES, dtype=np.float64) - (BYTES - 1)) * given.one + free
    y = result.made(read, x.shape)
    to.step(
        y,
        "softmax_of_bytes",
        *(Pointer(x.name), to.make(y)),
        *(math.prod(x.shape) // (length * inner), length, inner),
        *(float(np.floor(np.float32(1) / np.float32(result.one))), result.zero),
        Weight(np.exp(powers).astype(np.float32)),
        in_place=(x.name,),
        pointwise=True,
    )


def joined(to: Builder, read: NodeReader) -> None:
    """QLinearConcat: of parts with other scales than the whole each byte is looked up first."""
    names = [_part(to, read, position) for position in range(2, len(read.node.inputs), 3)]
    move(to, concat(NodeReader(replace(read.node, inputs=tuple(names)), to.known)))


def _part(to: Builder, read: NodeReader, position: int) -> str:
    """Return what input ``position`` is in the scale of the whole, which a step looks up if it differs."""
    x, table = of_bytes(read.value(position)), _part_table(read, position)
    if np.array_equal(table, np.arange(BYTES, dtype=np.uint8).view(x.dtype)):
        return x.name
    y = Value(name=f"{read.node.output}/{position}", dtype=table.dtype.name, shape=x.shape)
    numbers = to.held(x)
    if numbers is not None:
        to.fold(y, table[numbers.view(np.uint8)])
    else:
        _look_up(to, x, y, table)
    return y.name


def _part_table(read: NodeReader, position: int) -> NDArray[Any]:
    """Return what QLinearConcat makes of each byte of its input ``position``: that of this part alone."""
    scales = [0, 1, position + 1, position + 2]
    names = [read.name(index) for index in (0, 1, position, *scales[2:])]
    alone = replace(read.node, inputs=tuple(names))
    constants = {read.name(index): read.constant(index) for index in scales}
    x, output = read.value(position), read.node.output
    region = Region([as_onnx(alone)], x.name, x.dtype, output)
    return table_of(region, constants, opsets([alone]))


def looked_up(to: Builder, read: NodeReader) -> None:
    """A table of bytes."""
    x, table = read.value(0), read.constant(1)
    _look_up(to, x, Value(name=read.output, dtype=table.dtype.name, shape=x.shape), table)


def _look_up(to: Builder, x: Value, y: Value, table: NDArray[Any]) -> None:
    to.step(
        y,
        "look_up",
        *(Pointer(x.name), to.make(y), math.prod(x.shape), Weight(table.view(np.uint8))),
        in_place=(x.name,),
        pointwise=True,
    )


OPERATORS: dict[str, Callable[[Builder, NodeReader], None]] = {
    "DequantizeLinear": dequantize,
    "QuantizeLinear": quantize,
    TABLE: looked_up,
    "com.microsoft.DequantizeLinear": dequantize,
    "com.microsoft.QLinearAdd": add,
    "com.microsoft.QLinearConcat": joined,
    "com.microsoft.QLinearMul": multiply,
    "com.microsoft.QLinearSoftmax": softmax,
    "com.microsoft.QuantizeLinear": quantize,
}
