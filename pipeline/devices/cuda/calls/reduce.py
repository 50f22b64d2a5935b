"""Launches of kernels/reduce.cu: sums, means, maxima ... over some axes of a tensor."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.launches import per_element, per_group
from pipeline.devices.cuda.calls.layouts import Layout, collapse, contiguous

# Up to this many numbers one thread joins as fast as a warp does.
_SHORT = 16
# From this many neighbouring results on, a thread for each fills the GPU and reads in a row.
_MANY = 2048


class Before(IntEnum):
    """What is done to a number before it is joined to others; as in the kernel."""

    NOTHING = 0
    SQUARE = 1
    MAGNITUDE = 2


class After(IntEnum):
    """What is done to what all numbers were joined to; as in the kernel."""

    NOTHING = 0
    MEAN = 1
    ROOT = 2


@dataclass(frozen=True)
class Reduction:
    """``joined``: sum, product, largest, smallest."""

    joined: str
    before: Before = Before.NOTHING
    after: After = After.NOTHING


def reduce(
    x: Pointer, y: Pointer, shape: Sequence[int], axes: Sequence[int], reduction: Reduction
) -> Call:
    """Return the launch that reduces ``axes`` (not negative) of a float32 tensor of ``shape``.

    Raises:
        ValueError: nothing or too much to compute, or more than six axes that cannot be joined.
    """
    strides = contiguous(shape)
    kept = _part(shape, strides, [axis for axis in range(len(shape)) if axis not in axes])
    reduced = _part(shape, strides, axes)
    results, length = math.prod(kept.sizes), math.prod(reduced.sizes)
    numbers = (kept.rank, reduced.rank, *kept.numbers, *reduced.numbers)
    ends = (int(reduction.before), int(reduction.after))
    neighbours = kept.strides[0][0] == 1 and results >= _MANY
    if length <= _SHORT or neighbours:
        name = f"reduce_short_{reduction.joined}"
        return per_element("reduce", name, results, x, y, numbers, length, results, *ends)
    name = f"reduce_long_{reduction.joined}"
    return per_group("reduce", name, results, length, x, y, numbers, length, *ends)


def _part(shape: Sequence[int], strides: Sequence[int], axes: Sequence[int]) -> Layout:
    chosen = sorted(axes)
    return collapse([shape[axis] for axis in chosen], [strides[axis] for axis in chosen])
