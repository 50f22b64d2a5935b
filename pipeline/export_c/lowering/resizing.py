"""Resize and Upsample: elements that are repeated are a copy, others lie between two rows and columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.lowering.movement import copy, strides_of
from pipeline.export_c.lowering.node import Operation, Shape, items
from pipeline.export_c.lowering.steps import After, Record, Value, Weight

Places = NDArray[np.float32]

_WITH_REGION = 11
_ONE = np.float32(1)
_HALF = np.float32(0.5)


def _half_pixel(place: Places, scale: np.float32, length: int, size: int) -> Places:
    return (place + _HALF) / scale - _HALF


def _half_pixel_of_several(place: Places, scale: np.float32, length: int, size: int) -> Places:
    return _half_pixel(place, scale, length, size) if length > 1 else 0 * place


def _asymmetric(place: Places, scale: np.float32, length: int, size: int) -> Places:
    return place / scale


def _corners(place: Places, scale: np.float32, length: int, size: int) -> Places:
    return place * np.float32(size - 1) / np.float32(length - 1) if length > 1 else 0 * place


#: By coordinate_transformation_mode: where on ``size`` elements those of a result of ``length`` lie.
_WAYS: Mapping[str, Callable[[Places, np.float32, int, int], Places]] = {
    "align_corners": _corners,
    "asymmetric": _asymmetric,
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _half_pixel_of_several,
}
_ROUNDED: Mapping[str, Callable[[Places], Places]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda place: np.floor(place + _HALF),
    "round_prefer_floor": lambda place: np.ceil(place - _HALF),
}
_STANDARD = {
    "antialias": 0,
    "axes": None,
    "exclude_outside": 0,
    "keep_aspect_ratio_policy": "stretch",
}


def resize(operation: Operation) -> None:
    """Upsample and Resize to the nearest element, or linear between rows and columns."""
    for name, default in _STANDARD.items():
        if operation.attribute(name, default) != default:
            operation.refuse(f"{name} {operation.attribute(name)}")
    shape = operation.shape(0)
    scales = _scales(operation, shape)
    if len(scales) != len(shape):
        operation.refuse(f"scales {scales} for {list(shape)}")
    made = tuple(_lengths(operation, shape, scales))
    resizes = operation.node.operator == "Resize" and operation.node.opset >= _WITH_REGION
    way = operation.attribute("coordinate_transformation_mode", "half_pixel")
    way = way if resizes else "asymmetric"
    mode = operation.attribute("mode", "nearest")
    if mode not in {"nearest", "linear"} or way not in _WAYS:
        operation.refuse(f"mode {mode}, {way}; nearest and linear can be exported")
    axes = [
        _WAYS[way](np.arange(length, dtype=np.float32), np.float32(scale), length, size)
        for length, scale, size in zip(made, scales, shape, strict=True)
    ]
    if mode == "nearest":
        rounding = operation.attribute("nearest_mode", "round_prefer_floor") if resizes else "floor"
        _nearest(operation, made, [_ROUNDED[rounding](axis) for axis in axes])
    else:
        _interpolated(operation, made, axes)


def _scales(operation: Operation, shape: Shape) -> list[float]:
    """Return the scale of each dimension, as it is given or as sizes say."""
    resizes = operation.node.operator == "Resize" and operation.node.opset >= _WITH_REGION
    sizes = operation.integers(3, "") if resizes else None
    if sizes:
        return [float(np.float32(n) / np.float32(m)) for n, m in zip(sizes, shape, strict=True)]
    scales = operation.optional(2 if resizes else 1)
    if scales is not None and scales.size:
        return [float(scale) for scale in scales]
    return [float(scale) for scale in operation.attribute("scales") or ()]


def _lengths(operation: Operation, shape: Shape, scales: Sequence[float]) -> list[int]:
    sizes = operation.integers(3, "") if operation.has(3) else None
    return sizes or [int(np.float32(n) * np.float32(s)) for n, s in zip(shape, scales, strict=True)]


def _nearest(operation: Operation, made: Shape, axes: Sequence[Places]) -> None:
    """Add a copy where elements are repeated, each as often; else rows and columns are looked up."""
    shape = operation.shape(0)
    picked = [
        np.clip(axis, 0, size - 1).astype(np.int32) for axis, size in zip(axes, shape, strict=True)
    ]
    factors = [length // size for length, size in zip(made, shape, strict=True)]
    if all(
        np.array_equal(numbers, np.repeat(np.arange(size), factor))
        for numbers, size, factor in zip(picked, shape, factors, strict=True)
    ):
        _repeated(operation, made, factors)
        return
    operation.floats(0)
    none = [np.zeros(len(numbers), np.float32) for numbers in picked]
    _between(operation, made, [(numbers, numbers) for numbers in picked], none)


def _repeated(operation: Operation, made: Shape, factors: Sequence[int]) -> None:
    # Each dimension as two: its elements, and how often each of them is repeated.
    shape, sizes, read = operation.shape(0), [], []
    for length, factor, stride in zip(shape, factors, strides_of(shape), strict=True):
        sizes += [length, factor]
        read += [stride, 0]
    operation.make(made, operation.array(0).dtype)
    copy(operation, sizes, (read, strides_of(sizes)), (0, 0))


def _interpolated(operation: Operation, made: Shape, axes: Sequence[Places]) -> None:
    operation.floats(0)
    pairs, parts = [], []
    for place, size in zip(axes, operation.shape(0), strict=True):
        inside = np.clip(place, 0, np.float32(size - 1))
        first = inside.astype(np.int32)
        pairs.append((first, np.minimum(first + 1, size - 1).astype(np.int32)))
        parts.append((inside - first).astype(np.float32))
    _between(operation, made, pairs, parts)


def _between(
    operation: Operation,
    made: Shape,
    pairs: Sequence[tuple[NDArray[np.int32], NDArray[np.int32]]],
    parts: Sequence[Places],
) -> None:
    """Add elements between two rows and columns: ``pairs`` of them and ``parts`` of the second, by axis."""
    shape = operation.shape(0)
    if len(shape) < _SIDES or any(
        not np.array_equal(first, np.arange(length)) or part.any()
        for (first, _), part, length in zip(
            pairs[:-_SIDES], parts[:-_SIDES], shape[:-_SIDES], strict=True
        )
    ):
        operation.refuse(f"{list(shape)} to {list(made)}; the last two dimensions can be resized")
    sides: list[Weight] = []
    for (first, second), part in zip(pairs[-_SIDES:], parts[-_SIDES:], strict=True):
        sides += [_held(np.stack([first, second], axis=1)), _held(part)]
    fields = {
        "planes": items(made[:-_SIDES]),
        "size_y": shape[-2],
        "size_x": shape[-1],
        "result_y": made[-2],
        "result_x": made[-1],
    }
    name = operation.make(made)
    read = operation.operand(0)
    operation.step("resize", read, *sides, Value(name), Record("resizing", fields), after=After())


_SIDES = 2


def _held(array: NDArray[Any]) -> Weight:
    return Weight(np.ascontiguousarray(array))
