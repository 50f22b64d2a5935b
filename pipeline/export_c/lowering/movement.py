"""Operators that move elements: one strided copy does all of them, and most are not even that.

What only changes the shape, a part of something, or a whole of parts may be the same memory
(pipeline/export_c/memory.py).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from models.network.fields import Array
from pipeline.export_c.lowering.elementwise import join_dimensions, strides_in
from pipeline.export_c.lowering.node import Operation, Shape, items
from pipeline.export_c.lowering.steps import Record, Same, Value

_FLOAT_BYTES = 4


def copy(
    operation: Operation,
    sizes: Sequence[int],
    strides: tuple[Sequence[int], Sequence[int]],
    starts: tuple[int, int],
    *,
    position: int = 0,
    output: str | None = None,
) -> None:
    """Add a copy of ``sizes`` elements: ``strides`` and ``starts`` in the input and in the output."""
    joined, steps = join_dimensions(sizes, strides, operation)
    made = output or operation.node.output
    array = operation.array(position)
    item = np.dtype(array.dtype).itemsize
    same = None
    if _is_one_range(joined, steps) and not operation.is_constant(position):
        offsets = starts[0] * item, starts[1] * item
        same = Same(operation.name(position), *offsets, items(sizes) * item)
    fields: dict[str, int | float | Shape] = {
        "size": joined,
        "from": steps[0],
        "to": steps[1],
        "start": starts[0],
        "place": starts[1],
    }
    operation.step(
        "copy",
        *(operation.operand(position), Value(made), Record("copying", fields), item),
        output=made,
        same=same,
    )


def _is_one_range(joined: Shape, strides: Sequence[Shape]) -> bool:
    """Return whether what is copied lies together in the input and in the output."""
    return all(n == 1 for n in joined[:-1]) and all(step[-1] == 1 for step in strides)


def strides_of(shape: Sequence[int]) -> list[int]:
    """Return the elements from one to the next along each dimension, as C lays them out."""
    return [items(shape[axis + 1 :]) for axis in range(len(shape))]


def _reshaped(operation: Operation, shape: Sequence[int]) -> None:
    if items(shape) != items(operation.shape(0)):
        operation.refuse(f"{list(operation.shape(0))} as {list(shape)}")
    if operation.is_constant(0):
        operation.fold(operation.constant(0).reshape(shape))
        return
    operation.make(tuple(shape), operation.array(0).dtype)
    count = items(shape)
    copy(operation, [count], ([1], [1]), (0, 0))


def identity(operation: Operation) -> None:
    """Identity."""
    _reshaped(operation, operation.shape(0))


def dropout(operation: Operation) -> None:
    """Dropout as it is at inference."""
    training = operation.optional(2)
    if training is not None and training.any():
        operation.refuse("training_mode: what it drops is drawn")
    identity(operation)


def reshape(operation: Operation) -> None:
    """Reshape to a constant shape."""
    wanted = operation.integers(1, "shape") or []
    shape, zero_stays = operation.shape(0), not operation.attribute("allowzero", 0)
    lengths = [
        shape[axis] if n == 0 and zero_stays and axis < len(shape) else n
        for axis, n in enumerate(wanted)
    ]
    known = items([n for n in lengths if n != -1])
    _reshaped(operation, [items(shape) // max(known, 1) if n == -1 else n for n in lengths])


def flatten(operation: Operation) -> None:
    """Flatten."""
    shape, axis = operation.shape(0), int(operation.attribute("axis", 1))
    axis += len(shape) if axis < 0 else 0
    _reshaped(operation, (items(shape[:axis]), items(shape[axis:])))


def squeeze(operation: Operation) -> None:
    """Squeeze."""
    shape, axes = operation.shape(0), operation.integers(1, "axes")
    gone = {axis % len(shape) for axis in axes} if axes is not None else None
    kept = [n for axis, n in enumerate(shape) if (axis not in gone if gone is not None else n != 1)]
    _reshaped(operation, kept)


def unsqueeze(operation: Operation) -> None:
    """Unsqueeze."""
    shape, axes = list(operation.shape(0)), operation.integers(1, "axes") or []
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    _reshaped(operation, shape)


def concat(operation: Operation) -> None:
    """Concat along any axis."""
    positions = range(len(operation.node.inputs))
    shapes = [operation.shape(position) for position in positions]
    dtypes = {operation.array(position).dtype for position in positions}
    if len(dtypes) > 1:
        operation.refuse(f"parts of {', '.join(sorted(dtypes))}")
    axis = int(operation.attribute("axis", 0)) % len(shapes[0])
    whole = list(shapes[0])
    whole[axis] = sum(shape[axis] for shape in shapes)
    operation.make(tuple(whole), operation.array(0).dtype)
    strides, start = strides_of(whole), 0
    for position, shape in zip(positions, shapes, strict=True):
        copy(
            operation,
            shape,
            (strides_of(shape), strides),
            (0, start * strides[axis]),
            position=position,
        )
        start += shape[axis]


def split(operation: Operation) -> None:
    """Split along any axis."""
    shape = operation.shape(0)
    axis = int(operation.attribute("axis", 0)) % len(shape)
    outputs = operation.node.outputs
    equal = -(-shape[axis] // len(outputs))
    equals = [min(equal, shape[axis] - equal * n) for n in range(len(outputs))]
    start, strides = 0, strides_of(shape)
    for number, length in enumerate(operation.integers(1, "split") or equals):
        part = (*shape[:axis], length, *shape[axis + 1 :])
        if outputs[number]:
            made = operation.make(part, operation.array(0).dtype, number)
            starts = (start * strides[axis], 0)
            copy(operation, part, (strides, strides_of(part)), starts, output=made)
        start += length


def gather(operation: Operation) -> None:
    """Gather of constant elements along an axis, which is gone if its number is a scalar."""
    shape, index = list(operation.shape(0)), operation.constant(1)
    axis = int(operation.attribute("axis", 0)) % len(shape)
    numbers = [int(number) % shape[axis] for number in index.reshape(-1)]
    rest = shape[:axis], shape[axis + 1 :]
    strides, whole = strides_of(shape), strides_of([*rest[0], len(numbers), *rest[1]])
    operation.make((*rest[0], *index.shape, *rest[1]), operation.array(0).dtype)
    place = 0
    for first, step, count in _runs(numbers):
        read = [*strides[:axis], step * strides[axis], *strides[axis + 1 :]]
        starts = first * strides[axis], place * whole[axis]
        copy(operation, [*rest[0], count, *rest[1]], (read, whole), starts)
        place += count


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the first number, the step and the length of runs that ``numbers`` are."""
    at = 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 1
        end = at + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + step:
            end += 1
        yield numbers[at], step, end - at
        at = end


