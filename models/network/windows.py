"""What part of an input a part of an output needs: windows along one axis, and along several.

Everything that moves over an image is described so: convolutions, pools, resizing by whole factors. Rows,
columns, tiles, phases of the papers and kernels all use the same windows. ``windows_of`` says what a node's
``pads`` and ``auto_pad`` are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.records import SHARED, PositiveInt, Record

#: One place on an axis, or many.
Places = TypeVar("Places", int, NDArray[np.int64])


class WindowError(ValueError):
    """A kernel does not fit its input."""


@dataclass(frozen=True, slots=True)
class Window(Record):
    """How an axis of an output is made of an axis of an input.

    Output [a, b) is made of input [a * stride - before, (b - 1) * stride - before + reach). Where each
    window makes ``factor`` elements, a and b - 1 are divided by it first. ``before``, ``behind``: padding
    in front and behind; negative: so many elements come first, or last, that are never read.
    """

    kernel: PositiveInt = 1
    stride: PositiveInt = 1
    dilation: PositiveInt = 1
    before: int = 0
    behind: int = 0
    factor: PositiveInt = 1

    @property
    def reach(self) -> int:
        """Elements from the first that an output needs to the last."""
        return (self.kernel - 1) * self.dilation + 1

    def begin(self, first: Places) -> Places:
        """Return where that begins which outputs from ``first`` on need."""
        # Most windows do little: rows of whole networks are computed, thousands of times.
        if self.factor > 1:
            first = first // self.factor
        if self.stride > 1:
            first = first * self.stride
        return first - self.before if self.before else first

    def end(self, end: Places) -> Places:
        """Return where that ends which outputs before ``end`` need."""
        if self.factor > 1:
            return self.begin(end - 1) + self.reach
        if self.stride > 1:
            end = end * self.stride
        more = self.reach - self.stride - self.before
        return end + more if more else end

    def needed(self, first: Places, end: Places) -> tuple[Places, Places]:
        """Return the part of the input that outputs [first, end) need; some may lie in the padding."""
        return self.begin(first), self.end(end)

    def within(self, first: int, end: int, length: int) -> tuple[int, int]:
        """Return what of an input of ``length`` outputs [first, end) need."""
        low, high = self.needed(first, end)
        return min(max(low, 0), length), max(min(high, length), 0)

    def most_needed(self, count: int, length: int) -> int:
        """Return the most of an input of ``length`` that ``count`` outputs need."""
        low, high = self.needed(0, count)
        return min(high - low, length)

    def made(self, length: int) -> int:
        """Return how many outputs there are of an input of ``length``, where the last is whole."""
        whole = (length + self.before + self.behind - self.reach) // self.stride + 1
        return whole * self.factor

    def fitted(self, length: int, made: int) -> "Window":
        """Return the window with as much behind an input of ``length`` as ``made`` outputs need."""
        return replace(self, behind=self.end(made) - length)

    def then(self, later: "Window") -> "Window":
        """Return what of this input an output of ``later``, which reads this output, needs; none repeat."""
        return Window(
            kernel=(later.reach - 1) * self.stride + self.reach,
            stride=self.stride * later.stride,
            before=later.before * self.stride + self.before,
            behind=later.behind * self.stride + self.behind,
        )


#: Each output is made of the input at the same place.
SAME = Window()


@dataclass(frozen=True, slots=True)
class Windows(Record):
    """``axes`` on an input of ``size``, and the ``result`` that they make, a number for each axis.

    ``beyond``: how far the last window reaches past the padding, where sizes are rounded up.
    """

    axes: Annotated[tuple[Annotated[Window, SHARED], ...], SHARED]
    size: Annotated[tuple[int, ...], SHARED]
    result: Annotated[tuple[int, ...], SHARED]
    beyond: tuple[int, ...] = (0, 0)

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(axis.kernel for axis in self.axes)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(axis.stride for axis in self.axes)

    @property
    def dilations(self) -> tuple[int, ...]:
        return tuple(axis.dilation for axis in self.axes)

    @property
    def before(self) -> tuple[int, ...]:
        return tuple(axis.before for axis in self.axes)

    @property
    def behind(self) -> tuple[int, ...]:
        return tuple(axis.behind for axis in self.axes)

    @property
    def on_a_plane(self) -> "Windows":
        """The same on rows and columns: what has one axis is one row."""
        if len(self.axes) > 1:
            return self
        return Windows((SAME, *self.axes), (1, *self.size), (1, *self.result), (0, *self.beyond))


def windows_of(
    attributes: Mapping[str, Any], kernel: Sequence[int], size: Sequence[int]
) -> Windows:
    """Return the windows of ``kernel`` on an input of spatial ``size``, by a node's ``attributes``.

    Raises:
        WindowError: the kernel does not fit, or its axes are not those of the input.
    """
    count = len(kernel)
    pads = attributes.get("pads") or [0] * (2 * count)
    given = [
        kernel,
        attributes.get("strides") or [1] * count,
        attributes.get("dilations") or [1] * count,
        pads[:count],
        pads[count:],
    ]
    if len(size) != count or any(len(numbers) != count for numbers in given):
        raise WindowError(f"a kernel of {list(kernel)} on an input of {list(size)}")
    auto_pad = attributes.get("auto_pad") or "NOTSET"
    axes = [
        _padded(Window(*map(int, numbers)), length, auto_pad)
        for *numbers, length in zip(*given, size, strict=True)
    ]
    rounds_up = bool(attributes.get("ceil_mode", 0))
    result = [_count(axis, n, rounds_up) for axis, n in zip(axes, size, strict=True)]
    if min(result, default=1) < 1:
        raise WindowError(f"a kernel of {list(kernel)} does not fit an input of {list(size)}")
    beyond = [
        max(axis.needed(0, n_outputs)[1] - length - axis.behind, 0)
        for axis, n_outputs, length in zip(axes, result, size, strict=True)
    ]
    if not rounds_up:
        # One window that is larger than all it has: ONNX Runtime takes the rest for padding.
        axes = [replace(axis, behind=axis.behind + n) for axis, n in zip(axes, beyond, strict=True)]
        beyond = [0] * count
    return Windows(tuple(axes), tuple(size), tuple(result), tuple(beyond))


def _padded(axis: Window, length: int, auto_pad: str) -> Window:
    """Return ``axis`` with the padding that ``auto_pad`` asks for."""
    if auto_pad == "NOTSET":
        return axis
    if auto_pad == "VALID":
        return replace(axis, before=0, behind=0)
    total = max((-(-length // axis.stride) - 1) * axis.stride + axis.reach - length, 0)
    less, more = total // 2, total - total // 2
    before, behind = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    return replace(axis, before=before, behind=behind)


def _count(axis: Window, length: int, rounds_up: bool) -> int:
    """Return how many windows there are on an input of ``length``."""
    room = axis.before + length + axis.behind - axis.reach
    if not rounds_up:
        # Towards zero, as ONNX Runtime: a kernel that is too large by less than a stride has one window.
        return int(room / axis.stride) + 1
    count = -(-room // axis.stride) + 1
    # A window that starts behind the input would see nothing but padding.
    return count - 1 if (count - 1) * axis.stride >= axis.before + length else count
