"""Resize and Upsample: which elements each one of a result is made of, and with which weights.

Coordinates are computed in float32, as ONNX Runtime does: where one falls between two elements, its
rounding decides what nearest is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.names import Op
from models.network.node import NamedTensor, NodeReader, UnsuitedError, axis_of

Floats = NDArray[np.float32]
Indices = NDArray[np.int32]

# From here on the second input is a region of interest, scales are the third, and modes can be chosen.
_WITH_REGION = 11
# What is as near to the middle of two elements lies there, to ONNX Runtime.
_TIE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Resized:
    """For each element of an axis of a result those that it is made of, [result, taps].

    ``weights``: of the same shape; None: it is the one element.
    """

    indices: Indices
    weights: Floats | None = None

    def is_same(self, length: int) -> bool:
        """Return whether an axis of ``length`` stays as it is."""
        return self.factor(length) == 1

    def factor(self, length: int) -> int | None:
        """Return how often each element of an axis of ``length`` is repeated; None: not all as often."""
        first = self.indices[:, 0]
        factor, rest = divmod(len(first), length)
        plain = self.weights is None or not self.weights[:, 1:].any()
        repeated = np.repeat(np.arange(length), factor)
        return factor if plain and not rest and np.array_equal(first, repeated) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resize:
    """``y``, each of whose axes is made of the same axis of ``x``."""

    x: NamedTensor
    y: NamedTensor
    axes: tuple[Resized, ...]

    @property
    def factors(self) -> tuple[int, ...] | None:
        """How often elements are repeated along each axis; None: that is not all there is to it."""
        factors = [axis.factor(n) for axis, n in zip(self.axes, self.x.shape, strict=True)]
        known = [factor for factor in factors if factor]
        return tuple(known) if len(known) == len(factors) else None

    @property
    def of_planes(self) -> bool:
        """Whether all axes but the last two stay as they are."""
        lengths = zip(self.axes[:-2], self.x.shape[:-2], strict=True)
        return all(axis.is_same(length) for axis, length in lengths)


@dataclass(frozen=True, slots=True)
class _Axis:
    """``length`` elements become ``result`` of them; ``scale`` is about their quotient."""

    length: int
    result: int
    scale: float


def _align_corners(place: Floats, axis: _Axis) -> Floats:
    if axis.result == 1:
        return np.zeros_like(place)
    return place * np.float32(axis.length - 1) / np.float32(axis.result - 1)


def _half_pixel(place: Floats, axis: _Axis) -> Floats:
    return (place + np.float32(0.5)) / np.float32(axis.scale) - np.float32(0.5)


def _half_pixel_of_several(place: Floats, axis: _Axis) -> Floats:
    return _half_pixel(place, axis) if axis.result > 1 else np.zeros_like(place)


def _symmetric(place: Floats, axis: _Axis) -> Floats:
    """Keep the centre where it is, though the result's length was rounded; float64 to its end."""
    scale, length = np.float32(axis.scale), np.float32(axis.length)
    offset = length / np.float32(2) * (np.float32(1) - np.float32(axis.result) / (scale * length))
    centres = (place.astype(np.float64) + 0.5) / np.float64(scale)
    return np.asarray(np.float64(offset) + centres - 0.5).astype(np.float32)


#: By coordinate_transformation_mode: where on the input an element of the result lies.
_COORDINATES: Mapping[str, Callable[[Floats, _Axis], Floats]] = {
    "half_pixel": _half_pixel,
    "align_corners": _align_corners,
    "asymmetric": lambda place, axis: place / np.float32(axis.scale),
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": _half_pixel_of_several,
    "tf_half_pixel_for_nn": lambda place, axis: (place + np.float32(0.5)) / np.float32(axis.scale),
}
_ROUNDED: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "round_prefer_floor": lambda place: np.ceil(place - 0.5 - _TIE),
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda place: np.floor(place + 0.5 + _TIE),
}


