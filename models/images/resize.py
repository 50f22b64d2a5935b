"""Darknet's resize_image: bilinear between the corners of the image, without antialiasing."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.images.placement import Size

Window = tuple[int, int, int, int]

# Rows of the result that are made at a time: so many source rows are in memory twice.
_BAND_ROWS = 32


def resize_corners(
    image: Image.Image, size: Size, window: Window | None = None
) -> NDArray[np.float32]:
    """Return the part ``window`` of ``image`` (RGB) resized to ``size`` (width, height).

    Pixel 0 stays on pixel 0 and the last on the last. ``window`` is left, top, right, bottom in pixels of
    the result (half-open, all of it when None); nothing else is computed.

    Returns:
        float32 [rows, columns, 3] from 0 to 255, not rounded.
    """
    left, top, right, bottom = window or (0, 0, *size)
    columns, column_parts = _positions(image.width, size[0], left, right)
    rows, row_parts = _positions(image.height, size[1], top, bottom)
    first, last = int(columns[0]), min(int(columns[-1]) + 2, image.width)
    columns -= first
    result = np.empty((bottom - top, right - left, 3), np.float32)
    for start in range(0, len(rows), _BAND_ROWS):
        band = slice(start, start + _BAND_ROWS)
        low, high = int(rows[band][0]), min(int(rows[band][-1]) + 2, image.height)
        pixels = np.asarray(image.crop((first, low, last, high)))
        upper = rows[band] - low
        lower = np.minimum(upper + 1, high - low - 1)
        across = row_parts[band, None, None]
        above = _mixed(pixels, upper, columns, column_parts)
        below = _mixed(pixels, lower, columns, column_parts)
        result[band] = above + across * (below - above)
    return result


def _mixed(
    pixels: NDArray[np.uint8],
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    parts: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Interpolate ``rows`` between each column and its right neighbour: float32 [rows, columns, 3]."""
    right = np.minimum(columns + 1, pixels.shape[1] - 1)
    near = pixels[rows[:, None], columns].astype(np.float32)
    far = pixels[rows[:, None], right].astype(np.float32)
    far -= near
    far *= parts[:, None]
    far += near
    return np.asarray(far, np.float32)


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
