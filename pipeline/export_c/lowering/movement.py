"""Operators that move elements: one strided copy does all of them, and most are not even that.

What only changes the shape, a part of something, or a whole of parts may be the same memory
(pipeline/export_c/memory.py).
"""

import math
from collections.abc import Sequence

import numpy as np

from models.network.node import NamedTensor, Shape, UnsuitedError
from models.network.operators.movement import Copy, moved, strides_of
from models.network.operators.reading import Gather, Movement, Pad, Reshape, Resize
from models.network.operators.resizing import Resized
from pipeline.export_c.lowering.builder import StepBuilder
from pipeline.export_c.lowering.calls import After, Same, StructConstant, ValuePointer, Weight

_FLOAT_BYTES = 4
#: Dimensions that a copy has, or two operands, after those that lie together were joined.
_DIMENSIONS = 6


def copy(to: StepBuilder, copied: Copy) -> None:
    """Add the step of a copy."""
    joined, steps = join_dimensions(copied.sizes, (copied.read, copied.written))
    item = copied.x.item_bytes
    same = None
    if _is_one_range(joined, steps) and to.held(copied.x) is None:
        offsets = copied.start * item, copied.place * item
        same = Same(copied.x.name, *offsets, math.prod(copied.sizes) * item)
    fields: dict[str, int | float | Shape] = {
        "size": joined,
        "from": steps[0],
        "to": steps[1],
        "start": copied.start,
        "place": copied.place,
    }
    output, record = ValuePointer(copied.y.name), StructConstant("copying", fields)
    read = to.operand(copied.x)
    to.step(copied.y, "copy", read, output, record, item, same=same, operator=copied)


def join_dimensions(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[Shape, list[Shape]]:
    """Return ``shape`` and ``strides`` with dimensions joined that lie together in all, in six at most."""
    kept: list[tuple[int, list[int]]] = []
    for length, *steps in zip(shape, *strides, strict=True):
        if length == 1:
            continue
        if kept and all(old == step * length for old, step in zip(kept[-1][1], steps, strict=True)):
            kept[-1] = (kept[-1][0] * length, list(steps))
        else:
            kept.append((length, list(steps)))
    if len(kept) > _DIMENSIONS:
        raise UnsuitedError(
            f"{len(kept)} dimensions that do not lie together, at most {_DIMENSIONS}"
        )
    kept = [(1, [0] * len(strides))] * (_DIMENSIONS - len(kept)) + kept
    return tuple(n for n, _ in kept), [
        tuple(steps[number] for _, steps in kept) for number in range(len(strides))
    ]


def _is_one_range(joined: Shape, strides: Sequence[Shape]) -> bool:
    """Return whether what is copied lies together in the input and in the output."""
    return all(n == 1 for n in joined[:-1]) and all(step[-1] == 1 for step in strides)


def reshape(to: StepBuilder, operator: Reshape) -> None:
    """Add the copy that another shape, or another name, of all of a value is; a constant stays one."""
    x, y = operator.x, operator.y
    numbers = to.held(x)
    if numbers is not None:
        to.fold(y, numbers)
        return
    to.make(y)
    copy(to, Copy(x=x, y=y, sizes=(math.prod(y.shape),), read=(1,), written=(1,)))


def move(to: StepBuilder, operator: Movement) -> None:
    """Add copies; of constants they are constants."""
    arrays = [to.held(copied.x) for copied in operator.copies]
    numbers = [array for array in arrays if array is not None]
    if len(numbers) == len(arrays):
        for y, result in zip(operator.ys, moved(operator, numbers), strict=True):
            to.fold(y, result)
        return
    for y in operator.ys:
        to.make(y)
    for copied in operator.copies:
        copy(to, copied)


def gather(to: StepBuilder, operator: Gather) -> None:
    """Add the copies of runs of places."""
    move(to, Movement(copies=tuple(operator.copies()), ys=(operator.y,)))


def pad(to: StepBuilder, operator: Pad) -> None:
    """Pad by a constant; what is negative is cut off."""
    if operator.mode != "constant":
        raise UnsuitedError(f"mode {operator.mode}; constant can be exported")
    y, kept = operator.y, operator.kept()
    output, whole = to.make(y), math.prod(y.shape)
    filled = [(0, whole)]
    if _is_one_range(*join_dimensions(kept.sizes, (kept.read, kept.written))):
        # What is copied may lie there already: only what is around it is filled.
        end = kept.place + math.prod(kept.sizes)
        filled = [(0, kept.place), (end, whole - end)]
    for start, count in filled:
        if count:
            to.step(
                y, "fill", ValuePointer(output.name, start * _FLOAT_BYTES), count, operator.value
            )
    copy(to, kept)


def with_order(to: StepBuilder, x: NamedTensor, order: Sequence[int], name: str) -> NamedTensor:
    """Return ``x`` with its dimensions in ``order``: itself where they lie so, else a copy, ``name``."""
    shape, strides = tuple(x.shape[axis] for axis in order), strides_of(x.shape)
    read, written = tuple(strides[axis] for axis in order), strides_of(shape)
    if _is_one_range(*join_dimensions(shape, (read, written))):
        return x
    y = x.shaped(shape, name)
    to.make(y)
    copy(to, Copy(x=x, y=y, sizes=shape, read=read, written=written))
    return y


# Resize: elements that are repeated are a copy, others lie between two rows and two columns.

_SIDES = 2
_TAPS = 2


def resize(to: StepBuilder, operator: Resize) -> None:
    """Add a copy where elements are repeated, each as often; else rows and columns are looked up."""
    x, y, factors = operator.x, operator.y, operator.factors
    if factors is not None:
        _repeated(to, operator, factors)
        return
    if x.dtype != "float32":
        raise UnsuitedError(f"{x.dtype}, not float32")
    if len(x.shape) < _SIDES or not operator.of_planes:
        raise UnsuitedError(
            f"{list(x.shape)} to {list(y.shape)}; the last two dimensions can be resized"
        )
    sides = [weight for axis in operator.axes[-_SIDES:] for weight in _between(axis)]
    fields = {
        "planes": math.prod(y.shape[:-_SIDES]),
        "size_y": x.shape[-2],
        "size_x": x.shape[-1],
        "result_y": y.shape[-2],
        "result_x": y.shape[-1],
    }
    record, read = StructConstant("resizing", fields), to.operand(x)
    to.step(y, "resize", read, *sides, to.make(y), record, after=After())


def _repeated(to: StepBuilder, operator: Resize, factors: tuple[int, ...]) -> None:
    # Each dimension as two: its elements, and how often each of them is repeated.
    x, y = operator.x, operator.y
    sizes = tuple(n for pair in zip(x.shape, factors, strict=True) for n in pair)
    read = tuple(n for stride in strides_of(x.shape) for n in (stride, 0))
    to.make(y)
    copy(to, Copy(x=x, y=y, sizes=sizes, read=read, written=strides_of(sizes)))


def _between(axis: Resized) -> tuple[Weight, Weight]:
    """Return the two elements that each one lies between, and the part of the second."""
    taps = axis.indices.shape[1]
    if taps > _TAPS:
        raise UnsuitedError(f"means of {taps} neighbours; two can be exported")
    pairs = np.broadcast_to(axis.indices, (len(axis.indices), _TAPS)) if taps == 1 else axis.indices
    parts = np.zeros(len(pairs), np.float32) if axis.weights is None else axis.weights[:, 1]
    return Weight(np.ascontiguousarray(pairs)), Weight(np.ascontiguousarray(parts))
