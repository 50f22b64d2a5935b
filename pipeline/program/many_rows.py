"""Rows of several regions at once: a line of each array for each region, a column for each phase.

The regions differ in how many rows they make at a time, nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from models.network.windows import Window
from pipeline.program.row_ranges import Rows, shares

Numbers = NDArray[np.int64]
Times = NDArray[np.float64]
Which = NDArray[np.bool_]

#: In place of a first row: there is none.
NEVER = 1 << 40


@dataclass(frozen=True)
class Made:
    """The rows [first, ends) that are made, or loaded, in each phase."""

    ends: Numbers

    @cached_property
    def first(self) -> Numbers:
        return np.concatenate([np.zeros((len(self.ends), 1), np.int64), self.ends[:, :-1]], axis=1)

    @cached_property
    def count(self) -> Numbers:
        return self.ends - self.first


@dataclass(frozen=True)
class Wanted:
    """Rows that operator ``operator`` reads in each phase; they may lie outside of the value.

    ``first``: the first row, ``NEVER`` where it does not run; ``count``: of them, -1 there.
    """

    operator: int
    first: Numbers
    count: Numbers

    def within(self, height: int) -> tuple[Numbers, Numbers]:
        """Return the rows [first, end) of a value of ``height``; ``NEVER`` and 0 where there are none."""
        first = np.maximum(self.first, 0)
        end = np.where(self.count < 0, 0, np.minimum(self.first + self.count, height))
        some = first < end
        return np.where(some, first, NEVER), np.where(some, end, 0)

    def is_just(self, made: Made) -> Which:
        """Return which regions read, in every phase, just what is made in it."""
        same = (self.count < 0) | ((self.first == made.first) & (self.count == made.count))
        return np.asarray(same.all(axis=1))


def wanted(operator: int, window: Window, made: Made) -> Wanted:
    """Return what ``operator`` reads through ``window`` for what it makes."""
    low, high = window.needed(made.first, made.ends)
    runs = made.count > 0
    return Wanted(operator, np.where(runs, low, NEVER), np.where(runs, high - low, -1))


def share_lines(rows: Sequence[int], height: int) -> Numbers:
    """Return, for each number of rows, how far the last operator is in each phase, to the same length."""
    each = [shares(number, height) for number in rows]
    longest = max(map(len, each))
    return np.array([line + [height] * (longest - len(line)) for line in each], np.int64)


def kept_rows(made: Made, gathering: Sequence[tuple[Wanted, Which]]) -> tuple[Numbers, Numbers]:
    """Return the rows [start, end) that are left for later phases after each phase.

    ``gathering``: who reads, and in which regions rows are put together for it.
    """
    later = np.full((made.ends.shape[0], made.ends.shape[1] + 1), NEVER, np.int64)
    for reader, gathers in gathering:
        first = np.where(gathers[:, None], np.maximum(reader.first, 0), NEVER)
        later[:, :-1] = np.minimum(later[:, :-1], first)
    after = np.minimum.accumulate(later[:, ::-1], axis=1)[:, ::-1][:, 1:]
    return np.minimum(after, made.ends), made.ends


def kept_sizes(made: Made, start: Numbers) -> tuple[Numbers, Numbers]:
    """Return the most rows in each of the two strips that rows [start, made.ends) are kept in.

    There is one where no rows are kept for more than a phase, so that they never move.
    """
    left = made.ends - start
    most = left.max(axis=1)
    moves = (start < made.first).any(axis=1)
    if not moves.any():
        return most, np.zeros_like(most)
    zeros = np.zeros((len(left), 1), np.int64)
    same = start == np.concatenate([zeros, start[:, :-1]], axis=1)
    changes = ~(same & (made.count == 0))
    odd = np.cumsum(changes, axis=1) % 2 == 1
    of_odd = np.where(changes & odd, left, 0).max(axis=1)
    of_even = np.where(changes & ~odd, left, 0).max(axis=1)
    return np.where(moves, of_odd, most), np.where(moves, of_even, 0)


def one_region(phases: Sequence[Rows]) -> Made:
    """Return the rows of one region, phase by phase."""
    return Made(np.array([[rows.end for rows in phases]], np.int64))
