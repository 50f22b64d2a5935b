"""Darknet's resize_image: bilinear between the corners of the image, without antialiasing."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.images.placement import Size

Window = tuple[int, int, int, int]

# Rows of the result that are made at a time, and rows of the source that are in memory twice meanwhile.
_BAND_ROWS, _SOURCE_ROWS = 32, 64
#: Pillow has four bytes a pixel of RGB.
PILLOW_BYTES = 4


class CornerResize:
    """The part ``window`` of ``image`` (RGB) resized to ``size`` (width, height), made row by row.

    Pixel 0 stays on pixel 0 and the last on the last. ``window`` is left, top, right, bottom in pixels of
    the result (half-open, all of it when None); nothing else is computed. Keeps the image.
    """

    def __init__(self, image: Image.Image, size: Size, window: Window | None = None) -> None:
        left, top, right, bottom = window or (0, 0, *size)
        self._image = image
        self.height, self.width = bottom - top, right - left
        #: How many rows to ask for at once.
        self.band_rows = max(1, min(_BAND_ROWS, _SOURCE_ROWS * size[1] // image.height))
        columns, self._column_parts = _positions(image.width, size[0], left, right)
        self._rows, self._row_parts = _positions(image.height, size[1], top, bottom)
        #: What is held.
        self.n_bytes = image.width * image.height * PILLOW_BYTES
        self._first, self._last = int(columns[0]), min(int(columns[-1]) + 2, image.width)
        self._columns = columns - self._first

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """Return rows [first, end): float32 [rows, columns, 3] from 0 to 255, not rounded."""
        upper = self._rows[first:end]
        lower = np.minimum(upper + 1, self._image.height - 1)
        # Each row of the source is resized once, however many rows of the result lie around it.
        wanted, places = np.unique(np.concatenate([upper, lower]), return_inverse=True)
        across = self._across(wanted)
        above, below = across[places[: len(upper)]], across[places[len(upper) :]]
        below -= above
        below *= self._row_parts[first:end, None, None]
        below += above
        return np.asarray(below, np.float32)

    def _across(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Interpolate ``rows`` of the source between each column and its right neighbour."""
        low, high = int(rows[0]), int(rows[-1]) + 1
        band = self._image.crop((self._first, low, self._last, high))
        pixels = np.asarray(band)[rows - low]
        right = np.minimum(self._columns + 1, pixels.shape[1] - 1)
        near = pixels.take(self._columns, axis=1).astype(np.float32)
        far = pixels.take(right, axis=1).astype(np.float32)
        far -= near
        far *= self._column_parts[:, None]
        far += near
        return np.asarray(far, np.float32)


def made_bytes(width: int, height: int) -> int:
    """Return what the rows of a result of that size take."""
    return width * height * 3 * np.dtype(np.float32).itemsize


def band_bytes(old: int, new: int) -> int:
    """Return what making some rows takes, from rows of ``old`` pixels to rows of ``new``."""
    numbers = 3 * new * np.dtype(np.float32).itemsize * (2 * _SOURCE_ROWS + 3 * _BAND_ROWS)
    return (PILLOW_BYTES + 3) * old * (_SOURCE_ROWS + _BAND_ROWS) + numbers


class ResizedPixels:
    """The rows of a resize that has been made; each is asked for a few times."""

    def __init__(self, resize: CornerResize) -> None:
        self.band_rows = _BAND_ROWS
        self._rows = np.empty((resize.height, resize.width, 3), np.float32)
        self.n_bytes = self._rows.nbytes
        for start in range(0, resize.height, resize.band_rows):
            end = min(start + resize.band_rows, resize.height)
            self._rows[start:end] = resize.rows(start, end)

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """Return rows [first, end) of it."""
        return self._rows[first:end].copy()


def smaller(resize: CornerResize) -> CornerResize | ResizedPixels:
    """Return what takes less: ``resize``, with the image that it is made of, or its rows."""
    made = made_bytes(resize.width, resize.height)
    return resize if resize.n_bytes <= made else ResizedPixels(resize)


def _positions(
    old: int, new: int, start: int, stop: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return source index and fraction towards the next one for the results [start, stop) of ``new``.

    The last result is the last source pixel, also where it is the only one.
    """
    numbers = np.arange(start, stop)
    scale = np.float32(old - 1) / np.float32(max(new - 1, 1))
    exact = numbers.astype(np.float32) * scale
    index = np.minimum(exact.astype(np.intp), max(old - 2, 0))
    index[numbers == new - 1] = old - 1
    part = (exact - index.astype(np.float32)).clip(0, 1)
    part[numbers == new - 1] = 0
    return index, part
