"""Where the windows of a convolution or of a pool lie on their input, in any number of axes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tests.oracle.base import Array, Call


@dataclass(frozen=True)
class Window:
    """All fields have one number for each spatial axis.

    ``begins`` and ``ends`` are the pads; ``beyond`` is how far the last window reaches past them
    (only where the size of the result is rounded up).
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    beyond: tuple[int, ...]
    result: tuple[int, ...]

    def padded(self, x: Array, value: float, beyond: float | None = None) -> Array:
        """Return ``x`` [N, C, ...] with ``value`` around it, and ``beyond`` (or it) past that."""
        around = list(zip(self.begins, self.ends, strict=True))
        inner = np.pad(x, [(0, 0), (0, 0), *around], constant_values=value)
        past = [(0, length) for length in self.beyond]
        fill = value if beyond is None else beyond
        return np.pad(inner, [(0, 0), (0, 0), *past], constant_values=fill)

    def places(self, padded: Array) -> Iterator[tuple[tuple[int, ...], Array]]:
        """Yield each place in the kernel with what lies under it, a view [N, C, *result]."""
        for place in np.ndindex(*self.kernel):
            starts = [i * step for i, step in zip(place, self.dilations, strict=True)]
            cut = tuple(
                slice(start, start + (length - 1) * stride + 1, stride)
                for start, length, stride in zip(starts, self.result, self.strides, strict=True)
            )
            yield place, padded[(slice(None), slice(None), *cut)]


def window(call: Call, kernel: Sequence[int], size: Sequence[int]) -> Window:
    """Return the windows of ``kernel`` on an input of spatial ``size``, by the node's attributes.

    Raises:
        ValueError: the kernel does not fit, or its axes are not those of the input.
    """
    strides = call.attribute("strides") or [1] * len(kernel)
    dilations = call.attribute("dilations") or [1] * len(kernel)
    pads = call.attribute("pads") or [0] * (2 * len(kernel))
    extents = [(n - 1) * step + 1 for n, step in zip(kernel, dilations, strict=True)]
    around = list(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))
    auto_pad = call.attribute("auto_pad", "NOTSET")
    axes = [
        _axis(length, extent, stride, auto_pad, pad)
        for length, extent, stride, pad in zip(size, extents, strides, around, strict=True)
    ]
    rounds_up = bool(call.attribute("ceil_mode", 0))
    results = [
        _count(sum(axis) - extent, axis, stride, rounds_up)
        for axis, extent, stride in zip(axes, extents, strides, strict=True)
    ]
    if min(results, default=1) < 1:
        raise ValueError(f"a kernel of {list(kernel)} does not fit an input of {list(size)}")
    beyond = [
        max((count - 1) * stride + extent - sum(axis), 0)
        for count, stride, extent, axis in zip(results, strides, extents, axes, strict=True)
    ]
    ends = [end for _, _, end in axes]
    if (
        not rounds_up
    ):  # one window that is larger than all it has: ONNX Runtime takes the rest for padding
        ends, beyond = [end + past for end, past in zip(ends, beyond, strict=True)], [0] * len(ends)
    return Window(
        tuple(kernel),
        tuple(strides),
        tuple(dilations),
        tuple(begin for begin, _, _ in axes),
        tuple(ends),
        tuple(beyond),
        tuple(results),
    )


def _axis(
    length: int, extent: int, stride: int, auto_pad: str, pad: tuple[int, int]
) -> tuple[int, int, int]:
    """Return the pad before, the length, and the pad behind of one axis."""
    if auto_pad in ("NOTSET", ""):
        return pad[0], length, pad[1]
    if auto_pad == "VALID":
        return 0, length, 0
    total = max((-(-length // stride) - 1) * stride + extent - length, 0)
    less, more = total // 2, total - total // 2
    return (less, length, more) if auto_pad == "SAME_UPPER" else (more, length, less)


def _count(room: int, axis: tuple[int, int, int], stride: int, round_up: bool) -> int:
    """Return how many windows there are where the last may start ``room`` behind the first."""
    if not round_up:
        # Towards zero, as ONNX Runtime: a kernel that is too large by less than a stride has one window.
        return int(room / stride) + 1
    count = -(-room // stride) + 1
    begin, length, _ = axis
    # A window that starts behind the input would see nothing but padding.
    return count - 1 if (count - 1) * stride >= begin + length else count
