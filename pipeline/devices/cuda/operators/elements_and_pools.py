"""Launches of elementwise.cu, normalise.cu, softmax.cu, pooling.cu and reduce.cu.

A result may lie in the memory of an input of the result's own shape: every thread reads its element and
then writes it. Of other kernels only those of batch norms and, for what they add, convolutions do so.
"""

import math
from collections.abc import Mapping, Sequence
from typing import assert_never

import numpy as np

from models.network.activations import Activation
from models.network.node import NamedTensor, UnsuitedError
from models.network.operators.movement import broadcast_strides, strides_of
from models.network.operators.pooling import Reduced
from models.network.operators.reading import (
    BatchNorm,
    Combine,
    GroupNorm,
    Map,
    Pooling,
    Reduction,
    ResponseNorm,
    Softmax,
)
from pipeline.devices.cuda.call import KernelLaunch
from pipeline.devices.cuda.operators.launches import (
    StridedLayout,
    activation_arguments,
    collapse,
    members_of,
    per_element,
    per_group,
)
from pipeline.devices.cuda.scope import Scope
from pipeline.devices.interface.cuda import AFTER, ARITHMETIC, BEFORE, packed


def mapped(it: Map, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a function of each element."""
    return [_activated(it.x, it.y, it.function, scope)]


def combined(it: Combine, scope: Scope) -> list[KernelLaunch]:
    """Return the launches that join operands, one or more, from the left."""
    if it.kind not in ARITHMETIC:
        raise UnsuitedError(f"no kernel has {it.kind}")
    left, *others = it.operands
    if not others:
        return [_activated(left, it.y, it.activation, scope)]
    calls = []
    for right in others[:-1]:
        joined = scope.temporary(np.broadcast_shapes(left.shape, right.shape))
        calls.append(_joined(Combine(kind=it.kind, operands=(left, right), y=joined), scope))
        left = joined
    last = Combine(kind=it.kind, operands=(left, others[-1]), y=it.y, activation=it.activation)
    return [*calls, _joined(last, scope)]


def _activated(
    x: NamedTensor, y: NamedTensor, activation: Activation | None, scope: Scope
) -> KernelLaunch:
    count, end = math.prod(y.shape), activation_arguments(activation)
    pointers = scope.read(x), scope.write(y)
    return per_element("elementwise", "activate_elements", count, *pointers, count, *end)


def _joined(it: Combine, scope: Scope) -> KernelLaunch:
    """Return the launch for two operands, by the kernel for how they broadcast."""
    (a, b), shape = it.operands, it.y.shape
    count = math.prod(shape)
    pointers = scope.read(a), scope.read(b), scope.write(it.y)
    end = (ARITHMETIC.index(it.kind), *activation_arguments(it.activation))
    counts = math.prod(a.shape), math.prod(b.shape)
    if counts == (count, count):
        return per_element("elementwise", "binary", count, *pointers, count, *end)
    for left, other in ((0, b), (1, a)):
        parts = _period(other.shape, shape)
        if counts[left] == count and parts is not None:
            places = (*pointers[1::-1], pointers[2]) if left else pointers
            numbers = (count, *parts, left)
            return per_element("elementwise", "binary_periodic", count, *places, *numbers, *end)
    layout = collapse(shape, *(broadcast_strides(each.shape, shape) for each in it.operands))
    strides = dict(zip("ab", layout.strides, strict=True))
    members = packed("BroadcastLayout", rank=layout.rank, sizes=layout.sizes, **strides)
    return per_element("elementwise", "binary_broadcast", count, *pointers, members, count, *end)


def _period(shape: Sequence[int], target: Sequence[int]) -> tuple[int, int] | None:
    """Return how many neighbours share an element and how many elements come in turn, if so."""
    layout = collapse(target, broadcast_strides(shape, target))
    steps = layout.strides[0]
    moving = [axis for axis, step in enumerate(steps) if step]
    if not moving:
        return 1, 1
    if len(moving) > 1:
        return None
    # What is inside the moving axis is one axis at most, joined: all its strides are 0.
    return math.prod(layout.sizes[: moving[0]]), layout.sizes[moving[0]]


# Launches of kernels/normalise.cu and softmax.cu: norms, softmax.


def _channels(x: NamedTensor) -> tuple[int, int, int]:
    """Return how many elements [N, C, ...] has, its channels, and how many neighbours are of one."""
    return math.prod(x.shape), x.shape[1], math.prod(x.shape[2:])


def batch_norm(it: BatchNorm, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a batch norm and its activation."""
    count, *parts = _channels(it.x)
    vectors = [scope.read(each) for each in (it.scale, it.bias, it.mean, it.variance)]
    numbers = (count, *parts, it.epsilon, *activation_arguments(it.activation))
    pointers = scope.read(it.x), *vectors, scope.write(it.y)
    return [per_element("normalise", "batch_normalise", count, *pointers, *numbers)]


def group_norm(it: GroupNorm, scope: Scope) -> list[KernelLaunch]:
    """Return the launch that normalises groups of neighbours."""
    groups = math.prod(it.x.shape) // it.length
    parameters = scope.optional(it.scale), scope.optional(it.bias)
    pointers = scope.read(it.x), *parameters, scope.write(it.y)
    numbers = (it.length, it.channels, it.inner, it.epsilon)
    return [per_group("normalise", "group_normalise", groups, it.length, *pointers, *numbers)]


def response_norm(it: ResponseNorm, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a local response norm."""
    before = (it.size - 1) // 2
    count, *parts = _channels(it.x)
    numbers = (count, *parts, before, it.size - 1 - before)
    factors = (it.alpha / it.size, it.beta, it.bias)
    pointers = scope.read(it.x), scope.write(it.y)
    return [per_element("normalise", "response_normalise", count, *pointers, *numbers, *factors)]


def softmax(it: Softmax, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a softmax or its logarithm."""
    pointers, end = (scope.read(it.x), scope.write(it.y)), int(it.logarithm)
    length, rows = it.length, it.outer * it.inner
    if it.inner == 1:
        return [per_group("softmax", "softmax_rows", rows, length, *pointers, length, end)]
    numbers = (rows, length, it.inner, end)
    return [per_element("softmax", "softmax_columns", rows, *pointers, *numbers)]


# Launches of kernels/pooling.cu and reduce.cu: pools with a window, and whole axes to one number.

# Up to this many numbers one thread joins as fast as a warp does.
_SHORT = 16
# From this many neighbouring results on, a thread for each fills the GPU and reads in a row.
_MANY = 2048

#: How numbers are joined, what comes before (BEFORE) and after (AFTER).
_REDUCTIONS: Mapping[Reduced, tuple[str, str, str]] = {
    "largest": ("largest", "nothing", "nothing"),
    "magnitudes": ("sum", "magnitude", "nothing"),
    "mean": ("sum", "nothing", "mean"),
    "product": ("product", "nothing", "nothing"),
    "root_of_squares": ("sum", "square", "root"),
    "smallest": ("smallest", "nothing", "nothing"),
    "squares": ("sum", "square", "nothing"),
    "sum": ("sum", "nothing", "nothing"),
}


def pooled(it: Pooling, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a pool; every window touches the plane."""
    windows, count = it.windows.on_a_plane, math.prod(it.y.shape)
    bottom, right = windows.behind
    numbers = packed("Pool", **members_of(windows), pad_bottom=bottom, pad_right=right)
    pointers = scope.read(it.x), scope.write(it.y)
    match it.kind:
        case "largest":
            return [per_element("pooling", "max_pool", count, *pointers, numbers, count)]
        case "mean":
            counted = int(it.counts_padding)
            return [
                per_element("pooling", "average_pool", count, *pointers, numbers, counted, count)
            ]
        case kind:
            assert_never(kind)


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
    joined, before, after = _REDUCTIONS[it.kind]
    ends = BEFORE.index(before), AFTER.index(after)
    numbers = packed(
        "ReduceLayout",
        kept_rank=kept.rank,
        reduced_rank=gone.rank,
        kept_sizes=kept.sizes,
        kept_strides=kept.strides[0],
        reduced_sizes=gone.sizes,
        reduced_strides=gone.strides[0],
    )
    arguments = scope.read(it.x), scope.write(it.y), numbers, length
    neighbours = kept.strides[0][0] == 1 and results >= _MANY
    if length <= _SHORT or neighbours:
        name = f"reduce_short_{joined}"
        return [per_element("reduce", name, results, *arguments, results, *ends)]
    return [per_group("reduce", f"reduce_long_{joined}", results, length, *arguments, *ends)]


def _part(shape: Sequence[int], axes: Sequence[int]) -> StridedLayout:
    strides = strides_of(shape)
    return collapse([shape[axis] for axis in axes], [strides[axis] for axis in axes])
