"""Which elements a resized axis reads, and with which weights.

Coordinates are computed in float32, as ONNX Runtime does: where one falls between two elements, its
rounding decides what nearest is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Indices = NDArray[np.int32]


@dataclass(frozen=True)
class Axis:
    """``length`` elements become ``result`` of them; ``scale`` is about their quotient."""

    length: int
    result: int
    scale: float


def _align_corners(place: Floats, axis: Axis) -> Floats:
    if axis.result == 1:
        return np.zeros_like(place)
    return place * np.float32(axis.length - 1) / np.float32(axis.result - 1)


def _half_pixel(place: Floats, axis: Axis) -> Floats:
    return (place + np.float32(0.5)) / np.float32(axis.scale) - np.float32(0.5)


def _symmetric(place: Floats, axis: Axis) -> Floats:
    """Keep the centre where it is, though the result's length was rounded; float64 to its end."""
    scale, length = np.float32(axis.scale), np.float32(axis.length)
    offset = length / np.float32(2) * (np.float32(1) - np.float32(axis.result) / (scale * length))
    centres = (place.astype(np.float64) + 0.5) / np.float64(scale)
    return np.asarray(np.float64(offset) + centres - 0.5).astype(np.float32)


#: By coordinate_transformation_mode: where on the input an element of the result lies.
COORDINATES: dict[str, Callable[[Floats, Axis], Floats]] = {
    "align_corners": _align_corners,
    "asymmetric": lambda place, axis: place / np.float32(axis.scale),
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda place, axis: (
        _half_pixel(place, axis) if axis.result > 1 else np.zeros_like(place)
    ),
    "tf_half_pixel_for_nn": lambda place, axis: (place + np.float32(0.5)) / np.float32(axis.scale),
}

# What is as near to the middle of two elements lies there, to ONNX Runtime.
_TIE = 1e-6

_ROUNDED: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda place: np.ceil(place - 0.5 - _TIE),
    "round_prefer_ceil": lambda place: np.floor(place + 0.5 + _TIE),
}
ROUNDINGS = tuple(_ROUNDED)


def coordinates(axis: Axis, mode: str) -> Floats:
    """Return where on the axis each element of the result lies, float32 [result]."""
    places = np.arange(axis.result, dtype=np.float32)
    return places if axis.scale == 1 else COORDINATES[mode](places, axis)


def nearest(axis: Axis, mode: str, rounding: str) -> Indices:
    """Return the element that each one of the result is, [result]."""
    rounded = _ROUNDED[rounding](coordinates(axis, mode).astype(np.float64))
    return rounded.clip(0, axis.length - 1).astype(np.int32)


def linear(axis: Axis, mode: str) -> tuple[Indices, Floats]:
    """Return two neighbours for each element of the result and their weights, [result, 2]."""
    places = coordinates(axis, mode).clip(0, axis.length - 1)
    first = np.floor(places).astype(np.int32)
    second = np.minimum(first + 1, axis.length - 1)
    share = (places - first).astype(np.float32)
    return np.stack([first, second], 1), np.stack([1 - share, share], 1)


def cubic(axis: Axis, mode: str, a: float, exclude_outside: bool) -> tuple[Indices, Floats]:
    """Return four neighbours for each element of the result and their weights, [result, 4].

    Args:
        axis: what becomes what.
        mode: of coordinates.
        a: the slope of the kernel at distance 1.
        exclude_outside: elements outside have no weight; otherwise they are as the nearest inside.
    """
    places = coordinates(axis, mode)
    first = np.floor(places).astype(np.int32)[:, None] + np.arange(-1, 3, dtype=np.int32)
    distance: NDArray[Any] = np.abs(places[:, None] - first)
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    weights = np.where(distance <= 1, near, far).astype(np.float32)
    if exclude_outside:
        weights[(first < 0) | (first >= axis.length)] = 0
        weights /= weights.sum(1, keepdims=True)
    return first.clip(0, axis.length - 1), weights
