"""Launches of kernels/pooling.cu and reduce.cu: pools with a window, and whole axes to one number."""

import math
from collections.abc import Mapping, Sequence

from models.network.node import UnsuitedError
from models.network.operators.movement import strides_of
from models.network.operators.pooling import Reduced
from models.network.operators.reading import Pooling, Reduction
from pipeline.devices.cuda.call import KernelLaunch
from pipeline.devices.cuda.operators.launches import StridedLayout, collapse, per_element, per_group
from pipeline.devices.cuda.scope import Scope

# Up to this many numbers one thread joins as fast as a warp does.
_SHORT = 16
# From this many neighbouring results on, a thread for each fills the GPU and reads in a row.
_MANY = 2048

# What is done to a number before it is joined to others, and to what they come to; as in reduce.cu.
_NOTHING, _SQUARE, _MAGNITUDE = range(3)
_MEAN, _ROOT = 1, 2
#: How numbers are joined, what comes before and after.
_REDUCTIONS: Mapping[Reduced, tuple[str, int, int]] = {
    "largest": ("largest", _NOTHING, _NOTHING),
    "magnitudes": ("sum", _MAGNITUDE, _NOTHING),
    "mean": ("sum", _NOTHING, _MEAN),
    "product": ("product", _NOTHING, _NOTHING),
    "root_of_squares": ("sum", _SQUARE, _ROOT),
    "smallest": ("smallest", _NOTHING, _NOTHING),
    "squares": ("sum", _SQUARE, _NOTHING),
    "sum": ("sum", _NOTHING, _NOTHING),
}


def pooled(it: Pooling, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a pool; every window touches the plane."""
    windows, count = it.windows.on_a_plane, math.prod(it.y.shape)
    sizes = (*windows.size, *windows.result, *windows.kernel, *windows.strides)
    numbers = (*sizes, *windows.before, *windows.behind, *windows.dilations)
    pointers = scope.read(it.x), scope.write(it.y)
    if it.kind == "largest":
        return [per_element("pooling", "max_pool", count, *pointers, numbers, count)]
    counted = int(it.counts_padding)
    return [per_element("pooling", "average_pool", count, *pointers, numbers, counted, count)]


def reduced(it: Reduction, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a reduction.

    Raises:
        UnsuitedError: too much to compute, or more than six axes that cannot be joined.
    """
    if it.kind not in _REDUCTIONS:
        raise UnsuitedError(f"no kernel has {it.kind}")
    shape = it.x.shape
    kept = _part(shape, [axis for axis in range(len(shape)) if axis not in it.axes])
    gone = _part(shape, it.axes)
    results, length = math.prod(kept.sizes), math.prod(gone.sizes)
    joined, *ends = _REDUCTIONS[it.kind]
    numbers = (kept.rank, gone.rank, *kept.numbers, *gone.numbers)
    arguments = scope.read(it.x), scope.write(it.y), numbers, length
    neighbours = kept.strides[0][0] == 1 and results >= _MANY
    if length <= _SHORT or neighbours:
        name = f"reduce_short_{joined}"
        return [per_element("reduce", name, results, *arguments, results, *ends)]
    return [per_group("reduce", f"reduce_long_{joined}", results, length, *arguments, *ends)]


def _part(shape: Sequence[int], axes: Sequence[int]) -> StridedLayout:
    strides = strides_of(shape)
    return collapse([shape[axis] for axis in axes], [strides[axis] for axis in axes])
