"""The part of a model that can run on rows, with the makers and readers of its values."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from models.packs.records.row_parts import RowOperator, RowValue
from pipeline.program.program import Program
from pipeline.program.shared_memory import Readers, SharedMemory


@dataclass(frozen=True, slots=True)
class PlaneRange:
    """Planes [source_plane, source_plane + planes) of a value; another has them from ``first_plane`` on."""

    row_value: int
    source_plane: int
    first_plane: int
    planes: int


_first_plane = attrgetter("first_plane")


class _Made(NamedTuple):
    """What a value is of others: ``values`` of the ``parts``, and their ``makers``, ascending; -1: none."""

    parts: tuple[PlaneRange, ...]
    values: list[int]
    makers: list[int]


class RowNetwork:
    """The row operators of ``program``, by the pieces that they replace.

    Of a part of a network ``operators`` are those of the whole, of which its ``own`` are here.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.operators: tuple[RowOperator, ...] = program.row_operators
        self.values: tuple[RowValue, ...] = program.row_values
        self.own = self.operators_within(program.own)
        self.memory = SharedMemory(program)
        self.readers = Readers(program)
        # By value, and which of the copies that it is made of are in the region: [first, end) of all.
        self._expanded: dict[tuple[int, int, int], _Made] = {}
        self._same: dict[PlaneRange, PlaneRange] = {}

    @cached_property
    def covered(self) -> frozenset[int]:
        """The pieces that row operators replace."""
        return frozenset(piece for pieces in self._replaced for piece in pieces)

    @cached_property
    def _replaced(self) -> list[range]:
        """The pieces of each operator, then those that copy parts of values."""
        replaced = [range(item.first_piece, item.end_piece) for item in self._own_operators]
        return replaced + [range(item.first_piece, item.end_piece) for item in self.values]

    @cached_property  # asked for each operator of thousands of regions
    def row_bytes(self) -> list[int]:
        """Bytes of a row of all planes of each value."""
        return [value.planes * value.row_bytes for value in self.values]

    @property
    def _own_operators(self) -> tuple[RowOperator, ...]:
        return self.operators[self.own.start : self.own.stop]

    @cached_property
    def runs(self) -> list[range]:
        """Ranges of pieces, as long as possible, that are all covered."""
        ranges: list[range] = []
        for piece in sorted(self.covered):
            if ranges and ranges[-1].stop == piece:
                ranges[-1] = range(ranges[-1].start, piece + 1)
            else:
                ranges.append(range(piece, piece + 1))
        return ranges

    def run_to(self, end: int) -> range:
        """Return the pieces before ``end`` that are all covered: regions that end there are of them."""
        index = bisect_left(self._ends_of_runs, end)
        return range(self.runs[index].start, end)

    @cached_property
    def _ends_of_runs(self) -> list[int]:
        return [run.stop for run in self.runs]

    @cached_property
    def places(self) -> frozenset[int]:
        """The pieces before which a region may begin or end."""
        edges = {edge for run in self.runs for edge in (run.start, run.stop)}
        edges |= {item.first_piece for item in self._own_operators}
        inner = {piece for pieces in self._replaced for piece in pieces[1:]}
        return frozenset(edges - inner)

    def operators_before(self, piece: int) -> int:
        """Return how many operators belong to pieces before ``piece``."""
        return bisect_left(self._first_pieces, piece)

    def operators_within(self, pieces: range) -> range:
        """Return the operators that belong to ``pieces``."""
        return range(self.operators_before(pieces.start), self.operators_before(pieces.stop))

    @cached_property
    def _first_pieces(self) -> list[int]:
        return [item.first_piece for item in self.operators]

    @cached_property
    def makers(self) -> dict[int, int]:
        """Which operator makes a row value, where one does."""
        return {self.operators[number].output: number for number in self.own}

    def within(self, pieces: range) -> range | None:
        """Return the operators that replace ``pieces``; None where they do not begin or end there."""
        if not self.covered.issuperset(pieces) or any(
            replaced.start < edge < replaced.stop
            for replaced in self._replaced
            for edge in (pieces.start, pieces.stop)
        ):
            return None
        return self.operators_within(pieces) or None

    def parts_read(
        self, items: Iterable[RowOperator], pieces: range
    ) -> dict[int, tuple[PlaneRange, ...]]:
        """Return the parts of each row value that operators ``items`` of a region take."""
        values = {taken.row_value for item in items for taken in item.inputs}
        return {value: self.parts(value, pieces) for value in values}

    def parts(self, row_value: int, pieces: range) -> tuple[PlaneRange, ...]:
        """Return what of other values ``row_value`` is for a region of ``pieces``.

        They are values of one maker, or such that pieces before the region have put together.
        """
        return self._made_of(row_value, pieces).parts

    def made_before(self, row_value: int, pieces: range, operator: int) -> Sequence[int]:
        """Return the values among ``parts`` that operators before ``operator`` make, or none does."""
        made = self._made_of(row_value, pieces)
        return made.values[: bisect_left(made.makers, operator)]

    def _made_of(self, row_value: int, pieces: range) -> "_Made":
        copies = self._copies[row_value]
        key = row_value, bisect_left(copies, pieces.start), bisect_left(copies, pieces.stop)
        if key not in self._expanded:
            parts = [
                self._same.setdefault(part, part) for part in self._made_within(row_value, pieces)
            ]
            by_maker = sorted(
                {(self.makers.get(part.row_value, -1), part.row_value) for part in parts}
            )
            values, makers = [value for _, value in by_maker], [maker for maker, _ in by_maker]
            self._expanded[key] = _Made(tuple(parts), values, makers)
        return self._expanded[key]

    @cached_property
    def _copies(self) -> list[list[int]]:
        """For each value the pieces that put it together, or parts of it, ascending."""
        copies: list[list[int]] = []
        for value in self.values:
            inside = {piece for part in value.parts for piece in copies[part.row_value]}
            if value.parts and value.end_piece:
                inside.add(value.first_piece)
            copies.append(sorted(inside))
        return copies

    def _made_within(self, row_value: int, pieces: range) -> Iterator[PlaneRange]:
        row = self.values[row_value]
        if not row.parts or (row.end_piece and row.first_piece not in pieces):
            yield PlaneRange(row_value, 0, 0, row.planes)
            return
        plane = 0
        for part in row.parts:
            end = part.first_plane + part.planes
            inner = self.parts(part.row_value, pieces)
            number = bisect_right(inner, part.first_plane, key=_first_plane) - 1
            while number < len(inner) and inner[number].first_plane < end:
                item = inner[number]
                low = max(item.first_plane, part.first_plane)
                high = min(item.first_plane + item.planes, end)
                source = item.source_plane + low - item.first_plane
                yield PlaneRange(item.row_value, source, plane + low - part.first_plane, high - low)
                number += 1
            plane += part.planes

    def copied(self, pieces: range) -> Iterator[tuple[int, PlaneRange]]:
        """Yield values that ``pieces`` put together and others read later, and what they are made of."""
        after = self.readers.after(pieces.stop)
        for number, value in enumerate(self.values):
            if value.end_piece and value.first_piece in pieces and value.value in after:
                yield from ((number, part) for part in self.parts(number, pieces))

    @cached_property
    def in_parts(self) -> frozenset[int]:
        """The row values that lie nowhere whole: between the operators of a piece values are smaller."""
        values = self.program.values
        return frozenset(
            number
            for number, row_value in enumerate(self.values)
            if values[row_value.value].n_bytes != row_value.n_bytes
        )

    def same_form(self, one: int, other: int) -> bool:
        """Return whether rows of two values lie alike in memory."""
        first, second = self.values[one], self.values[other]
        return (first.planes, first.height, first.row_bytes) == (
            second.planes,
            second.height,
            second.row_bytes,
        )

    def last_read(self, numbers: Iterable[int], pieces: range) -> list[int]:
        """Return which of the row values ``numbers`` are not read after ``pieces``, the first one first.

        They are whole, have memory of their own, and are made before, so what ``pieces`` make may be
        written over them.
        """
        after = self.readers.after(pieces.stop)
        return sorted(
            number
            for number in self.alone.intersection(numbers)
            if self._first_piece[number] < pieces.start and self.values[number].value not in after
        )

    @cached_property
    def alone(self) -> frozenset[int]:
        """The values that are all of their memory, and no input or output of the model."""
        values = self.program.values
        parents = {value.parent for value in values}
        ports = {port.value for port in (*self.program.inputs, *self.program.outputs)}
        return frozenset(
            number
            for number in self.makers
            for index in (self.values[number].value,)
            if index not in parents and index not in ports and values[index].parent is None
        )

    @cached_property
    def _first_piece(self) -> dict[int, int]:
        return {value: self.operators[number].first_piece for value, number in self.makers.items()}

    def views(self, row_values: Iterable[int], pieces: range) -> bool:
        """Return whether ``pieces`` make what one of ``row_values`` is another name of.

        A region of them would have it in strips, and the other name's memory would hold nothing.
        """
        return any(piece in pieces for value in row_values for piece in self._viewed.get(value, ()))

    @cached_property
    def _viewed(self) -> dict[int, frozenset[int]]:
        """For each row value that no piece writes, the pieces that write what its readers see."""
        writers: dict[int, set[int]] = {}
        for number in self.program.own:
            for operand in self.program.pieces[number].outputs:
                writers.setdefault(operand.index, set()).add(number)
        pieces_of = {}
        for number, first in self._first_reader.items():
            value_seen = self.values[number].value
            if value_seen not in writers:
                seen = (
                    piece
                    for value in self.readers.seen[value_seen]
                    for piece in writers.get(value, ())
                )
                # What a reader, or a later piece, writes over it does not count: it is not read.
                pieces_of[number] = frozenset(piece for piece in seen if piece < first)
        return pieces_of

    @cached_property
    def _first_reader(self) -> dict[int, int]:
        """The first piece whose operator reads a row value, alone or as a part of another."""
        first: dict[int, int] = {}
        for item in reversed(self._own_operators):
            first.update((taken.row_value, item.first_piece) for taken in item.inputs)
        for number in reversed(range(len(self.values))):
            for part in self.values[number].parts if number in first else ():
                before = first.get(part.row_value, first[number])
                first[part.row_value] = min(before, first[number])
        return first


def readers_of(
    items: Sequence[RowOperator], parts: Mapping[int, Sequence[PlaneRange]], made: Iterable[int]
) -> dict[int, list[tuple[int, int]]]:
    """Return the readers of each of ``made``: positions of ``items``, and which of their inputs it is in.

    ``parts``: of each row value that they take, as ``RowNetwork.parts_read`` says.
    """
    readers: dict[int, list[tuple[int, int]]] = {value: [] for value in made}
    for position, item in enumerate(items):
        for number, taken in enumerate(item.inputs):
            for part in parts[taken.row_value]:
                if part.row_value in readers:
                    readers[part.row_value].append((position, number))
    return readers