def slice_(operation: Operation) -> None:
    """Slice with constant bounds."""
    shape = operation.shape(0)
    starts, ends = operation.integers(1, "starts") or [], operation.integers(2, "ends") or []
    axes = operation.integers(3, "axes") or list(range(len(starts)))
    steps = operation.integers(4, "steps") or [1] * len(starts)
    parts = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # Beyond the first element a range that goes backwards has no number for its end.
        last = None if step < 0 and end < -shape[axis] else end
        parts[axis] = slice(start, last, step)
    ranges = [range(length)[part] for length, part in zip(shape, parts, strict=True)]
    if not all(ranges):
        operation.refuse("nothing is left of the input")
    if operation.is_constant(0):
        operation.fold(np.ascontiguousarray(operation.constant(0)[tuple(parts)]))
        return
    sizes, strides = [len(item) for item in ranges], strides_of(shape)
    operation.make(tuple(sizes), operation.array(0).dtype)
    first = sum(item.start * stride for item, stride in zip(ranges, strides, strict=True))
    read = [item.step * stride for item, stride in zip(ranges, strides, strict=True)]
    copy(operation, sizes, (read, strides_of(sizes)), (first, 0))


def transpose(operation: Operation) -> None:
    """Transpose."""
    shape = operation.shape(0)
    order = list(operation.attribute("perm") or reversed(range(len(shape))))
    _turned(operation, shape, order, tuple(shape[axis] for axis in order))


def rows_of(operation: Operation, order: Sequence[int]) -> str:
    """Return the input with its dimensions in ``order``: itself where they lie so, else a copy."""
    name, array = operation.name(0), operation.array(0)
    shape, strides = [array.shape[axis] for axis in order], strides_of(array.shape)
    read = [strides[axis] for axis in order]
    if _is_one_range(*join_dimensions(shape, [read, strides_of(shape)], operation)):
        return name
    made = f"{operation.node.output}/turned"
    operation.make_other(made, Array(dtype=array.dtype, shape=tuple(shape)))
    copy(operation, shape, (read, strides_of(shape)), (0, 0), output=made)
    return made


