"""How long runs of consecutive operations take at most: maxima of sums, where a sum of maxima is too much.

Hundreds of kernels are never all slow in the same sweep. Recorded are therefore the largest sums over
windows of 1, 2, 4, ... consecutive operations; any run is covered by a few of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Windows of a length begin at every quarter of it: four numbers an operation in all.
_STARTS_A_LENGTH = 4


@dataclass(frozen=True)
class Windows:
    """``maxima[level][n]``: the largest sum of operations [n * step, n * step + 2 ** level), in seconds.

    ``step`` is max(1, 2 ** level / 4). Windows end at the last operation at the latest.
    """

    operations: int
    maxima: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, samples: ArrayLike) -> Self:
        """Record the windows of ``samples`` (float64 [runs, operations], seconds, at least one run).

        Raises:
            ValueError: it is not that.
        """
        array = np.asarray(samples, np.float64)
        if array.ndim != 2 or not len(array):
            raise ValueError(f"samples of shape {list(array.shape)} are not [runs, operations]")
        rows = [_sums(array, level).max(axis=0) for level in range(_levels(array.shape[1]))]
        return cls(array.shape[1], tuple(tuple(row.tolist()) for row in rows))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Return what ``as_dict`` was made of."""
        return cls(record["operations"], tuple(map(tuple, record["maxima"])))

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return asdict(self)

    def covers(self, sample: Sequence[float]) -> bool:
        """Return whether a run stayed within every window.

        Raises:
            ValueError: it has another number of operations.
        """
        if len(sample) != self.operations:
            raise ValueError(f"{len(sample)} operations, the windows are of {self.operations}")
        row = np.asarray(sample, np.float64)[None, :]
        return all(
            bool((_sums(row, level)[0] <= np.asarray(maxima)).all())
            for level, maxima in enumerate(self.maxima)
        )

    def runs(self) -> NDArray[np.float64]:
        """Return most[j, i]: an upper bound of the time of operations [i, j); 0 where i >= j.

        The least cover by windows that the last operation's windows begin, found from left to right.
        """
        count = self.operations
        most = np.zeros((count + 1, count + 1))
        for end in range(1, count + 1):
            row = most[end, :end]
            row[:] = np.inf
            for start, seconds in self._ending(end):
                # Runs that begin inside the window are covered by it alone.
                np.minimum(row[start:], seconds, out=row[start:])
                np.minimum(row[:start], most[start, :start] + seconds, out=row[:start])
        return most

    def _ending(self, end: int) -> Iterator[tuple[int, float]]:
        """Yield start and maximum of, for each length, the window that ends first at or after ``end``."""
        for level, maxima in enumerate(self.maxima):
            length, step = 1 << level, _step(level)
            number = min(max(-(-(end - length) // step), 0), len(maxima) - 1)
            yield number * step, maxima[number]


def _step(level: int) -> int:
    return max((1 << level) // _STARTS_A_LENGTH, 1)


def _levels(operations: int) -> int:
    """Return how many lengths there are; the last one spans all operations."""
    return (operations - 1).bit_length() + 1 if operations else 0


def _sums(samples: NDArray[np.float64], level: int) -> NDArray[np.float64]:
    """Return the sums of the windows of one level, [runs, windows]."""
    count = samples.shape[1]
    before = np.concatenate([np.zeros((len(samples), 1)), np.cumsum(samples, axis=1)], axis=1)
    length, step = 1 << level, _step(level)
    # Starts until a window reaches the end.
    last = -(-max(count - length, 0) // step)
    starts = np.arange(last + 1) * step
    return np.asarray(before[:, np.minimum(starts + length, count)] - before[:, starts])
