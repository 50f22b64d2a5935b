"""Pad: a constant around anything, or what is in a plane repeated around it."""

import math
from collections.abc import Sequence

import numpy as np

from pipeline.devices.cuda.call import Call
from pipeline.devices.cuda.calls.layouts import contiguous
from pipeline.devices.cuda.calls.resize import Planes, pick
from pipeline.devices.cuda.calls.strided import View, copy, fill
from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.handlers.base import Handler, axis_of
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.scope import Scope

Pads = list[tuple[int, int]]


def _pad(node: Node, scope: Scope) -> list[Call]:
    node.require("mode", "constant", "edge", "reflect", "wrap")
    shape = scope.shape(node.input(0))
    pads = _pads(node, scope, len(shape))
    if all(pad == (0, 0) for pad in pads[:-2]):
        return _planes(node, scope, shape, pads)
    if node.attribute("mode", "constant") != "constant":
        raise UnsuitedError(f"{node.attribute('mode')} around more than two axes")
    return _constant(node, scope, shape, pads)


def _pads(node: Node, scope: Scope, rank: int) -> Pads:
    """Return what comes before and behind each axis; negative: what is cut off."""
    numbers = scope.listed(node, 1, "pads")
    axes = scope.integers(node, 3, "axes") or range(rank)
    pads = [(0, 0)] * rank
    half = len(numbers) // 2
    for axis, begin, end in zip(axes, numbers[:half], numbers[half:], strict=True):
        pads[axis_of(axis, rank)] = (begin, end)
    return pads


def _value(node: Node, scope: Scope) -> float:
    name = node.optional(2)
    return float(node.attribute("value", 0.0) if name is None else scope.required(name).item())


def _planes(node: Node, scope: Scope, shape: Sequence[int], pads: Pads) -> list[Call]:
    """Return the launch for pads around the last two axes: a table of what each place shows."""
    mode = node.attribute("mode", "constant")
    lengths = (1, *shape)[-2:]
    rows, columns = (
        _sources(length, *pad, mode)
        for length, pad in zip(lengths, [(0, 0), *pads][-2:], strict=True)
    )
    planes = Planes(math.prod(shape[:-2]), lengths[0], lengths[1], rows.size, columns.size)
    x, y = scope.read(node.input(0)), scope.write(node.output)
    tables = (scope.table(rows), scope.table(columns))
    return [pick(x, y, *tables, planes, _value(node, scope))]


def _sources(
    length: int, begin: int, end: int, mode: str
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return, for each place of a padded axis, the place it shows; -1: a constant."""
    places = np.arange(-begin, length + end)
    if mode == "constant":
        places[(places < 0) | (places >= length)] = -1
    elif mode == "edge":
        places = places.clip(0, length - 1)
    elif mode == "wrap":
        places %= length
    elif length > 1:
        period = 2 * (length - 1)
        places = np.abs((places + length - 1) % period - (length - 1))
    else:
        places[:] = 0
    return places.astype(np.int32)


def _constant(node: Node, scope: Scope, shape: Sequence[int], pads: Pads) -> list[Call]:
    """Return the launches that fill the result and then copy what is kept into it."""
    results = scope.shape(node.output)
    x, y = scope.read(node.input(0)), scope.write(node.output)
    strides, steps = contiguous(shape), contiguous(results)
    ends = [-max(-end, 0) for _, end in pads]
    kept = [n - max(-begin, 0) + end for n, (begin, _), end in zip(shape, pads, ends, strict=True)]
    source = sum(max(-begin, 0) * step for (begin, _), step in zip(pads, strides, strict=True))
    target = sum(max(begin, 0) * step for (begin, _), step in zip(pads, steps, strict=True))
    views = (View(x, strides, source), View(y, steps, target))
    return [fill(y, math.prod(results), _value(node, scope)), copy(kept, *views, 4)]


OPERATORS: dict[str, Handler] = {"Pad": _pad}
