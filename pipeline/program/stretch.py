"""The operators of a region before anything happens: what they make, load and keep, and in which strips.

A value is given by its number among the row values; *whole*: read outside of the region, so it lies in one
piece there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from models.packs.records.row_parts import RowOperator
from pipeline.program.many_rows import (
    MadeRows,
    RowsProgress,
    WantedRows,
    Written,
    kept_rows,
    made_of,
    needed_loadings,
    saving_loadings,
    wanted,
)
from pipeline.program.region_plan import Area, Interval, Region, RegionError, Strips
from pipeline.program.row_network import PlaneRange, RowNetwork, readers_of


@dataclass(slots=True)
class Inside:
    """A value that an operator of the region makes, or that is loaded.

    ``maker``: the position of the operator that makes it; of what is loaded, of its first reader.
    ``whole``: it is read outside where it lies whole.
    ``copies``: planes of it that are part of values which lie whole, ``row_value`` being these.
    """

    maker: int
    whole: bool = False
    loaded: bool = False
    copies: list[PlaneRange] = field(default_factory=list)

    @property
    def lies_whole(self) -> bool:
        return self.whole or bool(self.copies)


class Stretch:
    """What is known of ``region``, ``rows`` rows at a time, before anything has a place.

    ``items``: its operators, numbers ``operators`` of the network. ``inside``: what they make, and what is
    loaded, by row value; ``rows``: the new ones of each phase. ``parts``: what each value that they read is
    of others. ``outside``: what they read and others make. ``written``: what is put to where it lies whole.
    ``over``: pairs of values, what is written over what to save memory, none unless ``saving``.

    Raises:
        RegionError: it would copy what is made outside, write two values to the same memory, read what it
            makes under another name, or read or write what is nowhere whole.
    """

    def __init__(
        self, network: RowNetwork, region: Region, operators: range, rows: int, saving: bool
    ) -> None:
        self.network = network
        self.region = region
        self.operators = operators
        self.items: Sequence[RowOperator] = [network.operators[number] for number in operators]
        after = network.readers.after(region.end_piece)
        self.inside = {
            item.output: Inside(position, network.values[item.output].value in after)
            for position, item in enumerate(self.items)
        }
        for value, part in network.copied(region.pieces):
            if part.row_value not in self.inside:
                raise RegionError(f"{self.name(value)} is put together of what is made outside")
            self.inside[part.row_value].copies.append(replace(part, row_value=value))
        self.parts = network.parts_read(self.items, region.pieces)
        read = {part.row_value for parts in self.parts.values() for part in parts}
        self.outside = frozenset(read - self.inside.keys())
        copied = {copy.row_value for inside in self.inside.values() for copy in inside.copies}
        self.written = frozenset(
            copied | {value for value, inside in self.inside.items() if inside.whole}
        )
        self._check()
        self._made = self._made_rows(rows)
        self._wanted = {
            (position, number): wanted(position, taken.window, self._made[item.output])
            for position, item in enumerate(self.items)
            for number, taken in enumerate(item.inputs)
        }
        self.over = tuple(self._load(saving))
        self.rows = {
            value: [*map(Interval, made.first[0].tolist(), made.ends[0].tolist())]
            for value, made in self._made.items()
        }

    def _check(self) -> None:
        first, end = self.region.first_piece, self.region.end_piece
        if self.network.memory.clash(self.written):
            raise RegionError(f"pieces {first} to {end} would overwrite what they made")
        if self.network.views(self.outside, self.region.pieces):
            raise RegionError(f"pieces {first} to {end} read what they made under another name")
        for value in sorted(self.network.in_parts & (self.outside | self.written)):
            raise RegionError(f"{self.name(value)} is nowhere whole")

    def _made_rows(self, rows: int) -> dict[int, MadeRows]:
        """Return the rows of each value that operators make; phases before any are none."""
        progress = RowsProgress(self.network, self.region.pieces, self.operators[-1], (rows,))
        ends = {
            item.output: progress.ends(number, self.inside[item.output].lies_whole)
            for number, item in zip(reversed(self.operators), reversed(self.items), strict=True)
        }
        begun = int((np.concatenate(list(ends.values())) > 0).any(axis=0).argmax())
        return {item.output: made_of(ends[item.output][:, begun:]) for item in self.items}

    def _load(self, saving: bool) -> Iterator[tuple[int, int]]:
        """Find the values that are loaded; yield pairs, one value written over the other to save memory."""
        reads: dict[int, list[WantedRows]] = {
            value: [self._wanted[reader] for reader in readers]
            for value, readers in readers_of(self.items, self.parts, self.outside).items()
        }
        writes = [
            Written(written, inside.maker, self._made[value].ends)
            for value, inside in self.inside.items()
            for written in [*[value] * inside.whole, *(copy.row_value for copy in inside.copies)]
        ]
        loaded = [*needed_loadings(self.network, reads, writes)]
        if saving:
            loaded += saving_loadings(self.network, self.region.pieces, reads, writes)
        for item in loaded:
            if item.which[0]:
                self._made[item.value] = item.made
                self.inside[item.value] = Inside(item.operator, loaded=True)
                if item.new is not None:
                    yield item.new, item.value

    @property
    def phases(self) -> int:
        """How many there are."""
        return len(self.rows[self.items[-1].output])

    @cached_property
    def loaded(self) -> list[list[int]]:
        """For each operator, the values that are loaded before it runs."""
        return [
            [
                value
                for value, inside in self.inside.items()
                if inside.loaded and inside.maker == position
            ]
            for position in range(len(self.items))
        ]

    @cached_property
    def direct(self) -> frozenset[tuple[int, int]]:
        """The inputs that are, in every phase, just what their makers make in it."""
        return frozenset(
            (position, number)
            for (position, number), read in self._wanted.items()
            for value in [self.items[position].inputs[number].row_value]
            if value in self.inside and read.is_just(self._made[value])[0]
        )

    @cached_property
    def readers(self) -> dict[int, list[tuple[int, int]]]:
        """For each value of one maker, its readers: operators and which of their inputs it is part of."""
        return readers_of(self.items, self.parts, self.inside)

    def gathering(self, value: int) -> list[tuple[int, int]]:
        """Return those of its readers for which rows are put together."""
        return [reader for reader in self.readers[value] if reader not in self.direct]

    def left(self, value: int) -> tuple[list[Interval], bool]:
        """Return the rows of ``value`` that are needed after each phase, and whether any wait longer."""
        made = self._made[value]
        everywhere = np.ones(1, bool)
        gathering = [(self._wanted[reader], everywhere) for reader in self.gathering(value)]
        start, end = kept_rows(made, gathering)
        left = [*map(Interval, start[0].tolist(), end[0].tolist())]
        return left, bool((start < made.first).any())

    def name(self, value: int) -> str:
        return self.network.values[value].name


# What lies where in a region: the strips of what is made, of inputs that are put together, of what is kept.
#
# Only how long each is in use is decided here; its size follows from what happens there (regions.py).


class Lying(NamedTuple):
    """``rows`` of a row value as they lie in a strip; None: in the whole value."""

    row_value: int
    strip: int | None
    rows: Interval

    def area(self, rows: Interval, first_plane: int, planes: int) -> Area:
        """Return ``rows``, some of what lies there, of some planes."""
        first, end = self.rows.first, self.rows.end
        return Area(
            self.row_value,
            self.strip,
            end - first,
            first_plane,
            planes,
            rows.first - first,
            rows.end - rows.first,
        )


@dataclass(slots=True)
class Keeping:
    """Rows of ``value`` that phases keep for later ones: those ``left`` after each phase.

    Operator ``update`` is the last that makes or reads any; then they are put there. ``strips`` are two
    where rows move from one to the other, one where they are kept for one phase at most. ``now``: what is
    kept when a phase begins.
    """

    value: int
    left: Sequence[Interval]
    update: int
    strips: Sequence[int]
    now: Lying
    turn: int = 0

    def turned(self, phase: int, new: bool) -> int | None:
        """Return the strip for what is left after ``phase``; None: it is there. ``new``: rows were made."""
        if not new and self.left[phase] == self.now.rows:
            return None
        self.turn = (self.turn + 1) % len(self.strips)
        return self.strips[self.turn]


class StripLayout:
    """The ``strips`` of a region, those where rows are ``kept`` last.

    ``made``: by row value. ``own``: of inputs that are put together, by position of the operator and number
    of the input.
    """

    def __init__(self, stretch: Stretch) -> None:
        self._stretch = stretch
        self.strips = Strips(len(stretch.items))
        self.made: dict[int, int] = {}
        self.own: dict[tuple[int, int], int] = {}
        for position, item in enumerate(stretch.items):
            for value in stretch.loaded[position]:
                self.made[value] = self.strips.during(position, position + 1)
            self._place(position, item)
            for taken in item.inputs:
                for part in stretch.parts[taken.row_value]:
                    if part.row_value in self.made:
                        self.strips.prolong(self.made[part.row_value], position + 1)
        self.kept = [*self._kept()]

    def place(self, value: int, strip: int, rows: Interval) -> Lying:
        """Return ``rows`` as they lie in ``strip``, which holds nothing else then."""
        self.strips.hold(strip, self._stretch.network.row_bytes[value] * len(rows))
        return Lying(value, strip, rows)

    def _place(self, position: int, item: RowOperator) -> None:
        for number in range(len(item.inputs)):
            if (position, number) not in self._stretch.direct:
                self.own[position, number] = self.strips.during(position, position + 1)
        shared = None if item.in_place is None else self._shared(position, item.in_place)
        if shared is None:
            shared = self.strips.during(position, position + 1)
        self.made[item.output] = shared

    def _shared(self, position: int, number: int) -> int | None:
        """Return the strip of an input that the output may lie in; None: nothing may lie in it."""
        own = self.own.get((position, number))
        if own is not None:
            return own
        value = self._stretch.items[position].inputs[number].row_value
        strip = self.made[value]
        is_free = not self._stretch.inside[value].lies_whole and not any(
            later >= position and (later, place) != (position, number)
            for other, lying in self.made.items()
            if lying == strip
            for later, place in self._stretch.readers[other]
        )
        return strip if is_free else None

    def _kept(self) -> Iterator[Keeping]:
        """Yield the rows that phases keep for later ones: of each value in strips of its own."""
        stretch = self._stretch
        for value, inside in stretch.inside.items():
            readers = stretch.gathering(value)
            if not readers or inside.whole:
                continue
            left, waits = stretch.left(value)
            if not any(left):
                continue
            strips = [self.strips.kept() for _ in range(2 if waits else 1)]
            update = max([inside.maker, *(position for position, _ in readers)])
            self.strips.prolong(self.made[value], update + 1)
            nothing = Lying(value, strips[0], Interval(0, 0))
            yield Keeping(value, left, update, strips, nothing)
