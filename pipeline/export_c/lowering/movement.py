"""Operators that move elements: one strided copy does all of them, and most are not even that.

What only changes the shape, a part of something, or a whole of parts may be the same memory
(pipeline/export_c/memory.py).
"""

import math
from collections.abc import Sequence

from models.network.node import NamedTensor, Shape, UnsuitedError
from models.network.operators.movement import Copy, moved, strides_of
from models.network.operators.reading import Gather, Movement, Pad, Reshape
from pipeline.export_c.lowering.builder import StepBuilder
from pipeline.export_c.lowering.steps import Same, StructConstant, ValuePointer

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
    made, record = ValuePointer(copied.y.name), StructConstant("copying", fields)
    read = to.operand(copied.x)
    to.step(copied.y, "copy", read, made, record, item, same=same, operator=copied)


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
    held = to.held(x)
    if held is not None:
        to.fold(y, held)
        return
    to.make(y)
    copy(to, Copy(x=x, y=y, sizes=(math.prod(y.shape),), read=(1,), written=(1,)))


def move(to: StepBuilder, operator: Movement) -> None:
    """Add copies; of constants they are constants."""
    held = [to.held(copied.x) for copied in operator.copies]
    numbers = [array for array in held if array is not None]
    if len(numbers) == len(held):
        for y, made in zip(operator.ys, moved(operator, numbers), strict=True):
            to.fold(y, made)
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
    made, whole = to.make(y), math.prod(y.shape)
    filled = [(0, whole)]
    if _is_one_range(*join_dimensions(kept.sizes, (kept.read, kept.written))):
        # What is copied may lie there already: only what is around it is filled.
        end = kept.place + math.prod(kept.sizes)
        filled = [(0, kept.place), (end, whole - end)]
    for start, count in filled:
        if count:
            to.step(y, "fill", ValuePointer(made.name, start * _FLOAT_BYTES), count, operator.value)
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
