"""Rows of several regions at once: a line of each array for each region, a column for each phase.

The regions end at the same operator and differ in how many rows it makes at a time, nothing else. What it
needs decides, backwards, what the others make: so many times as many as strides multiply it by. For its
first row, others need more than that. So that no phase makes more than the rest, the first ones run before
the last operator has anything to do: they are counted as if it had made rows before its first. Every row is
made once (seed 001: phases of a schedule, with the overlap kept between them).

It serves both the exact plan of one region and sketches of many.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from models.network.windows import Window
from pipeline.program.row_network import RowNetwork

Numbers = NDArray[np.int64]
Times = NDArray[np.float64]
Which = NDArray[np.bool_]

#: In place of a first row: there is none.
_NEVER = 1 << 40

# Numbers of rows below this are counted as bits of one number.
_BITS = 62

# So many rows of the last operator are phases ahead of its first one spread over.
_MOST_AHEAD = 48


def most(numbers: Numbers) -> Numbers:
    """Return the most in any phase of each region."""
    largest: Numbers = np.maximum.reduce(numbers, axis=1)
    return largest


def total(numbers: Numbers | Which) -> Numbers:
    """Return the sum, or how many are true, over all phases of each region."""
    sums: Numbers = np.add.reduce(numbers, axis=1, dtype=np.int64)
    return sums


@dataclass(frozen=True)
class MadeRows:
    """The rows [first, ends) that are made, or loaded, in each phase."""

    ends: Numbers

    @cached_property
    def first(self) -> Numbers:
        first = np.zeros_like(self.ends)
        first[:, 1:] = self.ends[:, :-1]
        return first

    @cached_property
    def count(self) -> Numbers:
        return self.ends - self.first

    @cached_property
    def runs(self) -> Which:
        """Where there are any."""
        return self.count > 0

    @cached_property
    def calls(self) -> Numbers:
        """In how many phases of each region there are any."""
        return total(self.runs)

    @cached_property
    def total(self) -> Numbers:
        return total(self.count)

    @cached_property
    def most(self) -> Numbers:
        """The most in any phase of each region."""
        return most(self.count)

    @cached_property
    def kinds(self) -> Numbers:
        """How many different numbers of rows there are in phases of each region."""
        if self.most.max() < _BITS:
            seen = np.bitwise_or.reduce(np.left_shift(1, self.count), axis=1)
            return np.array([(bits >> 1).bit_count() for bits in seen.tolist()], np.int64)
        ordered = np.sort(self.count, axis=1)
        return total(ordered[:, 1:] != ordered[:, :-1]) + (ordered[:, 0] > 0)

    @cached_property
    def just(self) -> tuple[Numbers, Numbers]:
        """``first`` and ``count`` of ``WantedRows``, where just these are read."""
        return np.where(self.runs, self.first, _NEVER), np.where(self.runs, self.count, -1)


@dataclass(frozen=True)
class WantedRows:
    """Rows that operator ``operator`` reads in each phase; they may lie outside of the value.

    ``first``: the first row, ``_NEVER`` where it does not run; ``count``: of them, -1 there. ``same``: rows
    that these are just like.
    """

    operator: int
    first: Numbers
    count: Numbers
    same: MadeRows | None = None

    def within(self, height: int) -> tuple[Numbers, Numbers]:
        """Return the rows [first, end) of a value of ``height``; ``_NEVER`` and 0 where there are none."""
        first = np.maximum(self.first, 0)
        end = np.where(self.count < 0, 0, np.minimum(self.first + self.count, height))
        some = first < end
        return np.where(some, first, _NEVER), np.where(some, end, 0)

    def is_just(self, made: MadeRows) -> Which:
        """Return which regions read, in every phase, just what is made in it."""
        if self.same is made:
            return np.ones(len(made.ends), bool)
        same = (self.count < 0) | ((self.first == made.first) & (self.count == made.count))
        return np.asarray(same.all(axis=1))


def wanted(operator: int, window: Window, made: MadeRows) -> WantedRows:
    """Return what ``operator`` reads through ``window`` for what it makes."""
    low, high = window.needed(made.first, made.ends)
    if low is made.first and high is made.ends:
        return WantedRows(operator, *made.just, made)
    runs = made.runs
    return WantedRows(operator, np.where(runs, low, _NEVER), np.where(runs, high - low, -1))


def shares(rows: int, height: int) -> list[int]:
    """Return up to which row the last operator of ``height`` has come in each phase; below 0: not begun."""
    ahead = -(-_MOST_AHEAD // rows)
    count = max(-(-height // rows), 1)
    return [min((phase + 1) * rows, height) for phase in range(-ahead, count)]


class RowsProgress:
    """How far operators up to ``last`` have come at the end of each phase: ask from the last one back.

    ``rows``: of each region. What operators read are values as ``pieces`` have them. ``height``: the rows
    that the last one makes.
    """

    def __init__(self, network: RowNetwork, pieces: range, last: int, rows: Sequence[int]) -> None:
        self._network = network
        self._pieces = pieces
        self.height = network.values[network.operators[last].output].height
        each = [shares(number, self.height) for number in rows]
        longest = max(map(len, each))
        same_length = [line + [self.height] * (longest - len(line)) for line in each]
        self._shares = np.array(same_length, np.int64)
        self._finished = self._shares == self.height
        self._needed: dict[int, Numbers] = {}  # by row value: up to which row its readers need it
        self._made: dict[int, tuple[Numbers, MadeRows]] = {}

    def made(self, number: int, whole: bool) -> MadeRows:
        """Return what operator ``number`` makes; the same object as another if it comes just as far."""
        ends = self.ends(number, whole)
        if id(ends) not in self._made:
            self._made[id(ends)] = ends, made_of(ends)
        return self._made[id(ends)][1]

    def ends(self, number: int, whole: bool) -> Numbers:
        """Return up to which row operator ``number`` should have come, below 0: not begun.

        ``whole``: what it makes is read outside of the region, so it is made to its last row.
        """
        item = self._network.operators[number]
        height = self._network.values[item.output].height
        ends = self._needed.pop(item.output, None)
        if ends is None:  # no reader inside: in step with the last one
            ends = -(-height * self._shares // self.height)
        if item.unit > 1:
            ends = np.minimum(-(-ends // item.unit) * item.unit, height)
        if whole:
            ends = np.where(self._finished, height, ends)
        for taken in item.inputs:
            most = self._network.values[taken.row_value].height
            needed = taken.window.end(ends)
            # Operators that come as far as others have the same array (``made``).
            if needed is not ends or most < height:
                needed = np.minimum(needed, most)
            for part in self._network.parts(taken.row_value, self._pieces):
                earlier = self._needed.get(part.row_value, needed)
                self._needed[part.row_value] = (
                    needed if earlier is needed else np.maximum(earlier, needed)
                )
        return ends


def made_of(ends: Numbers) -> MadeRows:
    """Return what operators make that come so far in each phase, as ``RowsProgress`` says: never back."""
    return MadeRows(np.maximum(ends, 0))


def kept_rows(
    made: MadeRows, gathering: Sequence[tuple[WantedRows, Which]]
) -> tuple[Numbers, Numbers]:
    """Return the rows [start, end) that are left for later phases after each phase.

    ``gathering``: the readers, and in which regions rows are put together for it.
    """
    later = np.full((made.ends.shape[0], made.ends.shape[1] + 1), _NEVER, np.int64)
    for reader, gathers in gathering:
        first = reader.first if gathers.all() else np.where(gathers[:, None], reader.first, _NEVER)
        np.minimum(later[:, :-1], first, out=later[:, :-1])
    after = np.minimum.accumulate(later[:, ::-1], axis=1)[:, ::-1][:, 1:]
    return np.maximum(np.minimum(after, made.ends), 0), made.ends


def kept_sizes(made: MadeRows, start: Numbers) -> tuple[Numbers, Numbers]:
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


# Which rows from outside of regions are loaded once, before others are written where they lie.
#
# Two reasons: a value of the region lies over them in the manifest, as a residual sum over what it adds,
# and some would be overwritten before they are read; or they are not read afterwards, so a value of the
# same form may be written over them, which mostly saves memory. Rows that later phases need are kept.
#
# It serves both the exact plan of one region and sketches of many.


@dataclass(frozen=True)
class Written:
    """Operator ``operator`` writes ``value`` where it lies whole, up to row ``ends`` in each phase."""

    value: int
    operator: int
    ends: Numbers


@dataclass(frozen=True)
class LoadedRows:
    """Rows ``made`` of ``value`` are loaded before ``operator`` runs, in the regions ``which``.

    ``new``: what is written over them to save memory; None: what the manifest says.
    """

    value: int
    operator: int
    made: MadeRows
    which: Which
    new: int | None = None


def needed_loadings(
    network: RowNetwork, reads: Mapping[int, Sequence[WantedRows]], writes: Sequence[Written]
) -> Iterator[LoadedRows]:
    """Yield what must be loaded, since it would be overwritten before it is read.

    ``reads``: the readers of each value of outside where it lies whole. ``writes``: what is read outside.
    """
    for value, readers in reads.items():
        over = network.memory.overlapping(value)
        loaded = _needed(network, value, readers, [item for item in writes if item.value in over])
        if loaded is not None:
            yield loaded


def _needed(
    network: RowNetwork, value: int, readers: Sequence[WantedRows], writes: Sequence[Written]
) -> LoadedRows | None:
    """Return how ``value`` is loaded where it would be overwritten before it is read."""
    if not writes:
        return None
    height = network.values[value].height
    ends = _read_ends(readers, height)
    loaded, which = ends, np.zeros(len(ends), bool)
    for writing in writes:
        written = writing.ends
        if not network.memory.alike(value, writing.value):
            written = np.where(written > 0, _NEVER, 0)  # any row of it may lie over any of these
        loaded = np.maximum(loaded, np.minimum(written, ends[:, -1:]))
        for reader in readers:
            before = written
            if (
                writing.operator >= reader.operator
            ):  # it writes after this one has read, in each phase
                before = np.concatenate(
                    [np.zeros((len(ends), 1), np.int64), written[:, :-1]], axis=1
                )
            which |= (reader.within(height)[0] < before).any(axis=1)
    first = min([item.operator for item in readers] + [item.operator for item in writes])
    return LoadedRows(value, first, MadeRows(loaded), which) if which.any() else None


def saving_loadings(
    network: RowNetwork,
    pieces: range,
    reads: Mapping[int, Sequence[WantedRows]],
    writes: Sequence[Written],
) -> Iterator[LoadedRows]:
    """Yield what may be loaded, so that something is written over it which is not read after ``pieces``.

    Arguments are those of ``needed_loadings``. Nothing of what that yields is among these.
    """
    alone = network.alone
    free = sorted((item for item in writes if item.value in alone), key=lambda item: item.operator)
    taken = {item.value: np.zeros(len(item.ends), bool) for item in free}
    for old in network.last_read(reads, pieces) if free else ():
        ends = _read_ends(reads[old], network.values[old].height)
        first = min(reader.operator for reader in reads[old])
        left = np.ones(len(ends), bool)
        for writing in free:
            if writing.operator < first or not network.same_form(old, writing.value):
                continue
            which = left & ~taken[writing.value] & (writing.ends <= ends).all(axis=1)
            if which.any():
                left &= ~which
                taken[writing.value] |= which
                yield LoadedRows(old, first, MadeRows(ends), which, writing.value)


def _read_ends(readers: Sequence[WantedRows], height: int) -> Numbers:
    """Return up to which row some reader has read at the end of each phase."""
    ends = np.max([reader.within(height)[1] for reader in readers], axis=0)
    most: Numbers = np.maximum.accumulate(ends, axis=1)
    return most
