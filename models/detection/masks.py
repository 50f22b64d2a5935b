"""Masks of boxes, out of prototypes that all share and factors that each has, as in YOLACT and YOLO's -seg.

A mask is as fine as the prototypes: a grid over its box, of about as many columns and rows as lie there.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.images.placement import Size


@dataclass(frozen=True)
class BoxMask:
    """A grid of ``width`` columns and ``height`` rows over a box: what of it is the object.

    ``runs``: how many cells in a row are not, then how many are, and so on, row after row.
    """

    width: int
    height: int
    runs: list[int]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as responses show them."""
        return {"width": self.width, "height": self.height, "runs": self.runs}

    def cells(self) -> NDArray[np.bool_]:
        """Return which cells are the object, [height, width]."""
        is_object = np.arange(len(self.runs)) % 2 == 1
        return np.repeat(is_object, self.runs).reshape(self.height, self.width)


@dataclass(frozen=True)
class BoxMasks:
    """Masks of n boxes, each computed when it is needed.

    ``prototypes``: float32 [channels, rows, columns] over the network's input, which is of ``size``
    (width, height). ``factors``: float32 [n, channels]. ``edges``: left, top, right, bottom of the boxes
    relative to the input, [n, 4]; ``crops``: the same before they were cut at the picture's edge.
    """

    prototypes: NDArray[np.float32]
    factors: NDArray[np.float32]
    edges: NDArray[np.float64]
    crops: NDArray[np.float64]
    size: Size

    def mask(self, index: int) -> BoxMask:
        """Return the mask of box ``index``: where the sum of prototypes times factors is above 0."""
        left, top, right, bottom = self.edges[index].tolist()
        _, rows, columns = self.prototypes.shape
        across, down = _Samples.of(left, right, columns), _Samples.of(top, bottom, rows)
        cells = self._cells(index, across, down)
        return BoxMask(cells.shape[1], cells.shape[0], _runs(cells))

    def has_object(self, index: int) -> bool:
        """Return whether any pixel of the input in box ``index`` is the object.

        Ultralytics lists no other box; it looks at borders of a letterbox, too.
        """
        left, top, right, bottom = self.crops[index].tolist()
        _, rows, columns = self.prototypes.shape
        first, end = _pixels(left, right, self.size[0])
        across = _Samples.of_pixels(first, end, self.size[0], columns)
        first, end = _pixels(top, bottom, self.size[1])
        return across.count > 0 and any(
            self._cells(
                index,
                across,
                _Samples.of_pixels(row, min(row + _BAND_ROWS, end), self.size[1], rows),
            ).any()
            for row in range(first, end, _BAND_ROWS)
        )

    def _cells(self, index: int, across: "_Samples", down: "_Samples") -> NDArray[np.bool_]:
        """Return which of the samples are the object, [down, across]."""
        inside = self.prototypes[:, down.first : down.end, across.first : across.end]
        with np.errstate(invalid="ignore", over="ignore"):
            sums = np.einsum("c,cij->ij", self.factors[index], inside)
            return np.asarray(across.between(down.between(sums).T).T > 0)


# Rows of pixels that are looked at together: mostly the first of them have one of the object.
_BAND_ROWS = 16


def _pixels(low: float, high: float, length: int) -> tuple[int, int]:
    """Return which of ``length`` pixels begin between ``low`` and ``high``, parts of their axis."""
    first, end = (math.ceil(min(max(edge, 0.0), 1.0) * length) for edge in (low, high))
    return first, end


def work_bytes(rows: int, columns: int) -> int:
    """Return what computing the mask of a box takes at most."""
    return 8 * rows * columns * np.dtype(np.float32).itemsize


@dataclass(frozen=True)
class _Samples:
    """Where along an axis of prototypes cells of a mask lie: in [first, end), each between two of them."""

    first: int
    end: int
    below: NDArray[np.intp]
    share: NDArray[np.float32]

    @classmethod
    def of(cls, low: float, high: float, length: int) -> "_Samples":
        """Return the samples of a box from ``low`` to ``high``, parts of an axis of ``length`` cells."""
        low, high = (min(max(edge, 0.0), 1.0) * length for edge in (low, high))
        count = max(int(np.ceil(high - low)), 1)
        return cls._interpolated(low + (np.arange(count) + 0.5) * ((high - low) / count), length)

    @classmethod
    def of_pixels(cls, first: int, end: int, pixels: int, length: int) -> "_Samples":
        """Return the samples of pixels [first, end), of ``pixels`` over all ``length`` cells."""
        return cls._interpolated((np.arange(first, end) + 0.5) * (length / pixels), length)

    @classmethod
    def _interpolated(cls, centres: NDArray[np.floating], length: int) -> "_Samples":
        centres = (centres - 0.5).clip(0, length - 1)
        below = np.minimum(centres.astype(np.intp), max(length - 2, 0))
        first = int(below.min(initial=length - 1))
        end = min(int(below.max(initial=0)) + 2, length)
        return cls(first, end, below - first, (centres - below).astype(np.float32))

    @property
    def count(self) -> int:
        return len(self.below)

    def between(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return ``values`` [end - first, ...] interpolated along their first axis."""
        above = np.minimum(self.below + 1, len(values) - 1)
        share = self.share[:, None]
        return np.asarray(values[self.below] * (1 - share) + values[above] * share)


def _runs(cells: NDArray[np.bool_]) -> list[int]:
    flat = cells.ravel()
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    lengths: list[int] = np.diff(changes, prepend=0, append=flat.size).tolist()
    return [0, *lengths] if flat[0] else lengths
