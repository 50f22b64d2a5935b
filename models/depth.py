"""Networks that estimate depth: the recipe of their output, and depth over photographs made from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.images.placement import ImagePlacement, Size
from models.records import Record

Floats = NDArray[np.float32]

# Of a photograph's depth so many pixels, or one row, are made at a time.
_BAND_PIXELS = 1 << 14
# Weights of a cubic convolution (Keys 1981) with the parameter that PyTorch's interpolate has.
_CUBIC = -0.75
_TAPS = 4
# Of a band's pixels, float32: four rows of the network for each of its own, and as many products; the band,
# one product, and what becomes of it.
_BAND_COPIES = 2 * _TAPS + 4
# Of a column or row: positions of its taps and their weights, and float64 while they are made.
_TAP_BYTES = 8 * _TAPS + 8 * (2 * _TAPS + 4)
_FLOAT_BYTES = 4
# Beyond, a cubic between two numbers, or the difference of two, may be infinite.
_LIMIT = float(np.finfo(np.float32).max) / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth(Record):
    """How ``output``, float32[1, rows, columns] or with an axis of one for channels, is depth.

    What the numbers are, a distance or its inverse up to a factor, is the network's own.
    """

    output: str

    def area(self, dtype: str, shape: Sequence[int]) -> tuple[int, int] | None:
        """Return rows and columns of an output of this type and shape; None: it is no depth."""
        if dtype != "float32" or min(shape, default=0) < 1 or any(n != 1 for n in shape[:-2]):
            return None
        return (shape[-2], shape[-1]) if len(shape) in (3, 4) else None


def depth_fault(depth: Depth, outputs: Mapping[str, tuple[str, tuple[int, ...]]]) -> str | None:
    """Return why none of ``outputs`` (name: dtype, shape) is what the recipe says; None: one is."""
    where = f"depth: output {depth.output!r}"
    if depth.output not in outputs:
        return f"{where}: no such output; there are {', '.join(map(repr, outputs))}"
    dtype, shape = outputs[depth.output]
    if depth.area(dtype, shape) is None:
        return f"{where} is {dtype}{list(shape)}; it is float32[1, rows, columns]"
    return None


def depth_of(depth: Depth, output: NDArray[np.float32]) -> Floats | None:
    """Return a copy of ``output`` as [rows, columns]; None: a number is NaN, infinite or near to that."""
    area = depth.area(output.dtype.name, output.shape)
    assert area is not None
    is_finite = output.min() > -_LIMIT and output.max() < _LIMIT  # NaN is not
    return output.reshape(area).copy() if is_finite else None


class DepthRange(NamedTuple):
    """The least and the greatest number of a map, which become 0 and the largest value of a pixel."""

    minimum: float
    maximum: float

    def pixels(self, band: Floats, max_pixel: int) -> Floats:
        """Return ``band`` from 0 to ``max_pixel``, not rounded; 0 where all of the map is equal."""
        extent = np.float32(self.maximum) - np.float32(self.minimum)
        if not extent > 0:
            return np.zeros_like(band)
        scaled = band - np.float32(self.minimum)
        scaled /= extent
        scaled *= np.float32(max_pixel)
        return scaled


def depth_bytes(area: tuple[int, int], size: Size) -> int:
    """Return what depth of ``area`` (rows, columns) takes over a photograph of ``size``, row by row.

    The map is there twice where the photograph is narrow and a band has all of its rows.
    """
    band_pixels = max(_BAND_PIXELS, size[0])
    return (
        2 * _FLOAT_BYTES * area[0] * area[1]
        + _FLOAT_BYTES * _BAND_COPIES * band_pixels
        + _TAP_BYTES * (size[0] + size[1])
    )


@dataclass(frozen=True)
class DepthMap:
    """Depth at each pixel of ``size`` (width, height), made of ``values`` [rows, columns] as it is read.

    ``columns``, ``rows``: which of ``values`` weigh, and how much, for each column and row of ``size``;
    None: it is as the network sees it.
    """

    values: Floats
    size: Size
    columns: "_Taps | None" = None
    rows: "_Taps | None" = None

    @classmethod
    def of_photograph(cls, values: Floats, placement: ImagePlacement, size: Size) -> "DepthMap":
        """Return depth over a photograph of ``size`` that lies in the input at ``placement``.

        Between the network's pixels it is cubic, as PyTorch's interpolate makes it without aligned corners,
        and transformers' pipeline of a photograph that fills the input. Beyond the network's edges its
        outermost pixels go on.
        """
        across, down = (
            _Taps.of(length, corner, extent, there)
            for length, corner, extent, there in zip(
                size, placement.corner, placement.extent, values.shape[::-1], strict=True
            )
        )
        return cls(values, size, across, down)

    @classmethod
    def of_network(cls, values: Floats) -> "DepthMap":
        """Return depth as the network sees it, with what is around the photograph."""
        height, width = values.shape
        return cls(values, (width, height))

    def bands(self) -> Iterator[Floats]:
        """Yield all of its rows, some at a time: float32[rows, width], a few thousand pixels or one row."""
        width, height = self.size
        step = max(1, _BAND_PIXELS // width)
        for start in range(0, height, step):
            yield self._band(start, min(start + step, height))

    def _band(self, start: int, end: int) -> Floats:
        if self.columns is None or self.rows is None:
            return self.values[start:end]
        band = np.zeros((end - start, self.size[0]), np.float32)
        weights = self.rows.weights[:, start:end]
        rows, positions = np.unique(self.rows.indices[:, start:end], return_inverse=True)
        wide = self.columns.weighed(self.values[rows])
        for position, weight in zip(positions.reshape(weights.shape), weights, strict=True):
            product = wide[position]
            product *= weight[:, None]
            band += product
        return band

    def range(self) -> "DepthRange":
        """Return the least and the greatest of all its numbers; all rows are made for that."""
        minimum, maximum = np.inf, -np.inf
        for band in self.bands():
            minimum, maximum = min(minimum, float(band.min())), max(maximum, float(band.max()))
        return DepthRange(minimum, maximum)


class _Taps(NamedTuple):
    """The four neighbours of each new pixel along an axis: int32 and float32, [4, length]."""

    indices: NDArray[np.int32]
    weights: Floats

    @classmethod
    def of(cls, length: int, corner: float, extent: float, there: int) -> "_Taps":
        """Return those of ``length`` pixels whose whole lies at ``corner`` in ``there`` pixels."""
        positions = ((np.arange(length) + 0.5) / length * extent + corner) * there - 0.5
        first = np.floor(positions)
        past = positions - first
        weights = np.stack(
            [_outer(1 + past), _inner(past), _inner(1 - past), _outer(2 - past)]
        ).astype(np.float32)
        offsets = np.arange(-1, _TAPS - 1)[:, None]
        indices = np.clip(first + offsets, 0, there - 1).astype(np.int32)
        return cls(indices, weights)

    def weighed(self, rows: Floats) -> Floats:
        """Return ``rows`` [n, there] at the new length: [n, length]."""
        wide = np.zeros((len(rows), self.indices.shape[1]), np.float32)
        for index, weight in zip(self.indices, self.weights, strict=True):
            product = rows[:, index]
            product *= weight
            wide += product
        return wide


def _inner(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    return ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1


def _outer(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    return ((_CUBIC * distance - 5 * _CUBIC) * distance + 8 * _CUBIC) * distance - 4 * _CUBIC
