"""Operators on elements of bytes, and a softmax of them: the same bits as ONNX Runtime's."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.compiler.optimising.tables import BYTES, Region, table_of
from models.network.fields import Array
from pipeline.export_c.lowering.elementwise import broadcast, join_dimensions, strides_in
from pipeline.export_c.lowering.movement import concat
from pipeline.export_c.lowering.node import Operation, Shape, items
from pipeline.export_c.lowering.scales import FLIPS, Scaled, scaled
from pipeline.export_c.lowering.steps import Named, Record, Value, Weight
from pipeline.export_c.network.tables import TABLE, as_onnx, opsets

_LATER_SOFTMAX = 13
#: QLinearSoftmax keeps this many powers of e free for the sum.
_RESERVE = 5


def quantize(operation: Operation) -> None:
    """QuantizeLinear with one scale."""
    operation.floats(0)
    made, to = _elements(operation, 1)
    if to.scale.size > 1:
        operation.refuse("a scale for each channel")
    operation.step(
        "quantize",
        operation.operand(0),
        Value(made),
        items(operation.shape(0)),
        to.one,
        to.zero,
        to.flip,
    )


def dequantize(operation: Operation) -> None:
    """DequantizeLinear with one scale."""
    given = scaled(operation, 1)
    if given.scale.size > 1 or operation.array(0).dtype not in FLIPS:
        operation.refuse("a scale for each channel, or no bytes")
    made = operation.make(operation.shape(0))
    operation.step(
        "dequantize",
        *(operation.operand(0), Value(made), items(operation.shape(0))),
        *(given.one, given.zero, given.flip),
    )


def _elements(operation: Operation, position: int) -> tuple[str, Scaled]:
    to = scaled(operation, position)
    return operation.make(operation.shape(0), to.dtype), to


def add(operation: Operation) -> None:
    """QLinearAdd, each operand broadcast to the shape of both."""
    if _repeats_the_first(operation):  # ONNX Runtime takes one number second
        names = operation.node.inputs
        operation = operation.on([*names[3:6], *names[:3], *names[6:]])
    one, other, to = (scaled(operation, position) for position in (1, 4, 6))
    single = np.float32
    factors = single(one.one) / single(to.one), single(other.one) / single(to.one)
    # Zero points as they are written: flipped ones would round otherwise.
    # One of the two products is not rounded, in ONNX Runtime as it is compiled for processors with fma.
    part = float(factors[1] * single(other.plain_zero))
    start = single(to.plain_zero) - single(float(factors[0]) * one.plain_zero + part)
    numbers = {"a": float(factors[0]), "b": float(factors[1]), "start": float(start)}
    flips = {"x_zero": one.flip, "w_zero": other.flip}
    _pair(operation, "add_bytes", (one, other, to), {**numbers, **flips})


def _repeats_the_first(operation: Operation) -> bool:
    """Return whether along the last dimension that there is one number of input 0 meets several of 3."""
    shape = broadcast(operation, 0, 3)
    steps = [strides_in(operation.shape(position), shape) for position in (0, 3)]
    last = [pair for n, *pair in zip(shape, *steps, strict=True) if n > 1][-1:]
    return last == [[0, 1]]


def multiply(operation: Operation) -> None:
    """QLinearMul, each operand broadcast to the shape of both."""
    one, other, to = (scaled(operation, position) for position in (1, 4, 6))
    single = np.float32
    factor = single(one.one) * single(other.one) / single(to.one)
    numbers = {"a": float(factor), "b": 0.0, "start": float(to.plain_zero)}
    zeros = {"x_zero": one.zero, "w_zero": other.zero}
    _pair(operation, "multiply_bytes", (one, other, to), {**numbers, **zeros})


def _pair(
    operation: Operation,
    function: str,
    scales: tuple[Scaled, Scaled, Scaled],
    numbers: dict[str, float],
) -> None:
    """Add the step of an operator of inputs 0 and 3; ``numbers``: what ``function`` calculates with."""
    shape = broadcast(operation, 0, 3)
    strides = [strides_in(operation.shape(position), shape) for position in (0, 3)]
    joined, steps = join_dimensions(shape, strides, operation)
    one, other, to = scales
    fields: dict[str, int | float | Shape] = {
        "size": joined,
        "first": steps[0],
        "second": steps[1],
        **numbers,
        "x_flip": one.flip,
        "w_flip": other.flip,
        "y_flip": to.flip,
    }
    whole = [position for position in (0, 3) if operation.shape(position) == shape]
    made = operation.make(shape, to.dtype)
    operation.step(
        "combine_bytes",
        *(operation.operand(0), operation.operand(3), Value(made)),
        *(Record("byte_pairs", fields), Named(function)),
        in_place=[operation.name(n) for n in whole if not operation.is_constant(n)],
        pointwise=True,
    )


def softmax(operation: Operation) -> None:
    """QLinearSoftmax of unsigned bytes: quotients of powers of e, which are looked up."""
    given, to, shape = scaled(operation, 1), scaled(operation, 3), operation.shape(0)
    if given.flip or to.flip:
        operation.refuse("int8; uint8 can be exported")
    later = int(operation.attribute("opset")) >= _LATER_SOFTMAX
    axis = int(operation.attribute("axis", -1 if later else 1)) % len(shape)
    length = shape[axis] if later else items(shape[axis:])
    inner = items(shape[axis + 1 :]) if later else 1
    # As large as their sum can be in a float: the largest byte of a row is looked up as 255.
    free = max(0.0, float(np.log(np.finfo(np.float32).max / np.float32(length))) - _RESERVE)
    powers = (np.arange(BYTES, dtype=np.float64) - (BYTES - 1)) * given.one + free
    made = operation.make(shape, to.dtype)
    operation.step(
        "softmax_of_bytes",
        *(Value(operation.name(0)), Value(made)),
        *(items(shape) // (length * inner), length, inner),
        *(float(np.floor(np.float32(1) / np.float32(to.one))), to.zero),
        Weight(np.exp(powers).astype(np.float32)),
        in_place=(operation.name(0),),
        pointwise=True,
    )


def joined(operation: Operation) -> None:
    """QLinearConcat: of parts with other scales than the whole each byte is looked up first."""
    names = [_part(operation, position) for position in range(2, len(operation.node.inputs), 3)]
    concat(operation.on(names))


def _part(operation: Operation, position: int) -> str:
    """Return what input ``position`` is in the scale of the whole, which a step looks up if it differs."""
    name, array = operation.name(position), operation.array(position)
    if array.dtype not in FLIPS:
        operation.refuse(f"{array.dtype}; int8 and uint8 can be exported")
    table = _part_table(operation, position)
    if np.array_equal(table, np.arange(BYTES, dtype=np.uint8).view(array.dtype)):
        return name
    made = f"{operation.node.output}/{position}"
    if operation.is_constant(position):
        operation.fold(table[operation.constant(position).view(np.uint8)], made)
        return made
    operation.make_other(made, Array(dtype=table.dtype.name, shape=array.shape))
    _look_up(operation, name, made, array.shape, table)
    return made


def _part_table(operation: Operation, position: int) -> NDArray[Any]:
    """Return what QLinearConcat makes of each byte of its input ``position``: that of this part alone."""
    scales = [0, 1, position + 1, position + 2]
    names = [operation.name(index) for index in (0, 1, position, *scales[2:])]
    alone = replace(operation.node, inputs=tuple(names))
    constants = {operation.name(index): operation.constant(index) for index in scales}
    dtype, output = operation.array(position).dtype, operation.node.output
    region = Region([as_onnx(alone)], operation.name(position), dtype, output)
    return table_of(region, constants, opsets([alone]))


def looked_up(operation: Operation) -> None:
    """A table of bytes."""
    array, table = operation.array(0), operation.constant(1)
    made = operation.make(array.shape, table.dtype.name)
    _look_up(operation, operation.name(0), made, array.shape, table)


def _look_up(operation: Operation, name: str, made: str, shape: Shape, table: NDArray[Any]) -> None:
    operation.step(
        "look_up",
        *(Value(name), Value(made), items(shape), Weight(table.view(np.uint8))),
        output=made,
        in_place=(name,),
        pointwise=True,
    )


OPERATORS: dict[str, Callable[[Operation], None]] = {
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
