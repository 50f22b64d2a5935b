"""The operators of a region that makes boxes, with makers and readers of its values, however it is cut.

A value is given by its number among the row values; *whole*: read outside of the region, so it lies in one
piece there.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from models.packs.records.row_parts import RowOperator
from pipeline.program.boxes.box import Interval, RowBox
from pipeline.program.region_plan import Area, Region, RegionError, Strips
from pipeline.program.row_network import PlaneRange, RowNetwork, readers_of


@dataclass(slots=True)
class Inside:
    """A value that an operator of the region makes, or that is loaded.

    ``maker``: the position of the operator that makes it; of what is loaded, of its first reader.
    ``boxes``: the new ones of each phase, apart from each other. ``whole``: it is read outside where it
    lies whole.
    ``copies``: planes of it that are part of values which lie whole, ``row_value`` being these.
    """

    maker: int
    whole: bool = False
    boxes: list[list[RowBox]] = field(default_factory=list)
    loaded: bool = False
    copies: list[PlaneRange] = field(default_factory=list)

    @property
    def lies_whole(self) -> bool:
        return self.whole or bool(self.copies)


class Stretch(ABC):
    """What is known of ``region`` before anything has a place.

    ``items``: its operators, numbers ``operators`` of the network. ``inside``: what they make, and what is
    loaded, by row value. ``parts``: what each value that they read is of others. ``outside``: what they
    read and others make. ``written``: what is put to where it lies whole. ``over``: pairs of values, what
    is written over what to save memory.

    Raises:
        RegionError: it would copy what is made outside, write two values to the same memory, read what it
            makes under another name, or read or write what is nowhere whole.
    """

    over: tuple[tuple[int, int], ...] = ()

    def __init__(self, network: RowNetwork, region: Region, operators: range) -> None:
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
        copied = {
            copy.row_value for value_inside in self.inside.values() for copy in value_inside.copies
        }
        self.written = frozenset(
            copied | {value for value, value_inside in self.inside.items() if value_inside.whole}
        )
        self._check()

    def _check(self) -> None:
        first, end = self.region.first_piece, self.region.end_piece
        if self.network.memory.clash(self.written):
            raise RegionError(f"pieces {first} to {end} would overwrite what they made")
        if self.network.views(self.outside, self.region.pieces):
            raise RegionError(f"pieces {first} to {end} read what they made under another name")
        for value in sorted(self.network.in_parts & (self.outside | self.written)):
            raise RegionError(f"{self.name(value)} is nowhere whole")

    @property
    def phases(self) -> int:
        """How many there are."""
        return len(self.inside[self.items[-1].output].boxes)

    @property
    @abstractmethod
    def direct(self) -> frozenset[tuple[int, int]]:
        """The inputs that are, in every phase, just what their makers make in it."""

    @abstractmethod
    def needed(self, position: int, number: int, box: RowBox) -> RowBox:
        """Return the box of input ``number`` that ``box`` is made of; it may reach outside of it."""

    @cached_property
    def slots(self) -> dict[int, int]:
        """How many boxes of each value there are at most in a phase."""
        return {value: max(1, *map(len, each.boxes)) for value, each in self.inside.items()}

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
    def readers(self) -> dict[int, list[tuple[int, int]]]:
        """For each value of one maker, its readers: operators and which of their inputs it is part of."""
        return readers_of(self.items, self.parts, self.inside)

    def gathering(self, value: int) -> list[tuple[int, int]]:
        """Return those of its readers for which boxes are put together."""
        return [reader for reader in self.readers[value] if reader not in self.direct]

    def all_of(self, value: int) -> RowBox:
        """Return the box that is all of ``value``."""
        return self._all[value]

    @cached_property
    def _all(self) -> dict[int, RowBox]:
        values = {*self.inside, *self.written, *self.parts, *self.outside}
        return {
            value: RowBox(Interval(0, height), Interval(0, width))
            for value in values
            for _, _, height, width in [self.network.values[value].shape]
        }

    def name(self, value: int) -> str:
        return self.network.values[value].name


# What lies where in a region: the strips of what is made, and of inputs that are put together.
#
# Only how long each is in use is decided here; its size follows from what happens there (regions.py).


class Lying(NamedTuple):
    """``box`` of a row value as it lies in a strip from ``offset`` on; None: in the whole value."""

    row_value: int
    strip: int | None
    box: RowBox
    offset: int = 0

    def area(self, box: RowBox, first_plane: int, planes: int) -> Area:
        """Return ``box``, some of what lies there, of some planes."""
        rows, columns = self.box.rows, self.box.columns
        return Area(
            self.row_value,
            self.strip,
            rows.end - rows.first,
            columns.end - columns.first,
            first_plane,
            planes,
            box.rows.first - rows.first,
            box.rows.end - box.rows.first,
            box.columns.first - columns.first,
            box.columns.end - box.columns.first,
            self.offset,
        )


class Keeping:
    """What phases keep for later ones, and where."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], list[Lying]] = {}
        self._put: dict[tuple[int, int], list[Lying]] = {}

    def add_held(self, phase: int, place: Lying) -> None:
        """Have ``place`` hold something in ``phase`` that earlier ones made."""
        self._held.setdefault((phase, place.row_value), []).append(place)

    def add_put(self, phase: int, position: int, place: Lying) -> None:
        """Have what ``place`` should hold put there in ``phase`` after operator ``position``."""
        self._put.setdefault((phase, position), []).append(place)

    def held(self, phase: int, value: int) -> Sequence[Lying]:
        return self._held.get((phase, value), ())

    def put(self, phase: int, position: int) -> Sequence[Lying]:
        return self._put.get((phase, position), ())


