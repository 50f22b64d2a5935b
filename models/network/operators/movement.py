"""Operators that only move elements: into another shape, or by copies whose elements lie in equal steps."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from models.network.node import NamedTensor, NodeReader, Shape, UnsuitedError, axis_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape:
    """``y`` is ``x`` in another shape, or under another name."""

    x: NamedTensor
    y: NamedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Elements of ``x`` that become elements of ``y``: along axes of ``sizes``, in equal steps in both.

    ``start``: the first one that is read; ``place``: where it is put. All count elements; what is
    read may go backwards, or stay where it is.
    """

    x: NamedTensor
    y: NamedTensor
    sizes: Shape
    read: Shape
    written: Shape
    start: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """``copies``, which do not depend on each other and make each element of the outputs ``ys`` once."""

    copies: tuple[Copy, ...]
    ys: tuple[NamedTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """``y``: what lies at ``places`` along ``axis`` of ``x``, none of them negative."""

    x: NamedTensor
    y: NamedTensor
    axis: int
    places: tuple[int, ...]

    def copies(self) -> Iterator[Copy]:
        """Yield copies that do the same, one for each run of places in equal steps."""
        outer, inner = self.x.shape[: self.axis], self.x.shape[self.axis + 1 :]
        strides = strides_of(self.x.shape)
        written, done = strides_of((*outer, len(self.places), *inner)), 0
        for first, step, count in _runs(self.places):
            yield Copy(
                x=self.x,
                y=self.y,
                sizes=(*outer, count, *inner),
                read=(*strides[: self.axis], step * strides[self.axis], *strides[self.axis + 1 :]),
                written=written,
                start=first * strides[self.axis],
                place=done * written[self.axis],
            )
            done += count


@dataclass(frozen=True, slots=True, kw_only=True)
class Pad:
    """``x`` with so many elements ``before`` and ``behind`` it along each axis; negative: cut off.

    ``mode``: they hold ``value`` ("constant"), the element at the border ("edge"), or what lies mirrored
    ("reflect") or at the other end ("wrap").
    """

    x: NamedTensor
    y: NamedTensor
    before: Shape
    behind: Shape
    mode: Literal["constant", "edge", "reflect", "wrap"] = "constant"
    value: float = 0.0

    def kept(self) -> Copy:
        """Return the copy of what is not cut off."""
        read, written = strides_of(self.x.shape), strides_of(self.y.shape)
        lengths = zip(self.x.shape, self.before, self.behind, strict=True)
        return Copy(
            x=self.x,
            y=self.y,
            sizes=tuple(n + min(a, 0) + min(b, 0) for n, a, b in lengths),
            read=read,
            written=written,
            start=sum(max(-a, 0) * step for a, step in zip(self.before, read, strict=True)),
            place=sum(max(a, 0) * step for a, step in zip(self.before, written, strict=True)),
        )


def strides_of(shape: Sequence[int]) -> Shape:
    """Return the elements from one to the next along each axis, as they lie one behind the other."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_strides(shape: Sequence[int], target: Sequence[int]) -> Shape:
    """Return strides that make a tensor of ``shape`` look like one of ``target``."""
    missing = len(target) - len(shape)
    lengths = (1,) * missing + tuple(shape)
    strides = (0,) * missing + strides_of(shape)
    return tuple(0 if n == 1 else stride for n, stride in zip(lengths, strides, strict=True))


def moved(move: Movement, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the outputs of ``move``; ``arrays``: what each of its copies reads."""
    made = {y.name: np.empty(y.shape, arrays[0].dtype) for y in move.ys}
    for copy, array in zip(move.copies, arrays, strict=True):
        at = np.indices(copy.sizes).reshape(len(copy.sizes), -1)
        read = np.array(copy.read, np.int64) @ at + copy.start
        written = np.array(copy.written, np.int64) @ at + copy.place
        made[copy.y.name].reshape(-1)[written] = np.ascontiguousarray(array).reshape(-1)[read]
    return list(made.values())


def _viewed(
    x: NamedTensor, y: NamedTensor, sizes: Sequence[int], read: Sequence[int], start: int = 0
) -> Movement:
    """Return the move of a view of ``x`` to all of ``y``, which lies as axes of ``sizes``."""
    sizes = tuple(sizes)
    copy = Copy(x=x, y=y, sizes=sizes, read=tuple(read), written=strides_of(sizes), start=start)
    return Movement(copies=(copy,), ys=(y,))


def _turned(x: NamedTensor, y: NamedTensor, axes: Sequence[int], order: Sequence[int]) -> Movement:
    """Return the move of ``x``, seen with ``axes``, in another order of them."""
    strides = strides_of(axes)
    return _viewed(x, y, [axes[axis] for axis in order], [strides[axis] for axis in order])


def _reshaped(read: NodeReader, shape: Sequence[int]) -> Reshape:
    x = read.value(0)
    if math.prod(shape) != math.prod(x.shape):
        raise UnsuitedError(f"{list(x.shape)} as {list(shape)}")
    return Reshape(x=x, y=read.made(x, shape))


def identity(read: NodeReader) -> Reshape:
    """Identity."""
    return _reshaped(read, read.value(0).shape)


def dropout(read: NodeReader) -> Reshape:
    """Dropout as it is at inference."""
    if read.has(2) and read.constant(2).any():
        raise UnsuitedError("training_mode: what it drops is drawn")
    return identity(read)


def reshape(read: NodeReader) -> Reshape:
    """Reshape to a constant shape."""
    shape, zero_stays = read.value(0).shape, not read.attribute("allowzero")
    lengths = [
        shape[axis] if n == 0 and zero_stays and axis < len(shape) else n
        for axis, n in enumerate(read.listed(1, "shape"))
    ]
    known = math.prod(n for n in lengths if n != -1)
    rest = math.prod(shape) // max(known, 1)
    return _reshaped(read, [rest if n == -1 else n for n in lengths])


def flatten(read: NodeReader) -> Reshape:
    """Flatten."""
    shape = read.value(0).shape
    axis = axis_of(int(read.attribute("axis")), len(shape))
    return _reshaped(read, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def squeeze(read: NodeReader) -> Reshape:
    """Squeeze: the given axes, or all of length 1."""
    shape, axes = read.value(0).shape, read.integers(1, "axes")
    if axes is None:
        return _reshaped(read, [n for n in shape if n != 1])
    gone = {axis_of(axis, len(shape)) for axis in axes}
    return _reshaped(read, [n for axis, n in enumerate(shape) if axis not in gone])


def unsqueeze(read: NodeReader) -> Reshape:
    """Unsqueeze."""
    shape, axes = list(read.value(0).shape), read.listed(1, "axes")
    for axis in sorted(axis_of(axis, len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    return _reshaped(read, shape)


def concat(read: NodeReader) -> Movement:
    """Concat along any axis."""
    parts = [read.value(position) for position in range(len(read.node.inputs))]
    if len({part.dtype for part in parts}) > 1:
        raise UnsuitedError(f"parts of {', '.join(sorted({part.dtype for part in parts}))}")
    whole = list(parts[0].shape)
    axis = axis_of(int(read.attribute("axis", 1)), len(whole))
    whole[axis] = sum(part.shape[axis] for part in parts)
    y, strides = read.made(parts[0], whole), strides_of(whole)
    starts = itertools.accumulate((part.shape[axis] for part in parts), initial=0)
    copies = tuple(
        Copy(
            x=part,
            y=y,
            sizes=part.shape,
            read=strides_of(part.shape),
            written=strides,
            place=start * strides[axis],
        )
        for part, start in zip(parts, starts, strict=False)
    )
    return Movement(copies=copies, ys=(y,))


def split(read: NodeReader) -> Movement:
    """Split along any axis, into given parts or equal ones; outputs without a reader are not made."""
    x, names = read.value(0), read.node.outputs
    axis = axis_of(int(read.attribute("axis")), len(x.shape))
    length, strides = x.shape[axis], strides_of(x.shape)
    equal = -(-length // len(names))
    equals = [min(equal, length - equal * number) for number in range(len(names))]
    lengths = read.integers(1, "split") or equals
    if len(lengths) != len(names) or sum(lengths) != length or min(lengths) < 1:
        raise UnsuitedError(f"parts {lengths} of an axis of {length}")
    starts = itertools.accumulate(lengths, initial=0)
    copies: list[Copy] = []
    for name, count, start in zip(names, lengths, starts, strict=False):
        part = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        if name:
            y = x.shaped(part, name)
            copies += _viewed(x, y, part, strides, start * strides[axis]).copies
    return Movement(copies=tuple(copies), ys=tuple(copy.y for copy in copies))


def slice_(read: NodeReader) -> Movement:
    """Slice with constant bounds: beyond the input they are cut to it, negative ones count from its end."""
    x = read.value(0)
    starts, ends = read.listed(1, "starts"), read.listed(2, "ends")
    axes = read.integers(3, "axes") or range(len(starts))
    steps = read.integers(4, "steps") or [1] * len(starts)
    ranges = [range(length) for length in x.shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # To Python -1 is the last element; to ONNX an end this low means "up to the first one".
        past_first = step < 0 and end < -x.shape[axis]
        ranges[axis] = range(x.shape[axis])[start : None if past_first else end : step]
    if not all(ranges):
        raise UnsuitedError("nothing is left of the input")
    strides = strides_of(x.shape)
    sizes = [len(item) for item in ranges]
    start = sum(item.start * stride for item, stride in zip(ranges, strides, strict=True))
    stepped = [item.step * stride for item, stride in zip(ranges, strides, strict=True)]
    return _viewed(x, read.made(x, sizes), sizes, stepped, start)


def transpose(read: NodeReader) -> Movement:
    """Transpose."""
    x = read.value(0)
    order = list(read.attribute("perm") or reversed(range(len(x.shape))))
    return _turned(x, read.made(x, [x.shape[axis] for axis in order]), x.shape, order)


def expand(read: NodeReader) -> Movement:
    """Expand to a constant shape, or to one that the input has where that has ones."""
    x, wanted = read.value(0), read.listed(1, "shape")
    try:
        shape = np.broadcast_shapes(x.shape, tuple(wanted))
    except ValueError:
        raise UnsuitedError(f"{list(x.shape)} to {wanted}") from None
    return _viewed(x, read.made(x, shape), shape, broadcast_strides(x.shape, shape))


def tile(read: NodeReader) -> Movement:
    """Tile: every axis becomes two, the copies and what is copied."""
    x, repeats = read.value(0), read.listed(1, "repeats")
    pairs = list(zip(repeats, x.shape, strict=True))
    sizes = [n for pair in pairs for n in pair]
    strides = [n for stride in strides_of(x.shape) for n in (0, stride)]
    return _viewed(x, read.made(x, [times * n for times, n in pairs]), sizes, strides)


def space_to_depth(read: NodeReader) -> Movement:
    """SpaceToDepth: blocks of pixels become channels, the channels of a block apart (DCR) or together."""
    read.require("mode", "DCR", "CRD")
    x, (batch, channels, height, width) = _image(read)
    size = int(read.attribute("blocksize", 1))
    if height % size or width % size:
        raise UnsuitedError(f"blocks of {size} by {size} in {height} by {width}")
    made = read.made(x, (batch, channels * size * size, height // size, width // size))
    axes = batch, channels, height // size, size, width // size, size
    together = read.attribute("mode") == "CRD"
    return _turned(x, made, axes, (0, 1, 3, 5, 2, 4) if together else (0, 3, 5, 1, 2, 4))


def depth_to_space(read: NodeReader) -> Movement:
    """DepthToSpace: channels become blocks of pixels, the channels of a block apart (DCR) or together."""
    read.require("mode", "DCR", "CRD")
    x, (batch, channels, height, width) = _image(read)
    size = int(read.attribute("blocksize", 1))
    depth = channels // (size * size)
    if channels % (size * size):
        raise UnsuitedError(f"{channels} channels in blocks of {size} by {size}")
    made = read.made(x, (batch, depth, height * size, width * size))
    if read.attribute("mode") == "DCR":
        return _turned(x, made, (batch, size, size, depth, height, width), (0, 3, 4, 1, 5, 2))
    return _turned(x, made, (batch, depth, size, size, height, width), (0, 1, 4, 2, 5, 3))


def _image(read: NodeReader) -> tuple[NamedTensor, tuple[int, int, int, int]]:
    x = read.value(0)
    if len(x.shape) != 4:
        raise UnsuitedError(f"an input of {len(x.shape)} dimensions, not 4")
    batch, channels, height, width = x.shape
    return x, (batch, channels, height, width)


def gather(read: NodeReader) -> Gather:
    """Gather of constant places along an axis, which is gone if that is one number."""
    x, index = read.value(0), read.constant(1)
    axis = axis_of(int(read.attribute("axis")), len(x.shape))
    places = tuple(axis_of(int(place), x.shape[axis]) for place in index.reshape(-1))
    y = read.made(x, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))
    return Gather(x=x, y=y, axis=axis, places=places)


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the first place, the step and the length of runs that ``places`` are."""
    at = 0
    while at < len(places):
        step = places[at + 1] - places[at] if at + 1 < len(places) else 1
        end = at + 1
        while end < len(places) and places[end] == places[end - 1] + step:
            end += 1
        yield places[at], step, end - at
        at = end


def pad(read: NodeReader) -> Pad:
    """Pad; bounds are inputs or, in old operator sets, attributes."""
    read.require("mode", "constant", "edge", "reflect", "wrap")
    x, numbers = read.floats(0), read.listed(1, "pads")
    rank = len(x.shape)
    axes = read.integers(3, "axes") or range(rank)
    before, behind = [0] * rank, [0] * rank
    half = len(numbers) // 2
    for axis, begin, end in zip(axes, numbers[:half], numbers[half:], strict=True):
        before[axis], behind[axis] = begin, end
    lengths = [n + a + b for n, a, b in zip(x.shape, before, behind, strict=True)]
    kept = [n + min(a, 0) + min(b, 0) for n, a, b in zip(x.shape, before, behind, strict=True)]
    if min(kept) < 1:
        raise UnsuitedError(f"pads {numbers} leave nothing of {list(x.shape)}")
    value = read.constant(2).reshape(-1)[0] if read.has(2) else read.attribute("value", 0.0)
    return Pad(
        x=x,
        y=read.made(x, lengths),
        before=tuple(before),
        behind=tuple(behind),
        mode=cast(Literal["constant", "edge", "reflect", "wrap"], read.attribute("mode")),
        value=float(value),
    )
