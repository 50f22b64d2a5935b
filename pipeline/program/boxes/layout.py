"""What lies where in a region: the strips of what is made, and of inputs that are put together.

Only how long each is in use is decided here; how large it is, what happens there tells (phases.py).
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from models.packs.records.row_parts import RowOperator
from pipeline.program.boxes.box import RowBox
from pipeline.program.boxes.stretch import Stretch
from pipeline.program.region_plan import Area, Strips


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
            for slot in range(stretch.slots(position)):
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
        for slot in range(self._stretch.slots_of(value) if value in self._stretch.inside else 0):
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
