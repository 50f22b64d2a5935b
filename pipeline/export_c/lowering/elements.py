"""Operators on elements, norms and softmax, of floats and of bytes, and bytes made of bytes."""

import math
from dataclasses import replace

import numpy as np

from models.compiler.optimising.byte_tables import ByteRegion, table_of
from models.network.activations import Activation
from models.network.names import MICROSOFT, Op
from models.network.node import NamedTensor, Node, Shape, UnsuitedError
from models.network.operators.movement import broadcast_strides
from models.network.operators.quantised import BYTES
from models.network.operators.reading import (
    BatchNorm,
    Combine,
    Conversion,
    GroupNorm,
    LookUp,
    Map,
    Movement,
    OnBytes,
    Reduction,
    Reshape,
    Softmax,
)
from pipeline.export_c.lowering.builder import StepBuilder
from pipeline.export_c.lowering.calls import After, Function, StructConstant, ValuePointer, Weight
from pipeline.export_c.lowering.functions import FUNCTIONS, PAIRS
from pipeline.export_c.lowering.movement import join_dimensions, move, reshape, with_order
from pipeline.export_c.network.network import FLIPS

_LARGEST = float(np.finfo(np.float32).max)


def function_of(activation: Activation | None) -> Function:
    """Return what C calls ``activation``, and the numbers that it takes; None: no function."""
    if activation is None:
        return Function()
    name = FUNCTIONS.get(activation.kind)
    if name is None:
        raise UnsuitedError(f"{activation.kind} has no function in C")
    numbers = activation.alpha, activation.beta
    if activation.kind == "clip":
        numbers = max(numbers[0], -_LARGEST), min(numbers[1], _LARGEST)
    return Function(name, numbers)


def apply(to: StepBuilder, operator: Map) -> None:
    """Add a function of each element."""
    x, y = operator.x, operator.y
    to.step(
        y,
        "apply",
        *(to.operand(x), to.make(y), math.prod(x.shape)),
        in_place=(x.name,),
        pointwise=True,
        after=After(function=function_of(operator.function)),
    )


def combine(to: StepBuilder, operator: Combine) -> None:
    """Add an operator of one operand, of two, or of several, pair by pair."""
    first, *others = operator.operands
    if operator.kind not in PAIRS:
        raise UnsuitedError(f"{operator.kind} has no function in C, but for squares")
    if not others:
        reshape(to, Reshape(x=first, y=operator.y))
        return
    for number, other in enumerate(others, 1):
        if number == len(others):
            _pair(to, operator, first, other, operator.y)
        else:
            shape = np.broadcast_shapes(first.shape, other.shape)
            partial = operator.y.shaped(shape, f"{operator.y.name}/{number}")
            _pair(to, replace(operator, activation=None), first, other, partial)
            first = partial


def _pair(
    to: StepBuilder, operator: Combine, one: NamedTensor, other: NamedTensor, y: NamedTensor
) -> None:
    """Add the step of two operands, each broadcast to the shape of ``y``."""
    strides = [broadcast_strides(value.shape, y.shape) for value in (one, other)]
    joined, (first, second) = join_dimensions(y.shape, strides)
    whole = [value.name for value in (one, other) if value.shape == y.shape]
    to.step(
        y,
        "combine",
        *(to.operand(one), to.operand(other), to.make(y)),
        StructConstant("pairs", {"size": joined, "first": first, "second": second}),
        Function(PAIRS[operator.kind], ()),
        in_place=[name for name in dict.fromkeys(whole) if name not in to.constants],
        pointwise=True,
        after=After(function=function_of(operator.activation)),
    )


# Softmax, means, and batch normalisations that nothing was folded into.

_REDUCED = {"largest": "largest_of_planes", "mean": "average_of_planes"}


def softmax(to: StepBuilder, operator: Softmax) -> None:
    """Add a softmax along numbers that lie ``inner`` apart."""
    if operator.logarithm:
        raise UnsuitedError("the logarithm has no function in C")
    x, y = operator.x, operator.y
    to.step(
        y,
        "softmax",
        *(ValuePointer(x.name), to.make(y), operator.outer, operator.length, operator.inner),
        in_place=(x.name,),
        pointwise=True,
    )


