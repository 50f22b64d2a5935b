"""Bilinear resizing without antialiasing, as Darknet and as OpenCV do it, a few rows at a time.

Pixels are RGB of eight bits; sizes are (width, height). Pillow's own filters, which weigh all pixels that
become one, are in ``preprocess.py``.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from models.images.placement import Size

# 3 MB, for a process that only reads recipes.
if TYPE_CHECKING:
    from PIL.Image import Image

Window = tuple[int, int, int, int]

# Rows of the result that are made at a time, and rows of the source that are in memory twice meanwhile.
_BAND_ROWS, _SOURCE_ROWS = 32, 64
#: Pillow has four bytes a pixel of RGB.
PILLOW_BYTES = 4
#: Numbers of a pixel that are computed with, and bytes of each.
_CHANNELS, _NUMBER_BYTES = 3, 4


@dataclass(frozen=True)
class _Positions:
    """Between which pixels of the source each result lies along an axis, and how far towards the second."""

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    share: NDArray[np.float32]

    def part(self, start: int, stop: int) -> "_Positions":
        return _Positions(self.first[start:stop], self.second[start:stop], self.share[start:stop])


class _Resize:
    """The part ``window`` of ``image`` (RGB) resized to ``size`` (width, height), made row by row.

    ``window`` is left, top, right, bottom in pixels of the result (half-open, all of it when None);
    nothing else is computed. Keeps the image.
    """

    def __init__(self, image: "Image", size: Size, window: Window | None = None) -> None:
        left, top, right, bottom = window or (0, 0, *size)
        self._image = image
        self.height, self.width = bottom - top, right - left
        #: How many rows to ask for at once.
        self.band_rows = max(1, min(_BAND_ROWS, _SOURCE_ROWS * size[1] // image.height))
        self._columns = self._positions(image.width, size[0], np.arange(left, right))
        self._rows = self._positions(image.height, size[1], np.arange(top, bottom))
        #: What is held.
        self.n_bytes = image.width * image.height * PILLOW_BYTES

    def _positions(self, old: int, new: int, indices: NDArray[np.intp]) -> _Positions:
        """Return where the results ``indices`` of ``new`` lie among ``old`` pixels."""
        raise NotImplementedError

    def _between(self, rows: _Positions) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the first and the second row of the source for each result, with columns resized."""
        # Each row of the source is resized once, however many rows of the result lie around it.
        wanted, places = np.unique(np.concatenate([rows.first, rows.second]), return_inverse=True)
        across = self._across(wanted)
        count = len(rows.first)
        return across[places[:count]], across[places[count:]]

    def _across(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return ``rows`` of the source with as many columns as the result has."""
        raise NotImplementedError

    def _pair(self, rows: NDArray[np.intp], dtype: type) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the first and the second pixel for each column of the result, of ``rows``."""
        start, end = int(self._columns.first[0]), int(self._columns.second[-1]) + 1
        low, high = int(rows[0]), int(rows[-1]) + 1
        band = np.asarray(self._image.crop((start, low, end, high)))
        pixels = band if len(rows) == high - low else band[rows - low]
        near = pixels.take(self._columns.first - start, axis=1)
        far = pixels.take(self._columns.second - start, axis=1)
        return near.astype(dtype), far.astype(dtype)


class CornerResize(_Resize):
    """Darknet's resize_image: between the corners of the image, in floating point, not rounded.

    Pixel 0 stays on pixel 0 and the last on the last.
    """

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """Return rows [first, end): float32 [rows, columns, 3] from 0 to 255, not rounded."""
        rows = self._rows.part(first, end)
        above, below = self._between(rows)
        return self._mixed(above, below, rows.share[:, None, None])

    def _across(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        near, far = self._pair(rows, np.float32)
        return self._mixed(near, far, self._columns.share[:, None])

    @staticmethod
    def _mixed(
        near: NDArray[np.float32], far: NDArray[np.float32], share: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        far -= near
        far *= share
        far += near
        return far

    def _positions(self, old: int, new: int, indices: NDArray[np.intp]) -> _Positions:
        """The last result is the last source pixel, also where it is the only one."""
        scale = np.float32(old - 1) / np.float32(max(new - 1, 1))
        exact = indices.astype(np.float32) * scale
        index = np.minimum(exact.astype(np.intp), max(old - 2, 0))
        index[indices == new - 1] = old - 1
        share = (exact - index.astype(np.float32)).clip(0, 1)
        share[indices == new - 1] = 0
        return _Positions(index, np.minimum(index + 1, old - 1), share)


class OpenCvResize(_Resize):
    """OpenCV's INTER_LINEAR of eight bits: between the centres of pixels, in whole numbers.

    Weights are 2,048ths, rounded as in ``VResizeLinear`` of ``resize.cpp``: bits are those of OpenCV 5.0.
    """

    _BITS = 11

    def rows(self, first: int, end: int) -> NDArray[np.uint8]:
        """Return rows [first, end): uint8 [rows, columns, 3]."""
        rows = self._rows.part(first, end)
        above, below = self._between(rows)
        near, far = self._weights(rows.share[:, None, None])
        above *= near
        above >>= 16
        below *= far
        below >>= 16
        above += below
        above += 2
        above >>= 2
        return above.astype(np.uint8)

    def _across(self, rows: NDArray[np.intp]) -> NDArray[np.int32]:
        left, right = self._pair(rows, np.int32)
        near, far = self._weights(self._columns.share[:, None])
        left *= near
        right *= far
        left += right
        left >>= 4
        return left

    @classmethod
    def _weights(cls, share: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the weights of the first and of the second pixel."""
        one = np.float32(1 << cls._BITS)
        near, far = np.rint((1 - share) * one), np.rint(share * one)
        return near.astype(np.int32), far.astype(np.int32)

    def _positions(self, old: int, new: int, indices: NDArray[np.intp]) -> _Positions:
        exact = ((indices + 0.5) * (old / new) - 0.5).astype(np.float32)
        index = np.floor(exact).astype(np.intp)
        share = exact - index.astype(np.float32)
        first, second = index.clip(0, old - 1), (index + 1).clip(0, old - 1)
        return _Positions(first, second, share)


class ResizedPixels:
    """The rows of a resize that has been made; each is asked for a few times."""

    def __init__(self, resize: CornerResize | OpenCvResize) -> None:
        self.band_rows = _BAND_ROWS
        dtype = np.uint8 if isinstance(resize, OpenCvResize) else np.float32
        self._rows = np.empty((resize.height, resize.width, _CHANNELS), dtype)
        self.n_bytes = self._rows.nbytes
        for start in range(0, resize.height, resize.band_rows):
            end = min(start + resize.band_rows, resize.height)
            self._rows[start:end] = resize.rows(start, end)

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """Return rows [first, end) of it."""
        return self._rows[first:end].astype(np.float32)


def corner_resized(
    image: "Image", size: Size, window: Window | None = None
) -> CornerResize | ResizedPixels:
    """Return what takes less: a `CornerResize`, with the image that it is made of, or its rows."""
    resize = CornerResize(image, size, window)
    of_result = result_bytes(resize.width, resize.height)
    return resize if resize.n_bytes <= of_result else ResizedPixels(resize)


def result_bytes(width: int, height: int) -> int:
    """Return what the rows of a `CornerResize` of that size take."""
    return width * height * _CHANNELS * _NUMBER_BYTES


def band_bytes(old: int, new: int) -> int:
    """Return what making some rows takes, from rows of ``old`` pixels to rows of ``new``."""
    rows_bytes = _CHANNELS * new * _NUMBER_BYTES * (2 * _SOURCE_ROWS + 3 * _BAND_ROWS)
    return (PILLOW_BYTES + _CHANNELS) * old * (_SOURCE_ROWS + _BAND_ROWS) + rows_bytes
