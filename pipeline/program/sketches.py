"""What regions need that end at one place, for all places where they may begin and several numbers of rows.

A planner needs thousands of regions and takes a few. So this walks the operators backwards once: which
rows an operator makes depends on what follows it alone, and so does the memory of its strips. Whatever is
proposed here ``plan_region`` makes, in just this memory; times and bindings are close to it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.packs.records.row_parts import RowOperator, unrolled_by_rows
from pipeline.program.choice import BINDING_BYTES
from pipeline.program.many_rows import (
    LoadedRows,
    MadeRows,
    Numbers,
    RowsProgress,
    Times,
    WantedRows,
    Which,
    Written,
    kept_rows,
    kept_sizes,
    most,
    needed_loadings,
    saving_loadings,
    total,
    wanted,
)
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import MOVE_BYTES
from pipeline.program.stopping import go_on
from pipeline.program.work import RowTimes

# What regions take, summed up operator by operator from their end: strips, bindings, seconds.


@dataclass(frozen=True)
class _SketchedInput:
    """An input, ``rows`` of it, as if it were put together in a strip of its own.

    ``in_place``: the output may lie in the same strip. ``alone``: it is one value, not planes of several.
    """

    rows: WantedRows
    in_place: bool
    alone: bool
    strip_bytes: Numbers
    bindings: int
    seconds: Times

    @property
    def operator(self) -> int:
        return self.rows.operator

    def is_direct(self, made: MadeRows) -> Which:
        """Return which regions need, in every phase, just what is made in it: nothing is put together."""
        if not self.alone:
            return np.zeros(len(made.ends), bool)
        return self.rows.is_just(made)


class _Sums:
    """Of ``count`` regions of operators from ``first`` on, at most, up to ``last``.

    ``live``: bytes of strips at each of these operators; ``kept``: of those between phases; ``bindings``:
    bytes of kernels and copies.
    """

    def __init__(self, count: int, first: int, last: int, times: RowTimes) -> None:
        self._times = times
        self._first = first
        self._last = last
        self.live: Numbers = np.zeros((last + 1 - first, count), np.int64)
        self.kept: Numbers = np.zeros(count, np.int64)
        self.bindings: Numbers = np.zeros(count, np.int64)
        self.seconds: Times = np.zeros(count)

    def copy(self) -> "_Sums":
        sums = _Sums(len(self.kept), self._first, self._last, self._times)
        sums.live, sums.kept = self.live.copy(), self.kept.copy()
        sums.bindings, sums.seconds = self.bindings.copy(), self.seconds.copy()
        return sums

    def take(self, other: "_Sums", which: Which) -> None:
        """Take over what ``other`` has of the regions ``which``."""
        self.live[:, which], self.kept[which] = other.live[:, which], other.kept[which]
        self.bindings[which], self.seconds[which] = other.bindings[which], other.seconds[which]

    def strip_bytes(self, first: int) -> Numbers:
        """Return the bytes of all strips, at their fullest, from operator ``first`` on."""
        most: Numbers = np.maximum.reduce(self.live[first - self._first :]) + self.kept
        return most

    def add_kernels(self, operator: int, made: MadeRows, height: int) -> None:
        """Add the calls of ``operator``: as many bindings as there are numbers of rows."""
        self.bindings += made.kinds * BINDING_BYTES
        call = self._times.call
        self.seconds += [
            n * call(operator, max(round(height / max(n, 1)), 1)) for n in made.calls.tolist()
        ]

    def add_copies(self, made: MadeRows, unit: int) -> None:
        """Add copies of ``made``, rows of ``unit`` bytes, between a strip and where these lie whole."""
        self.bindings += made.calls * MOVE_BYTES
        self.seconds += self.moves(made.calls, made.total * unit)

    def moves(self, calls: Numbers, n_bytes: Numbers) -> Times:
        """Return the seconds of so many copies, of ``n_bytes`` together."""
        move = self._times.move
        each = zip(calls.tolist(), n_bytes.tolist(), strict=True)
        return np.array([n * move(size // n) if n else 0.0 for n, size in each])

    def add_reader(self, reader: _SketchedInput) -> None:
        """Add the strip of an input."""
        if not reader.in_place:
            self.live[reader.operator - self._first] += reader.strip_bytes
        self.bindings += reader.bindings
        self.seconds += reader.seconds

    def add_value(
        self,
        operator: int,
        made: MadeRows,
        unit: int,
        readers: Sequence[_SketchedInput],
        whole: bool,
        kept: bool,
    ) -> None:
        """Add the strips of what ``operator`` makes, or is loaded before it, rows of ``unit`` bytes.

        ``whole``: it is copied to where it lies whole; ``kept``: later phases take rows from strips.
        """
        direct = [reader.is_direct(made) for reader in readers]
        self._add_strip(operator, made.most * unit, readers, direct, whole)
        if kept:
            gathering = [
                (item.rows, ~just)
                for item, just in zip(readers, direct, strict=True)
                if not just.all()
            ]
            if gathering:
                self._add_kept(made, kept_rows(made, gathering)[0], unit)

    def add_loadings(
        self,
        network: RowNetwork,
        loadings: Iterable[LoadedRows],
        readers: Mapping[int, Sequence[_SketchedInput]],
    ) -> Numbers:
        """Add what is loaded, with its readers; return the bytes of these values, for each region."""
        n_bytes = np.zeros(len(self.kept), np.int64)
        for item in loadings:
            value = network.values[item.value]
            unit = network.row_bytes[item.value]
            everywhere = item.which.all()
            there = self if everywhere else self.copy()
            there.add_copies(item.made, unit)
            there.add_value(item.operator, item.made, unit, readers[item.value], False, True)
            if not everywhere:
                self.take(there, item.which)
            n_bytes += np.where(item.which, unit * value.height, 0)
        return n_bytes

    def _add_strip(
        self,
        operator: int,
        strip: Numbers,
        readers: Sequence[_SketchedInput],
        direct: Sequence[Which],
        whole: bool,
    ) -> None:
        """Add a strip until the last reader, which may write into it."""
        last = max((reader.operator for reader in readers), default=operator)
        self.live[operator - self._first : last + 1 - self._first] += strip
        for reader, just in zip(readers, direct, strict=True):
            if not just.any():
                continue
            live = self.live[reader.operator - self._first]
            if not reader.in_place:
                live -= just * reader.strip_bytes
            self.bindings -= just * reader.bindings
            self.seconds -= just * reader.seconds
            at_end = reader.in_place and reader.operator == last and not whole
            if at_end and sum(other.operator == last for other in readers) == 1:
                # The output lies in this strip: it is there once. Else it has a strip of its own.
                live -= just * strip

    def _add_kept(self, made: MadeRows, start: Numbers, unit: int) -> None:
        """Add the strips of the rows that later phases need, and copies to them."""
        left = made.ends - start
        calls = total(left > 0)
        if not calls.any():
            return
        self.kept += sum(kept_sizes(made, start)) * unit
        self.bindings += (calls > 0) * (4 * MOVE_BYTES)
        self.seconds += self.moves(calls, total(left) * unit)


# Sketches of all regions that end at one place.

#: More phases than this are many launches for little memory.
MOST_PHASES = 160


@dataclass(frozen=True, slots=True)
class Sketch:
    """Regions of the pieces [first_piece, end_piece), one for each of ``rows``.

    ``strip_bytes``: of all strips, at their fullest. ``scratch_bytes``: the most of any kernel.
    ``binding_bytes``: of kernels and copies. ``touched``: the row values that they read or write where
    these lie whole. ``shared_bytes``: of them that are written over others.
    """

    first_piece: int
    end_piece: int
    rows: tuple[int, ...]
    strip_bytes: Numbers
    scratch_bytes: Numbers
    binding_bytes: Numbers
    seconds: Times
    touched: frozenset[int]
    shared_bytes: Numbers


def sketches(
    network: RowNetwork,
    end: int,
    starts: Mapping[int, int],
    rows: Sequence[int],
    times: RowTimes,
) -> Iterator[Sketch]:
    """Yield the regions that end before piece ``end``, from the last of ``starts`` to the first.

    ``starts`` and ``end`` are places where operators begin, each with so many bytes of strips that regions
    from there are of no use. Only those of ``rows`` that make sense.
    """
    last = network.operators_before(end) - 1
    starts = {
        start: most for start, most in starts.items() if network.operators_before(start) <= last
    }
    if not starts:  # nothing but copies
        return
    height = network.values[network.operators[last].output].height
    useful = tuple(each for each in rows if each <= height <= each * MOST_PHASES)
    if useful:
        first = network.operators_before(min(starts))
        walk = _Backwards(network, end, range(first, last + 1), useful, times)
        yield from walk.walk(starts)


class _Backwards:
    def __init__(
        self,
        network: RowNetwork,
        end: int,
        operators: range,
        rows: tuple[int, ...],
        times: RowTimes,
    ) -> None:
        self._network = network
        self._end = end
        self._operators = operators
        self._rows = rows
        self._after = network.readers.after(end)
        self._run = range(end)
        self._progress = RowsProgress(network, self._run, operators[-1], rows)
        self._scratch: Numbers = np.zeros(len(rows), np.int64)
        self._sums = _Sums(len(rows), operators[0], operators[-1], times)
        self._readers: dict[int, list[_SketchedInput]] = {}  # of what operators before make
        self._outside: list[tuple[int, _SketchedInput]] = []  # with the row value that it reads
        self._written: dict[int, Written] = {}  # what operators make and others read outside
        # What pieces put together of several values, and others read later.
        self._copies: dict[int, list[int]] = {}
        # By what operators make that goes there, and where.
        self._copied: dict[int, dict[int, Written]] = {}
        for value, part in network.copied(self._run):
            self._copies.setdefault(part.row_value, []).append(value)

    def walk(self, starts: Mapping[int, int]) -> Iterator[Sketch]:
        operator = self._operators.stop
        most = max(starts.values())
        for start in sorted(starts, reverse=True):
            first = self._network.operators_before(start)
            while operator > first:
                go_on()
                operator -= 1
                self._add(operator, self._network.operators[operator])
            # Strips of what begins earlier are no smaller.
            least = self._sums.strip_bytes(first).min()
            if least >= most:
                return
            sketch = self._sketch(start, first) if least < starts[start] else None
            if sketch is not None:
                yield sketch

    def _sketch(self, start: int, first: int) -> Sketch | None:
        """Return the regions from piece ``start`` on; None: there is none."""
        pieces = range(start, self._end)
        writes = self._writes(start)
        if writes is None:
            return None
        reads = self._reads(pieces, first)
        if self._network.views(reads, pieces):
            return None
        touched = frozenset(reads) | {item.value for item in writes}
        if not touched.isdisjoint(self._network.in_parts):
            return None
        sums, shared = self._loaded(pieces, first, reads, writes)
        return Sketch(
            start,
            self._end,
            self._rows,
            sums.strip_bytes(first),
            self._scratch.copy(),
            sums.bindings.copy(),
            sums.seconds.copy(),
            touched,
            shared,
        )

    def _reads(self, pieces: range, first: int) -> dict[int, list[_SketchedInput]]:
        """Return the readers of each value that is made before operator ``first``."""
        readers: dict[int, list[_SketchedInput]] = {}
        left = []
        for value, reader in self._outside:
            outside = self._network.made_before(value, pieces, first)
            if outside:
                left.append((value, reader))
            kinds = {reader.alone: reader}
            for part in outside:
                alone = part == value
                if alone not in kinds:
                    kinds[alone] = replace(reader, alone=alone)
                readers.setdefault(part, []).append(kinds[alone])
        self._outside = left
        return readers

    def _writes(self, start: int) -> list[Written] | None:
        """Return what is written where it lies whole; None: that cannot be a region.

        It would copy what is made outside, or write two values to the same memory.
        """
        written = list(self._written.values())
        for part, values in self._copies.items():
            inside = [value for value in values if self._network.values[value].first_piece >= start]
            if inside and part not in self._copied:
                return None
            written += [self._copied[part][value] for value in inside]
        return None if self._network.memory.clash({item.value for item in written}) else written

    def _loaded(
        self,
        pieces: range,
        first: int,
        reads: Mapping[int, Sequence[_SketchedInput]],
        writes: Sequence[Written],
    ) -> tuple[_Sums, Numbers]:
        """Return the sums with what is loaded, and how many bytes are written over others."""
        rows = {value: [item.rows for item in readers] for value, readers in reads.items()}
        sums = self._sums
        needed = [*needed_loadings(self._network, rows, writes)]
        saving = [*saving_loadings(self._network, pieces, rows, writes)]
        if needed or saving:
            sums = sums.copy()
            sums.add_loadings(self._network, needed, reads)
        saved = np.zeros(len(self._rows), np.int64)
        if saving:
            other = sums.copy()
            saved = other.add_loadings(self._network, saving, reads)
            which = other.strip_bytes(first) - saved < sums.strip_bytes(first)
            sums.take(other, which)
            saved[~which] = 0
        return sums, saved

    def _add(self, number: int, item: RowOperator) -> None:
        """Put operator ``number``, which all others follow, into the region."""
        value = self._network.values[item.output]
        unit = self._network.row_bytes[item.output]
        copies = self._copies.get(item.output, ())
        whole = value.value in self._after
        rows = self._progress.made(number, whole or bool(copies))
        self._sums.add_kernels(number, rows, value.height)
        if item.unrolled is not None:
            allocated = unrolled_by_rows(item.unrolled, rows.count * value.shape[3])
            self._scratch = np.maximum(self._scratch, most(np.where(rows.runs, allocated, 0)))
        for _ in range(whole + len(copies)):
            self._sums.add_copies(rows, unit)
        if whole:
            self._written[item.output] = Written(item.output, number, rows.ends)
        if copies:
            self._copied[item.output] = {
                value: Written(value, number, rows.ends) for value in copies
            }
        readers = self._readers.pop(item.output, [])
        self._sums.add_value(number, rows, unit, readers, whole or bool(copies), not whole)
        for position in range(len(item.inputs)):
            self._read(number, position, rows)

    def _read(self, number: int, position: int, made: MadeRows) -> None:
        """Add an input of operator ``number``, which makes ``made``."""
        item = self._network.operators[number]
        taken = item.inputs[position]
        unit = self._network.row_bytes[taken.row_value]
        parts = self._network.parts(taken.row_value, self._run)
        rows = wanted(number, taken.window, made)
        largest, together = (made.most, made.total) if rows.same is made else _sizes(rows)
        reader = _SketchedInput(
            rows,
            item.in_place == position,
            len(parts) == 1 and parts[0].row_value == taken.row_value,
            largest * unit,
            # Rows of what lies whole are elsewhere in each phase; of strips there are a few kinds.
            4 * len(parts) * MOVE_BYTES,
            self._sums.moves(made.calls * len(parts), together * unit),
        )
        self._sums.add_reader(reader)
        self._outside.append((taken.row_value, reader))
        for part in parts:
            self._readers.setdefault(part.row_value, []).append(reader)


def _sizes(rows: WantedRows) -> tuple[Numbers, Numbers]:
    """Return the most rows in any phase of each region, and all of them."""
    count = np.maximum(rows.count, 0)
    return most(count), total(count)