def expand(operation: Operation) -> None:
    """Expand to a constant shape, or to one that the input has where that has ones."""
    wanted, given = tuple(operation.integers(1, "shape") or ()), operation.shape(0)
    try:
        shape = np.broadcast_shapes(given, wanted)
    except ValueError:
        operation.refuse(f"{list(given)} to {list(wanted)}")
    if operation.is_constant(0):
        operation.fold(np.ascontiguousarray(np.broadcast_to(operation.constant(0), shape)))
        return
    operation.make(shape, operation.array(0).dtype)
    copy(operation, shape, (strides_in(given, shape), strides_of(shape)), (0, 0))


def space_to_depth(operation: Operation) -> None:
    """SpaceToDepth: blocks of pixels become channels, those of one place in a block together."""
    batch, channels, height, width = _image(operation)
    size = int(operation.attribute("blocksize", 1))
    if height % size or width % size:
        operation.refuse(f"blocks of {size} by {size} in {height} by {width}")
    lengths = [batch, channels, height // size, size, width // size, size]
    made = batch, channels * size * size, height // size, width // size
    _turned(operation, lengths, (0, 3, 5, 1, 2, 4), made)


def depth_to_space(operation: Operation) -> None:
    """DepthToSpace: channels become blocks of pixels, the channels of a block apart (DCR) or together."""
    batch, channels, height, width = _image(operation)
    size, mode = int(operation.attribute("blocksize", 1)), operation.attribute("mode", "DCR")
    depth = channels // (size * size)
    if channels % (size * size) or mode not in {"DCR", "CRD"}:
        operation.refuse(f"{channels} channels in blocks of {size} by {size}, mode {mode}")
    made = batch, depth, height * size, width * size
    if mode == "DCR":
        _turned(operation, [batch, size, size, depth, height, width], (0, 3, 4, 1, 5, 2), made)
    else:
        _turned(operation, [batch, depth, size, size, height, width], (0, 1, 4, 2, 5, 3), made)


def _image(operation: Operation) -> Shape:
    shape = operation.shape(0)
    if len(shape) != 4:
        operation.refuse(f"an input of {len(shape)} dimensions; 4 can be exported")
    return shape


def _turned(operation: Operation, shape: Sequence[int], order: Sequence[int], made: Shape) -> None:
    """Add a copy of the input, seen as ``shape``, with its dimensions in ``order``, as ``made``."""
    sizes, strides = [shape[axis] for axis in order], strides_of(shape)
    operation.make(made, operation.array(0).dtype)
    copy(operation, sizes, ([strides[axis] for axis in order], strides_of(sizes)), (0, 0))


def pad(operation: Operation) -> None:
    """Pad by a constant; what is negative is cut off."""
    if operation.attribute("mode", "constant") != "constant":
        operation.refuse(f"mode {operation.attribute('mode')}; constant can be exported")
    operation.floats(0)
    shape, pads = operation.shape(0), operation.integers(1, "pads") or []
    axes = operation.integers(3, "axes") or list(range(len(shape)))
    before, behind = [0] * len(shape), [0] * len(shape)
    for number, axis in enumerate(axes):
        before[axis], behind[axis] = pads[number], pads[number + len(axes)]
    whole = [n + a + b for n, a, b in zip(shape, before, behind, strict=True)]
    cut = [n + min(a, 0) + min(b, 0) for n, a, b in zip(shape, before, behind, strict=True)]
    if min(cut) < 1:
        operation.refuse(f"pads {pads} leave nothing of {list(shape)}")
    given = operation.optional(2)
    value = float(operation.attribute("value", 0.0) if given is None else given.reshape(-1)[0])
    made = operation.make(tuple(whole))
    strides = strides_of(shape), strides_of(whole)
    starts = (
        sum(max(-a, 0) * stride for a, stride in zip(before, strides[0], strict=True)),
        sum(max(a, 0) * stride for a, stride in zip(before, strides[1], strict=True)),
    )
    filled = [(0, items(whole))]
    if _is_one_range(*join_dimensions(cut, strides, operation)):
        # What is copied may lie there already: only what is around it is filled.
        end = starts[1] + items(cut)
        filled = [(0, starts[1]), (end, items(whole) - end)]
    for start, count in filled:
        if count:
            operation.step("fill", Value(made, start * _FLOAT_BYTES), count, value)
    copy(operation, cut, strides, starts)
