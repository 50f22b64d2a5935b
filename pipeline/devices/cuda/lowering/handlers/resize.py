"""Resize and Upsample of the last one or two axes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.devices.cuda.call import Call
from pipeline.devices.cuda.calls.resize import Planes, Table, interpolate, pick
from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.handlers.base import Handler, axis_of
from pipeline.devices.cuda.lowering.handlers.resize_tables import (
    COORDINATES,
    ROUNDINGS,
    Axis,
    cubic,
    linear,
    nearest,
)
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.scope import Scope

# From here on the second input is a region of interest, scales are the third, and modes can be chosen.
_WITH_REGION = 11


@dataclass(frozen=True)
class _Modes:
    coordinates: str
    rounding: str


def _resize(node: Node, scope: Scope) -> list[Call]:
    node.require("antialias", 0)
    node.require("keep_aspect_ratio_policy", "stretch")
    node.require("coordinate_transformation_mode", "half_pixel", *COORDINATES)
    node.require("nearest_mode", "round_prefer_floor", *ROUNDINGS)
    shape, results = scope.shape(node.input(0)), scope.shape(node.output)
    scales = _scales(node, scope, shape, results)
    if results == shape:
        scales = (1.0,) * len(shape)  # ONNX Runtime copies, whatever the scales would say
    if any(scale != 1 for scale in scales[:-2]):
        raise UnsuitedError(f"scales {list(scales)}")
    axes = [Axis(*item) for item in zip(shape, results, scales, strict=True)]
    rows, columns = [Axis(1, 1, 1.0), *axes][-2:]
    planes = Planes(
        math.prod(shape) // (rows.length * columns.length),
        *(rows.length, columns.length, rows.result, columns.result),
    )
    return _launch(node, scope, planes, rows, columns)


def _scales(
    node: Node, scope: Scope, shape: Sequence[int], results: Sequence[int]
) -> tuple[float, ...]:
    """Return the scale of each axis: given, or what the sizes make it."""
    axes = node.attribute("axes") or range(len(shape))
    given = node.attribute("scales")
    if given is None:
        name = node.optional(1 if _is_old(node) else 2)
        array = None if name is None else scope.required(name)
        given = None if array is None or not array.size else array.tolist()
    if given is None:
        given = [results[axis] / shape[axis] for axis in axes]
    scales = [1.0] * len(shape)
    for axis, scale in zip(axes, given, strict=True):
        scales[axis_of(axis, len(shape))] = float(scale)
    return tuple(scales)


def _is_old(node: Node) -> bool:
    return node.operator == "Upsample" or node.opset < _WITH_REGION


def _modes(node: Node, shrinks: bool) -> _Modes:
    if _is_old(node):
        # ONNX Runtime rounds up where it leaves elements out.
        return _Modes("asymmetric", "ceil" if shrinks else "floor")
    return _Modes(
        node.attribute("coordinate_transformation_mode", "half_pixel"),
        node.attribute("nearest_mode", "round_prefer_floor"),
    )


def _launch(node: Node, scope: Scope, planes: Planes, rows: Axis, columns: Axis) -> list[Call]:
    x, y = scope.read(node.input(0)), scope.write(node.output)
    mode = node.attribute("mode", "nearest")
    axes = (rows, columns)
    modes = [_modes(node, axis.scale < 1) for axis in axes]
    if mode == "nearest":
        tables = [
            scope.table(nearest(axis, chosen.coordinates, chosen.rounding))
            for axis, chosen in zip(axes, modes, strict=True)
        ]
        return [pick(x, y, tables[0], tables[1], planes)]
    if mode == "cubic":
        a, excludes = node.attribute("cubic_coeff_a", -0.75), node.attribute("exclude_outside", 0)
        found = [cubic(axis, modes[0].coordinates, a, bool(excludes)) for axis in axes]
    else:
        node.require("mode", "linear", "bilinear")
        found = [linear(axis, modes[0].coordinates) for axis in axes]
    weighted = [
        Table(scope.table(indices), scope.table(weights), indices.shape[1])
        for indices, weights in found
    ]
    return [interpolate(x, y, weighted[0], weighted[1], planes)]


OPERATORS: dict[str, Handler] = {"Resize": _resize, "Upsample": _resize}