def resize(read: NodeReader) -> Resize:
    """Resize and Upsample: to the nearest element, or weighted means of two or four along each axis."""
    read.require("antialias", 0)
    read.require("keep_aspect_ratio_policy", "stretch")
    read.require("mode", "nearest", "linear", "bilinear", "cubic")
    x = read.value(0)
    scales, result = _sizes(read, x.shape)
    if min(result, default=1) < 1:
        raise UnsuitedError(f"scales {list(scales)} leave nothing of {list(x.shape)}")
    if result == x.shape:
        scales = (1.0,) * len(result)  # ONNX Runtime copies, whatever the scales would say
    axes = (_Axis(*item) for item in zip(x.shape, result, scales, strict=True))
    return Resize(x=x, y=read.made(x, result), axes=tuple(_resized(read, axis) for axis in axes))


def _sizes(read: NodeReader, shape: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the scale of each axis and the length that it gets: one is given, the other follows."""
    axes = [axis_of(axis, len(shape)) for axis in read.attribute("axes") or range(len(shape))]
    scales, result = [1.0] * len(shape), list(shape)
    wanted = None if _is_old(read) or not read.has(3) else read.constant(3)
    if wanted is not None and wanted.size:
        for axis, length in zip(axes, wanted.tolist(), strict=True):
            scales[axis], result[axis] = length / shape[axis], int(length)
        return tuple(scales), tuple(result)
    given = read.attribute("scales")
    if given is None:
        given = read.constant(1 if _is_old(read) else 2).tolist()
    if len(given) != len(axes):
        raise UnsuitedError(f"scales {list(given)} for {list(shape)}")
    for axis, scale in zip(axes, given, strict=True):
        scales[axis] = float(scale)
        result[axis] = int(np.float32(shape[axis]) * np.float32(scale))
    return tuple(scales), tuple(result)


def _is_old(read: NodeReader) -> bool:
    return read.record.name is not Op.Resize or read.node.opset < _WITH_REGION


def _resized(read: NodeReader, axis: _Axis) -> Resized:
    mode = read.attribute("mode")
    defaults = ("half_pixel", "round_prefer_floor")
    if _is_old(read):
        defaults = ("asymmetric", "ceil" if axis.scale < 1 else "floor")
    # The blocked Upsample has the former of these attributes, too.
    coordinates = read.attribute("coordinate_transformation_mode", defaults[0])
    rounding = read.attribute("nearest_mode", defaults[1])
    if coordinates not in _COORDINATES or rounding not in _ROUNDED:
        raise UnsuitedError(f"coordinates {coordinates!r}, rounded by {rounding!r}")
    if axis.scale == 1:
        return Resized(np.arange(axis.result, dtype=np.int32)[:, None])
    places = _COORDINATES[coordinates](np.arange(axis.result, dtype=np.float32), axis)
    if mode == "nearest":
        rounded = _ROUNDED[rounding](places.astype(np.float64))
        return Resized(rounded.clip(0, axis.length - 1).astype(np.int32)[:, None])
    if mode == "cubic":
        slope = read.attribute("cubic_coeff_a", -0.75)
        return _cubic(places, axis, slope, bool(read.attribute("exclude_outside", 0)))
    return _linear(places, axis)


def _linear(places: Floats, axis: _Axis) -> Resized:
    """Return two neighbours for each element of the result, and their weights."""
    inside = places.clip(0, axis.length - 1)
    first = np.floor(inside).astype(np.int32)
    second = np.minimum(first + 1, axis.length - 1)
    share = (inside - first).astype(np.float32)
    return Resized(np.stack([first, second], 1), np.stack([1 - share, share], 1))


def _cubic(places: Floats, axis: _Axis, slope: float, exclude_outside: bool) -> Resized:
    """Return four neighbours for each element of the result, and their weights.

    ``slope``: of the kernel at distance 1. ``exclude_outside``: elements outside have no weight; otherwise
    they are as the nearest inside.
    """
    first = np.floor(places).astype(np.int32)[:, None] + np.arange(-1, 3, dtype=np.int32)
    distance: NDArray[Any] = np.abs(places[:, None] - first)
    near = ((slope + 2) * distance - (slope + 3)) * distance**2 + 1
    far = ((slope * distance - 5 * slope) * distance + 8 * slope) * distance - 4 * slope
    weights = np.where(distance <= 1, near, far).astype(np.float32)
    if exclude_outside:
        weights[(first < 0) | (first >= axis.length)] = 0
        weights /= weights.sum(1, keepdims=True)
    return Resized(first.clip(0, axis.length - 1), weights)