def group_norm(to: StepBuilder, operator: GroupNorm) -> None:
    """Add a LayerNormalization: each number of a group has a factor of its own."""
    if operator.scale is None or (operator.channels, operator.inner) != (operator.length, 1):
        raise UnsuitedError("groups of channels; layers can be exported")
    x, y = operator.x, operator.y
    to.step(
        y,
        "normalise_rows",
        *(ValuePointer(x.name), to.weight(operator.scale), to.weight(operator.bias), to.make(y)),
        *(math.prod(x.shape) // operator.length, operator.length, operator.epsilon),
        in_place=(x.name,),
        pointwise=True,
        after=After(),
    )


def reduction(to: StepBuilder, operator: Reduction) -> None:
    """Add a mean or a maximum of dimensions; a copy puts them last if others lie behind them."""
    kernel = _REDUCED.get(operator.kind)
    if kernel is None:
        raise UnsuitedError(f"{operator.kind}; means and the largest can be exported")
    x, y, gone = operator.x, operator.y, operator.axes
    kept = [axis for axis in range(len(x.shape)) if axis not in gone]
    source = with_order(to, x, (*kept, *gone), f"{y.name}/turned")
    size = math.prod(y.shape), math.prod(x.shape[axis] for axis in gone)
    to.step(y, kernel, ValuePointer(source.name), to.make(y), *size, after=After())


def batch_norm(to: StepBuilder, operator: BatchNorm) -> None:
    """Add a factor and a term for each channel.

    Each operation rounds to float, as ONNX Runtime does: in a quantised network its results become bytes.
    """
    x, y = operator.x, operator.y
    scale, bias, average, variance = (
        to.constant(value).astype(np.float32)
        for value in (operator.scale, operator.bias, operator.mean, operator.variance)
    )
    factor = np.float32(1) / np.sqrt(variance + np.float32(operator.epsilon)) * scale
    term = bias - average * factor
    fields = {"batch": x.shape[0], "channels": x.shape[1], "plane": math.prod(x.shape[2:])}
    to.step(
        y,
        "scale_channels",
        *(ValuePointer(x.name), Weight(factor)),
        *(Weight(term), to.make(y), StructConstant("planes", fields)),
        in_place=(x.name,),
        pointwise=True,
        after=After(function=function_of(operator.activation)),
    )


# Operators on elements of bytes, and a softmax of them: the same bits as ONNX Runtime's.

#: QLinearSoftmax keeps this many powers of e free for the sum.
_RESERVE = 5


def convert(to: StepBuilder, operator: Conversion) -> None:
    """Add the step from floats to bytes, or from bytes to floats."""
    x, y, how = operator.x, operator.y, to.scaled(operator.scaling)
    quantises = y.dtype in FLIPS
    to.step(
        y,
        "quantize" if quantises else "dequantize",
        *(to.operand(x), to.make(y), math.prod(x.shape)),
        *(how.one, how.zero, how.flip),
        operator=how if quantises else None,
    )


def combine_bytes(to: StepBuilder, of: OnBytes[Combine]) -> None:
    """Add a sum or a product of two, each broadcast to the shape of both."""
    operator, operands = of.operator, of.operator.operands
    one, other, result = map(to.scaled, of.scales)
    single = np.float32
    if operator.kind == "add":
        if _repeats_the_first(of.y.shape, operands):  # ONNX Runtime takes one number second
            operands, one, other = operands[::-1], other, one
        factors = single(one.one) / single(result.one), single(other.one) / single(result.one)
        # Zero points as they are written: flipped ones would round otherwise.
        # One of the two products is not rounded, in ONNX Runtime as it is compiled for processors with fma.
        part = float(factors[1] * single(other.plain_zero))
        start = single(result.plain_zero) - single(float(factors[0]) * one.plain_zero + part)
        numbers = {"a": float(factors[0]), "b": float(factors[1]), "start": float(start)}
        zeros = {"x_zero": one.flip, "w_zero": other.flip}
    else:
        factor = single(one.one) * single(other.one) / single(result.one)
        numbers = {"a": float(factor), "b": 0.0, "start": float(result.plain_zero)}
        zeros = {"x_zero": one.zero, "w_zero": other.zero}
    y, shape = of.y, of.y.shape
    joined, steps = join_dimensions(
        shape, [broadcast_strides(value.shape, shape) for value in operands]
    )
    fields: dict[str, int | float | Shape] = {
        "size": joined,
        "first": steps[0],
        "second": steps[1],
        **numbers,
        **zeros,
        "x_flip": one.flip,
        "w_flip": other.flip,
        "y_flip": result.flip,
    }
    whole = dict.fromkeys(value.name for value in operands if value.shape == shape)
    to.step(
        y,
        "combine_bytes",
        *(to.operand(operands[0]), to.operand(operands[1]), to.make(y)),
        *(StructConstant("byte_pairs", fields), Function(f"{operator.kind}_bytes", ())),
        in_place=[name for name in whole if name not in to.constants],
        pointwise=True,
    )


def _repeats_the_first(shape: Shape, operands: tuple[NamedTensor, ...]) -> bool:
    """Return whether along the last dimension that there is one number of the first meets several."""
    steps = [broadcast_strides(value.shape, shape) for value in operands]
    last = [pair for n, *pair in zip(shape, *steps, strict=True) if n > 1][-1:]
    return last == [[0, 1]]


def softmax_of_bytes(to: StepBuilder, of: OnBytes[Softmax]) -> None:
    """Add a softmax of unsigned bytes: quotients of powers of e, which are looked up."""
    x, y, length, inner = of.operator.x, of.y, of.operator.length, of.operator.inner
    given, result = map(to.scaled, of.scales)
    if given.flip or result.flip:
        raise UnsuitedError("int8; uint8 can be exported")
    # As large as their sum can be in a float: the largest byte of a row is looked up as 255.
    free = max(0.0, float(np.log(np.finfo(np.float32).max / np.float32(length))) - _RESERVE)
    powers = (np.arange(BYTES, dtype=np.float64) - (BYTES - 1)) * given.one + free
    to.step(
        y,
        "softmax_of_bytes",
        *(ValuePointer(x.name), to.make(y)),
        *(math.prod(x.shape) // (length * inner), length, inner),
        *(float(np.floor(np.float32(1) / np.float32(result.one))), result.zero),
        Weight(np.exp(powers).astype(np.float32)),
        in_place=(x.name,),
        pointwise=True,
    )


def join_bytes(to: StepBuilder, of: OnBytes[Movement]) -> None:
    """Add copies of parts one behind the other, each looked up first if its scale is another."""
    copies = tuple(
        replace(copy, x=_part(to, of, copy.x, number), y=of.y)
        for number, copy in enumerate(of.operator.copies)
    )
    move(to, Movement(copies=copies, ys=(of.y,)))


def _part(to: StepBuilder, of: OnBytes[Movement], x: NamedTensor, number: int) -> NamedTensor:
    """Return ``x``, part ``number``, in the scale of the whole: as QLinearConcat of it alone makes it."""
    given, made = of.scales[number], of.scales[-1]
    scales = (made.scale, made.zero, given.scale, given.zero)
    inputs = (made.scale.name, made.zero.name, x.name, given.scale.name, given.zero.name)
    alone = Node(Op.QLinearConcat, inputs, ("y",), {"axis": 0})
    constants = {value.name: to.constant(value) for value in scales}
    numbers = table_of(ByteRegion([alone], x.name, x.dtype, "y"), constants, {"": 1, MICROSOFT: 1})
    if np.array_equal(numbers, np.arange(BYTES, dtype=np.uint8).view(x.dtype)):
        return x
    place = 2 + 3 * number  # among the inputs of the node: others are called by theirs
    y = NamedTensor(name=f"{of.y.name}/{place}", dtype=numbers.dtype.name, shape=x.shape)
    table = NamedTensor(name=f"{y.name}/table", dtype=y.dtype, shape=numbers.shape)
    to.fold(table, numbers)
    look_up(to, LookUp(x=x, y=y, table=table))
    return y


def look_up(to: StepBuilder, operator: LookUp) -> None:
    """Add a table of bytes; of a constant they are one."""
    x, y, table = operator.x, operator.y, to.constant(operator.table)
    numbers = to.held(x)
    if numbers is not None:
        to.fold(y, table[numbers.view(np.uint8)])
        return
    to.step(
        y,
        "look_up",
        *(ValuePointer(x.name), to.make(y), math.prod(x.shape), Weight(table.view(np.uint8))),
        in_place=(x.name,),
        pointwise=True,
    )
