"""Masks of boxes, out of prototypes that all share and factors that each has, as in YOLACT and YOLO's -seg.

A mask is as fine as the prototypes: a grid over its box, of about as many columns and rows as lie there.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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

    ``prototypes``: float32 [channels, rows, columns] over the network's input. ``factors``: float32
    [n, channels]. ``edges``: left, top, right, bottom of the boxes relative to the input, [n, 4].
    """

    prototypes: NDArray[np.float32]
    factors: NDArray[np.float32]
    edges: NDArray[np.float64]

    def mask(self, index: int) -> BoxMask:
        """Return the mask of box ``index``: where the sum of prototypes times factors is above 0."""
        left, top, right, bottom = self.edges[index].tolist()
        _, rows, columns = self.prototypes.shape
        across, down = _Samples.of(left, right, columns), _Samples.of(top, bottom, rows)
        inside = self.prototypes[:, down.first : down.end, across.first : across.end]
        with np.errstate(invalid="ignore", over="ignore"):
            sums = np.einsum("c,cij->ij", self.factors[index], inside)
            values = down.between(across.between(sums.T).T)
            cells = values > 0
        return BoxMask(cells.shape[1], cells.shape[0], _runs(cells))


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
        centres = low + (np.arange(count) + 0.5) * ((high - low) / count) - 0.5
        centres = centres.clip(0, length - 1)
        below = np.minimum(centres.astype(np.intp), max(length - 2, 0))
        first, end = int(below[0]), min(int(below[-1]) + 2, length)
        return cls(first, end, below - first, (centres - below).astype(np.float32))

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
