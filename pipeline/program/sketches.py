"""What regions need that end at one place, for all places where they may begin and several numbers of rows.

A planner asks for thousands of regions and takes a few. So this walks the operators backwards once: which
rows an operator makes depends on what follows it alone, and so does the memory of its strips. Memory is
that of ``plan_region``; times and bindings are close to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from models.packs.choice import BINDING_BYTES
from models.packs.manifest import RowOperator, Window
from pipeline.program.row_network import RowNetwork
from pipeline.program.row_ranges import shares
from pipeline.program.row_times import RowTimes
from pipeline.program.steps import MOVE_BYTES

#: More phases than this are many launches for little memory.
MOST_PHASES = 160
_NEVER = 1 << 40

Numbers = NDArray[np.int64]
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sketch:
    """Regions of the pieces [first_piece, end_piece), one for each of ``rows``.

    ``strip_bytes``: of all strips, at their fullest. ``binding_bytes``: of kernels and copies.
    ``touched``: the row values that they read or write where these lie whole. ``shared_bytes``: of them
    that are written over others.
    """

    first_piece: int
    end_piece: int
    rows: tuple[int, ...]
    strip_bytes: Numbers
    binding_bytes: Numbers
    seconds: Times
    touched: frozenset[int]
    shared_bytes: Numbers


def sketches(
    network: RowNetwork, end: int, starts: Sequence[int], rows: Sequence[int], times: RowTimes
) -> Iterator[Sketch]:
    """Yield the regions that end before piece ``end``, from the last of ``starts`` to the first.

    ``starts`` and ``end`` are places where operators begin. Only those of ``rows`` that make sense.
    """
    last = network.operators_before(end) - 1
    height = network.values[network.operators[last].output].height
    useful = tuple(each for each in rows if each <= height <= each * MOST_PHASES)
    if useful:
        yield from _Backwards(network, end, last, useful, times).walk(sorted(starts, reverse=True))


@dataclass(slots=True)
class _Reader:
    """Input ``number`` of operator ``operator``: what it needs of its rows in each phase.

    ``first``: the first row, ``_NEVER`` where it runs on none; ``count``: of them, -1 there. ``alone``: it
    is one value, not planes of several. ``strip_bytes``, ``bindings`` and ``seconds``: of putting it
    together.
    """

    operator: int
    number: int
    first: Numbers
    count: Numbers
    alone: bool
    strip_bytes: Numbers
    bindings: Numbers
    seconds: Times


@dataclass(slots=True)
class _Value:
    """What is known of a row value that an operator before makes: who reads it, up to which row."""

    ends: Numbers
    readers: list[_Reader] = field(default_factory=list)


class _Backwards:
    def __init__(
        self, network: RowNetwork, end: int, last: int, rows: tuple[int, ...], times: RowTimes
    ) -> None:
        self._network = network
        self._end = end
        self._last = last
        self._rows = rows
        self._times = times
        self._height = network.values[network.operators[last].output].height
        self._shares = _shares(rows, self._height)
        self._after = network.read_after(end)
        self._run = range(end)
        self._wanted: dict[int, _Value] = {}
        self._live: Numbers = np.zeros((len(rows), last + 2), np.int64)
        self._kept: Numbers = np.zeros(len(rows), np.int64)
        self._bindings: Numbers = np.zeros(len(rows), np.int64)
        self._seconds: Times = np.zeros(len(rows))
        self._outside: list[_Reader] = []
        self._whole: set[int] = set()
        self._whole_ends: dict[int, Numbers] = {}
        # What pieces put together of several values, and others read later.
        self._copies: dict[int, list[int]] = {}
        for value, part in network.copied(self._run):
            self._copies.setdefault(part.row_value, []).append(value)

    def walk(self, starts: Sequence[int]) -> Iterator[Sketch]:
        operator = self._last + 1
        for start in starts:
            first = self._network.operators_before(start)
            while operator > first:
                operator -= 1
                self._add(operator, self._network.operators[operator])
            touched = self._touched(start, first)
            if touched is not None:
                yield self._sketch(start, first, touched)

    def _sketch(self, start: int, first: int, touched: frozenset[int]) -> Sketch:
        """Return the regions from piece ``start`` on; what is tried for them alone leaves no trace."""
        kept = (self._live, self._kept, self._bindings, self._seconds)
        self._live, self._kept = self._live.copy(), self._kept.copy()
        self._bindings, self._seconds = self._bindings.copy(), self._seconds.copy()
        shared = self._written_over(range(start, self._end), touched)
        strips = self._live[:, first : self._last + 1].max(axis=1) + self._kept
        numbers = (strips, self._bindings, self._seconds)
        self._live, self._kept, self._bindings, self._seconds = kept
        return Sketch(start, self._end, self._rows, *numbers, touched, shared)

    def _written_over(self, pieces: range, touched: frozenset[int]) -> Numbers:
        """Load what others are written over; return how many bytes that saves."""
        shared = np.zeros(len(self._rows), np.int64)
        free = sorted(self._whole & self._network.alone, key=self._network.makers.__getitem__)
        for old in sorted(self._network.last_read(pieces) & touched) if free else ():
            readers = self._wanted[old].readers if old in self._wanted else []
            if not readers:
                continue
            value = self._network.values[old]
            ends = [
                np.where(reader.count < 0, 0, np.minimum(reader.first + reader.count, value.height))
                for reader in readers
            ]
            made = np.maximum.accumulate(np.max(ends, axis=0), axis=1)
            first = min(reader.operator for reader in readers)
            for new in free:
                in_time = self._network.makers[new] >= first and bool(
                    (self._whole_ends[new] <= made).all()
                )
                if in_time and self._network.same_form(old, new):
                    free.remove(new)
                    shared += value.planes * value.row_bytes * value.height
                    self._load(first, made, readers, value.planes * value.row_bytes)
                    break
        return shared

    def _load(self, first: int, ends: Numbers, readers: list[_Reader], unit: int) -> None:
        before = np.concatenate([np.zeros((len(ends), 1), np.int64), ends[:, :-1]], axis=1)
        count = ends - before
        direct = [_is_direct(reader, before, count) for reader in readers]
        self._copy_out(count, unit)
        self._place(first, count.max(axis=1) * unit, readers, direct, outside=False)
        self._keep(before, ends, readers, direct, unit)

    def _touched(self, start: int, first: int) -> frozenset[int] | None:
        """Return the row values that lie whole; None: the region would copy what lies outside of it."""
        network, pieces = self._network, range(start, self._end)
        makers = network.makers
        self._outside = [reader for reader in self._outside if self._reads_outside(reader, first)]
        found = set(self._whole)
        for reader in self._outside:
            taken = network.operators[reader.operator].inputs[reader.number]
            found.update(
                part.row_value
                for part in network.parts(taken.row_value, pieces)
                if makers.get(part.row_value, -1) < first
            )
        for part, values in self._copies.items():
            inside = [value for value in values if network.values[value].first_piece >= start]
            if inside and makers.get(part, -1) < first:
                return None
            found.update(inside)
        return frozenset(found)

    def _reads_outside(self, reader: _Reader, first: int) -> bool:
        taken = self._network.operators[reader.operator].inputs[reader.number]
        parts = self._network.parts(taken.row_value, self._run)
        return any(self._network.makers.get(part.row_value, -1) < first for part in parts)

    def _add(self, number: int, item: RowOperator) -> None:
        """Put operator ``number``, which all others follow, into the region."""
        value = self._network.values[item.output]
        unit = value.planes * value.row_bytes
        held = self._wanted.pop(item.output, None)
        copies = self._copies.get(item.output, ())
        whole = value.value in self._after
        ends = self._ends(item, held, value.height, whole or bool(copies))
        made = np.maximum.accumulate(np.maximum(ends, 0), axis=1)
        first = np.concatenate([np.zeros((len(ends), 1), np.int64), made[:, :-1]], axis=1)
        count = made - first
        self._make(number, item, count, value.height)
        if whole:
            self._whole.add(item.output)
            self._whole_ends[item.output] = made
        for _ in range(whole + len(copies)):
            self._copy_out(count, unit)
        strip = count.max(axis=1) * unit
        readers = held.readers if held else []
        direct = [_is_direct(reader, first, count) for reader in readers]
        self._place(number, strip, readers, direct, whole or bool(copies))
        if not whole:
            self._keep(first, made, readers, direct, unit)
        for position, taken in enumerate(item.inputs):
            shared = item.in_place == position
            height = self._network.values[taken.row_value].height
            wanted = _needed_ends(taken.window, ends, height)
            self._read(number, position, wanted, first, count, shared)

    def _ends(
        self, item: RowOperator, held: _Value | None, height: int, to_the_last: bool
    ) -> Numbers:
        """Return up to which row ``item`` has made its output at the end of each phase."""
        ends = -(-height * self._shares // self._height) if held is None else held.ends
        unit = max(taken.window.factor for taken in item.inputs)
        ends = np.minimum(-(-ends // unit) * unit, height)
        if to_the_last:
            ends[self._shares == self._height] = height
        return ends

    def _make(self, number: int, item: RowOperator, count: Numbers, height: int) -> None:
        """Count its kernels: as many bindings as there are numbers of rows."""
        ordered = np.sort(count, axis=1)
        kinds = (np.diff(ordered, axis=1) != 0).sum(axis=1) + (ordered[:, 0] > 0)
        self._bindings += kinds * BINDING_BYTES
        calls = np.count_nonzero(count, axis=1)
        self._seconds += [
            int(n) * self._times.call(number, max(round(height / max(int(n), 1)), 1)) for n in calls
        ]

    def _copy_out(self, count: Numbers, unit: int) -> None:
        calls = np.count_nonzero(count, axis=1)
        self._bindings += calls * MOVE_BYTES
        self._seconds += self._moves(calls, count.sum(axis=1) * unit)

    def _moves(self, calls: Numbers, n_bytes: Numbers) -> Times:
        return np.array(
            [
                int(n) * self._times.move(int(total) // int(n)) if n else 0.0
                for n, total in zip(calls, n_bytes, strict=True)
            ]
        )

    def _place(
        self,
        number: int,
        strip: Numbers,
        readers: Sequence[_Reader],
        direct: Sequence[NDArray[np.bool_]],
        outside: bool,
    ) -> None:
        """Count the strip of its output: until the last reader, who may write into it."""
        last = max((reader.operator for reader in readers), default=number)
        self._live[:, number : last + 1] += strip[:, None]
        for reader, just in zip(readers, direct, strict=True):
            item = self._network.operators[reader.operator]
            shares = item.in_place == reader.number
            if not shares:
                self._live[:, reader.operator] -= np.where(just, reader.strip_bytes, 0)
            self._bindings -= np.where(just, reader.bindings, 0)
            self._seconds -= np.where(just, reader.seconds, 0.0)
            if shares:
                alone = reader.operator == last and not outside and np.all(direct, axis=0)
                alone = alone & (sum(other.operator == last for other in readers) == 1)
                # The output lies in this strip: it is there once. Else it has a strip of its own.
                self._live[:, reader.operator] -= np.where(alone, strip, 0)

    def _keep(
        self,
        first: Numbers,
        ends: Numbers,
        readers: Sequence[_Reader],
        direct: Sequence[NDArray[np.bool_]],
        unit: int,
    ) -> None:
        """Count the rows that later phases need."""
        later = np.full((ends.shape[0], ends.shape[1] + 1), _NEVER, np.int64)
        for reader, just in zip(readers, direct, strict=True):
            later[:, :-1] = np.minimum(
                later[:, :-1], np.where(just[:, None], _NEVER, np.maximum(reader.first, 0))
            )
        needed = np.minimum.accumulate(later[:, ::-1], axis=1)[:, ::-1][:, 1:]
        start = np.minimum(needed, ends)
        left = ends - start
        most = left.max(axis=1)
        waits = (start < first).any(axis=1)
        self._kept += np.where(waits, 2, 1) * most * unit
        phases = np.count_nonzero(left, axis=1)
        self._bindings += np.where(most > 0, 4 * MOVE_BYTES, 0)
        self._seconds += self._moves(phases, left.sum(axis=1) * unit)

    def _read(
        self,
        number: int,
        position: int,
        ends: Numbers,
        first: Numbers,
        count: Numbers,
        shared: bool,
    ) -> None:
        """Count the strip of an input, as if it were put together; it is needed up to ``ends``."""
        taken = self._network.operators[number].inputs[position]
        row_value = taken.row_value
        value = self._network.values[row_value]
        low, high = _needed(taken.window, first, count)
        unit = value.planes * value.row_bytes
        rows = np.where(count > 0, high - low, 0)
        strip = rows.max(axis=1) * unit
        if not shared:
            self._live[:, number] += strip
        parts = self._network.parts(row_value, self._run)
        calls = np.count_nonzero(count, axis=1) * len(parts)
        reader = _Reader(
            number,
            position,
            np.where(count > 0, low, _NEVER),
            np.where(count > 0, high - low, -1),
            len(parts) == 1 and parts[0].row_value == row_value,
            strip,
            # Rows of what lies whole are elsewhere in each phase; of strips there are a few kinds.
            np.full(len(self._rows), 4 * len(parts) * MOVE_BYTES, np.int64),
            self._moves(calls, rows.sum(axis=1) * unit),
        )
        self._bindings += reader.bindings
        self._seconds += reader.seconds
        self._outside.append(reader)
        for part in parts:
            held = self._wanted.setdefault(part.row_value, _Value(ends))
            held.ends = np.maximum(held.ends, ends)
            held.readers.append(reader)


def _is_direct(reader: _Reader, first: Numbers, count: Numbers) -> NDArray[np.bool_]:
    """Return for which options a reader needs, in every phase, just what is made in it."""
    if not reader.alone:
        return np.zeros(len(first), bool)
    runs = reader.count >= 0
    same = ~runs | ((reader.first == first) & (reader.count == count))
    return np.asarray(same.all(axis=1))


def _needed(window: Window, first: Numbers, count: Numbers) -> tuple[Numbers, Numbers]:
    """Return the rows [low, high) that outputs are made of."""
    end = first + count
    if window.factor > 1:
        return first // window.factor, -(-end // window.factor)
    low = first * window.stride - window.above
    return low, (end - 1) * window.stride - window.above + window.kernel


def _needed_ends(window: Window, ends: Numbers, height: int) -> Numbers:
    """Return up to where an input is needed: as pipeline/program/row_ranges.py says it."""
    if window.factor > 1:
        return np.minimum(-(-ends // window.factor), height)
    beyond = window.kernel - window.stride - window.above
    return np.minimum(ends * window.stride + beyond, height)


def _shares(rows: Sequence[int], height: int) -> Numbers:
    """Return, for each number of rows, how far the last operator is in each phase, to the same length."""
    each = [shares(number, height) for number in rows]
    longest = max(map(len, each))
    return np.array([line + [height] * (longest - len(line)) for line in each], np.int64)
