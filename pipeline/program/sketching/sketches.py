"""What regions need that end at one place, for all places where they may begin and several numbers of rows.

A planner asks for thousands of regions and takes a few. So this walks the operators backwards once: which
rows an operator makes depends on what follows it alone, and so does the memory of its strips. Whatever is
proposed here ``plan_region`` makes, in just this memory; times and bindings are close to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.packs.records.row_parts import RowOperator, unrolled_by_rows
from pipeline.program.loading import Written, needed_loadings, saving_loadings
from pipeline.program.many_rows import (
    MadeRows,
    Numbers,
    RowsProgress,
    Times,
    WantedRows,
    most,
    total,
    wanted,
)
from pipeline.program.row_network import RowNetwork
from pipeline.program.row_times import RowTimes
from pipeline.program.sketching.sketch_sums import SketchedInput, Sums
from pipeline.program.steps import MOVE_BYTES
from pipeline.program.stopping import go_on

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
        self._sums = Sums(len(rows), operators[0], operators[-1], times)
        self._readers: dict[int, list[SketchedInput]] = {}  # of what operators before make
        self._outside: list[tuple[int, SketchedInput]] = []  # with the row value that it reads
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
        writes = self._writes(start, first)
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

    def _reads(self, pieces: range, first: int) -> dict[int, list[SketchedInput]]:
        """Return who reads each value that is made before operator ``first``."""
        found: dict[int, list[SketchedInput]] = {}
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
                found.setdefault(part, []).append(kinds[alone])
        self._outside = left
        return found

    def _writes(self, start: int, first: int) -> list[Written] | None:
        """Return what is written where it lies whole; None: that cannot be a region.

        It would copy what is made outside, or write two values to the same memory.
        """
        found = list(self._written.values())
        for part, values in self._copies.items():
            inside = [value for value in values if self._network.values[value].first_piece >= start]
            if inside and part not in self._copied:
                return None
            found += [self._copied[part][value] for value in inside]
        return None if self._network.memory.clash({item.value for item in found}) else found

    def _loaded(
        self,
        pieces: range,
        first: int,
        reads: Mapping[int, Sequence[SketchedInput]],
        writes: Sequence[Written],
    ) -> tuple[Sums, Numbers]:
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
        made = self._progress.made(number, whole or bool(copies))
        self._sums.add_kernels(number, made, value.height)
        if item.unrolled is not None:
            allocated = unrolled_by_rows(item.unrolled, made.count * value.shape[3])
            self._scratch = np.maximum(self._scratch, most(np.where(made.runs, allocated, 0)))
        for _ in range(whole + len(copies)):
            self._sums.add_copies(made, unit)
        if whole:
            self._written[item.output] = Written(item.output, number, made.ends)
        if copies:
            self._copied[item.output] = {
                value: Written(value, number, made.ends) for value in copies
            }
        readers = self._readers.pop(item.output, [])
        self._sums.add_value(number, made, unit, readers, whole or bool(copies), not whole)
        for position in range(len(item.inputs)):
            self._read(number, position, made)

    def _read(self, number: int, position: int, made: MadeRows) -> None:
        """Add an input of operator ``number``, which makes ``made``."""
        item = self._network.operators[number]
        taken = item.inputs[position]
        unit = self._network.row_bytes[taken.row_value]
        parts = self._network.parts(taken.row_value, self._run)
        rows = wanted(number, taken.window, made)
        largest, together = (made.most, made.total) if rows.same is made else _sizes(rows)
        reader = SketchedInput(
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
