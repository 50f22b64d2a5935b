"""The tensor of a photograph, whose rows are made when they are read.

A picture takes a byte where its tensor takes four, and a region of a network reads a few rows at a time.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from models.images.placement import Size

if TYPE_CHECKING:
    from PIL.Image import Image

# Rows that are made at a time, and how many of those before them are kept: windows of convolutions overlap.
_BAND_ROWS = 16
_KEPT_ROWS = 8
# Rows that are copied from a picture at a time.
_COPIED_ROWS = 64
_NO_ROWS = 0, 0


class RowSource(Protocol):
    """Something whose rows are taken from it, some at a time."""

    def put_rows(
        self,
        target: NDArray[Any],
        first_plane: int,
        first_row: int,
        first_column: int | None = None,
    ) -> None:
        """Write planes and rows from there on to ``target`` [planes, rows, columns], as many as it has.

        ``first_column``: None: it has all columns, too.
        """


class SizedPicture(Protocol):
    """A picture at the size of a network's input."""

    #: What it holds.
    n_bytes: int
    #: How many rows to ask for at once.
    band_rows: int

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """Return rows [first, end), a new array [rows, columns, 3] of numbers from 0 to 255."""


class StoredPixels:
    """Pixels of eight bits of ``image``, which is RGB."""

    band_rows = _BAND_ROWS

    def __init__(self, image: "Image") -> None:
        width, height = image.size
        self._pixels = np.empty((height, width, 3), np.uint8)
        # Pillow gives an array as bytes, which it joins of parts: of all at once it would be there thrice.
        for row in range(0, height, _COPIED_ROWS):
            end = min(row + _COPIED_ROWS, height)
            part = np.frombuffer(image.crop((0, row, width, end)).tobytes(), np.uint8)
            self._pixels[row:end] = part.reshape(end - row, width, 3)
        self.n_bytes = self._pixels.nbytes

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """Return rows [first, end) as numbers."""
        return self._pixels[first:end].astype(np.float32)


class PaddedPixels:
    """``inner``, of ``inner_size`` (width, height), in the middle of ``size``; the rest is ``value``."""

    def __init__(self, inner: SizedPicture, inner_size: Size, size: Size, value: float) -> None:
        self._inner, self._inner_size = inner, inner_size
        self._width, self._value = size[0], value
        self._left, self._top = (size[0] - inner_size[0]) // 2, (size[1] - inner_size[1]) // 2
        self.n_bytes, self.band_rows = inner.n_bytes, inner.band_rows

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """Return rows [first, end), where the picture is not: ``value``."""
        rows = np.full((end - first, self._width, 3), self._value, np.float32)
        width, height = self._inner_size
        low, high = max(first - self._top, 0), min(end - self._top, height)
        if low < high:
            start = low + self._top - first
            inside = rows[start : start + high - low, self._left : self._left + width]
            inside[...] = self._inner.rows(low, high)
        return rows


@dataclass(frozen=True)
class Numbers:
    """What becomes of a pixel: (pixel - mean) * factor, of the channels that the network takes.

    ``mean`` and ``factor`` are float32, one number or one a channel.
    """

    channels: int
    turned: bool
    mean: NDArray[np.float32]
    factor: NDArray[np.float32]

    def of(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return ``pixels`` [rows, columns, 3] as numbers of the tensor, in place."""
        pixels = pixels[:, :, : self.channels]
        if self.turned:
            pixels = pixels[:, :, ::-1]
        # In place: for a large network each copy would be megabytes of every request.
        pixels -= self.mean
        pixels *= self.factor
        return pixels


class PictureTensor:
    """A float32 tensor of ``shape``: what ``numbers`` are of ``pixels``, made row by row.

    Behaves as an array that is read by rows, or once as a whole (numpy.asarray). One thread at a time.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self, pixels: SizedPicture, numbers: Numbers, shape: tuple[int, ...], channels_last: bool
    ) -> None:
        self._pixels, self._numbers = pixels, numbers
        self._channels_last = channels_last
        self.shape = shape
        self._held_rows = _NO_ROWS
        self._held = np.empty((0, 0, 0), np.float32)

    @property
    def n_bytes(self) -> int:
        """What it holds, however large the tensor is."""
        return self._pixels.n_bytes

    def put_rows(
        self,
        target: NDArray[Any],
        first_plane: int,
        first_row: int,
        first_column: int | None = None,
    ) -> None:
        """As `RowSource` says."""
        planes = slice(first_plane, first_plane + target.shape[0])
        column = first_column or 0
        columns = slice(column, column + target.shape[2])
        end = first_row + target.shape[1]
        row = first_row
        while row < end:
            held_first, held_end = self._held_rows
            if not held_first <= row < held_end:
                held_first, held_end = self._hold(row)
            stop = min(held_end, end)
            part = self._held[planes, row - held_first : stop - held_first, columns]
            target[:, row - first_row : stop - first_row] = part
            row = stop

    def _hold(self, row: int) -> tuple[int, int]:
        """Make the rows from ``row`` on; keep some before them where they are there, as windows overlap."""
        held_end = self._held_rows[1]
        stop = min(row + self._pixels.band_rows, self.shape[-2])
        made = self._made(row, stop).transpose(2, 0, 1)
        before = self._held[:, -_KEPT_ROWS:] if 0 < row == held_end else made[:, :0]
        self._held = np.concatenate([before, made], axis=1)
        self._held_rows = row - before.shape[1], stop
        return self._held_rows

    def put(self, target: NDArray[Any]) -> None:
        """Write all of it to ``target``, of its shape."""
        if not self._channels_last:
            self.put_rows(target.reshape(target.shape[-3:]), 0, 0)
            return
        height = self.shape[1]
        for row in range(0, height, self._pixels.band_rows):
            stop = min(row + self._pixels.band_rows, height)
            target[0, row:stop] = self._made(row, stop)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        whole = np.empty(self.shape, np.float32)
        self.put(whole)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def _made(self, first: int, end: int) -> NDArray[np.float32]:
        return self._numbers.of(self._pixels.rows(first, end))
