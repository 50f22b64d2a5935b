"""Operators that only move elements, of any size: reorder, cut, join, repeat."""

import itertools
from collections.abc import Sequence

import numpy as np

from pipeline.devices.cuda.call import Call
from pipeline.devices.cuda.calls.layouts import broadcast, contiguous
from pipeline.devices.cuda.calls.strided import ITEM_BYTES, View, copy, gather, whole
from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.handlers.base import Handler, axis_of
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.scope import Scope


def item_bytes(scope: Scope, name: str) -> int:
    """Return the size of an element of a tensor.

    Raises:
        UnsuitedError: no kernel copies elements of this size.
    """
    dtype = scope.value(name).dtype
    if dtype.itemsize not in ITEM_BYTES:
        raise UnsuitedError(f"{dtype.name} elements")
    return dtype.itemsize


def _copied(
    scope: Scope, x: str, y: str, shape: Sequence[int], strides: Sequence[int], offset: int = 0
) -> list[Call]:
    """Return the copy of a view of ``x`` to all of ``y``, whose axes are as of ``shape``."""
    view = View(scope.read(x), tuple(strides), offset)
    return [copy(shape, view, whole(scope.write(y), shape), item_bytes(scope, x))]


def _transpose(node: Node, scope: Scope) -> list[Call]:
    x, y = node.input(0), node.output
    strides = contiguous(scope.value(x).shape)
    order = node.attribute("perm") or list(reversed(range(len(strides))))
    return _copied(scope, x, y, scope.value(y).shape, [strides[axis] for axis in order])


def _concat(node: Node, scope: Scope) -> list[Call]:
    y = node.output
    shape = scope.value(y).shape
    axis = axis_of(node.attribute("axis", 1), len(shape))
    strides = contiguous(shape)
    target = scope.write(y)
    calls, offset = [], 0
    for x in filter(None, node.inputs):
        part = scope.value(x).shape
        view = View(target, strides, offset)
        calls.append(copy(part, whole(scope.read(x), part), view, item_bytes(scope, x)))
        offset += part[axis] * strides[axis]
    return calls


def _split(node: Node, scope: Scope) -> list[Call]:
    x = node.input(0)
    shape = scope.value(x).shape
    axis = axis_of(node.attribute("axis", 0), len(shape))
    strides = contiguous(shape)
    calls, offset = [], 0
    for y in node.outputs:
        part = scope.value(y).shape
        calls += _copied(scope, x, y, part, strides, offset)
        offset += part[axis] * strides[axis]
    return calls


def _slice(node: Node, scope: Scope) -> list[Call]:
    """Slice: bounds beyond the input are cut to it, negative ones count from its end."""
    x, y = node.input(0), node.output
    shape = scope.value(x).shape
    starts = scope.listed(node, 1, "starts")
    axes = scope.integers(node, 3, "axes") or range(len(starts))
    steps = scope.integers(node, 4, "steps") or [1] * len(starts)
    strides = list(contiguous(shape))
    offset = 0
    for start, axis, step in zip(starts, axes, steps, strict=True):
        place = axis_of(axis, len(shape))
        length = shape[place]
        first = start + length if start < 0 else start
        # What lies beyond is cut to the last element where steps are back, else past it.
        first = min(max(first, 0), length - 1 if step < 0 else length)
        offset += first * strides[place]
        strides[place] *= step
    return _copied(scope, x, y, scope.value(y).shape, strides, offset)


def _expand(node: Node, scope: Scope) -> list[Call]:
    x, y = node.input(0), node.output
    shape = scope.value(y).shape
    return _copied(scope, x, y, shape, broadcast(scope.value(x).shape, shape))


def _tile(node: Node, scope: Scope) -> list[Call]:
    """Tile: every axis becomes two, the copies and what is copied."""
    x, y = node.input(0), node.output
    shape = scope.value(x).shape
    repeats = scope.listed(node, 1, "repeats")
    pairs = zip(repeats, shape, contiguous(shape), strict=True)
    axes = [axis for times, n, step in pairs for axis in ((times, 0), (n, step))]
    return _copied(scope, x, y, [n for n, _ in axes], [step for _, step in axes])


def _depth_to_space(node: Node, scope: Scope) -> list[Call]:
    node.require("mode", "DCR", "CRD")
    x, y = node.input(0), node.output
    batch, channels, height, width = scope.value(x).shape
    block = int(node.attribute("blocksize"))
    depth = channels // block**2
    if node.attribute("mode", "DCR") == "DCR":
        axes, order = (batch, block, block, depth, height, width), (0, 3, 4, 1, 5, 2)
    else:
        axes, order = (batch, depth, block, block, height, width), (0, 1, 4, 2, 5, 3)
    return _reordered(scope, x, y, axes, order)


def _space_to_depth(node: Node, scope: Scope) -> list[Call]:
    x, y = node.input(0), node.output
    batch, channels, height, width = scope.value(x).shape
    block = int(node.attribute("blocksize"))
    axes = (batch, channels, height // block, block, width // block, block)
    return _reordered(scope, x, y, axes, (0, 3, 5, 1, 2, 4))


def _reordered(
    scope: Scope, x: str, y: str, axes: Sequence[int], order: Sequence[int]
) -> list[Call]:
    """Return the copy of ``x``, seen with ``axes``, in another order of them."""
    strides = contiguous(axes)
    return _copied(scope, x, y, [axes[i] for i in order], [strides[i] for i in order])


def _gather(node: Node, scope: Scope) -> list[Call]:
    """Gather: places in equal steps are a slice, others a table."""
    x, y = node.input(0), node.output
    shape = scope.value(x).shape
    axis = axis_of(node.attribute("axis", 0), len(shape))
    places = [axis_of(place, shape[axis]) for place in scope.required(node.input(1)).flat]
    steps = {second - first for first, second in itertools.pairwise(places)}
    if len(steps) <= 1:
        strides = list(contiguous(shape))
        offset = places[0] * strides[axis]
        strides[axis] *= steps.pop() if steps else 1
        part = (*shape[:axis], len(places), *shape[axis + 1 :])
        return _copied(scope, x, y, part, strides, offset)
    if item_bytes(scope, x) != 4:
        raise UnsuitedError(f"{scope.value(x).dtype.name} elements")
    table = scope.table(np.array(places, np.int32))
    return [gather(scope.read(x), scope.write(y), table, shape, axis, len(places))]


OPERATORS: dict[str, Handler] = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Gather": _gather,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Tile": _tile,
    "Transpose": _transpose,
}