class StripLayout:
    """The ``strips`` of a region. An operator that makes several boxes in a phase has a slot for each.

    ``made``: by row value and slot. ``own``: of inputs that are put together, by position of the operator,
    number of the input, and slot.
    """

    def __init__(self, stretch: Stretch) -> None:
        self._stretch = stretch
        self.strips = Strips(len(stretch.items))
        self.made: dict[tuple[int, int], int] = {}
        self.own: dict[tuple[int, int, int], int] = {}
        for position, item in enumerate(stretch.items):
            for value in stretch.loaded[position]:
                self.made[value, 0] = self.strips.during(position, position + 1)
            for slot in range(stretch.slots[item.output]):
                self._place(position, item, slot)
            for taken in item.inputs:
                for part in stretch.parts[taken.row_value]:
                    self._read(part.row_value, position)

    def place(self, value: int, strip: int, box: RowBox, offset: int = 0) -> Lying:
        """Return ``box`` as it lies in ``strip``, which holds nothing else then."""
        self.strips.hold(strip, offset + self.n_bytes(value, box))
        return Lying(value, strip, box, offset)

    def n_bytes(self, value: int, box: RowBox) -> int:
        """Return what ``box`` of all planes takes."""
        return self._pixel_bytes[value] * box.pixels

    @cached_property
    def _pixel_bytes(self) -> dict[int, int]:
        """What a column of a row takes, of all planes."""
        return {
            value: self._stretch.network.values[value].n_bytes // self._stretch.all_of(value).pixels
            for value in {*self._stretch.inside, *self._stretch.parts}
        }

    def _place(self, position: int, item: RowOperator, slot: int) -> None:
        for number in range(len(item.inputs)):
            if (position, number) not in self._stretch.direct:
                self.own[position, number, slot] = self.strips.during(position, position + 1)
        shared = None if item.in_place is None else self._shared(position, item.in_place, slot)
        if shared is None:
            shared = self.strips.during(position, position + 1)
        self.made[item.output, slot] = shared

    def _read(self, value: int, position: int) -> None:
        """Have ``value`` there until operator ``position`` has run."""
        for slot in range(self._stretch.slots.get(value, 0)):
            self.strips.prolong(self.made[value, slot], position + 1)

    def _shared(self, position: int, number: int, slot: int) -> int | None:
        """Return the strip of an input that the output may lie in; None: nothing may lie in it."""
        own = self.own.get((position, number, slot))
        if own is not None:
            return own
        value = self._stretch.items[position].inputs[number].row_value
        strip = self.made[value, slot]
        is_free = not self._stretch.inside[value].lies_whole and not any(
            later >= position and (later, place) != (position, number)
            for (other, _), lying in self.made.items()
            if lying == strip
            for later, place in self._stretch.readers[other]
        )
        return strip if is_free else None
