"""What lies where in a region: the strips of what is made, of inputs put together, of what is kept.

Only how long each is in use is decided here; how large it is, what happens there tells (region_phases.py).
"""

from dataclasses import dataclass, field

from models.packs.records.rows import RowOperator
from pipeline.program.region_plan import Strip
from pipeline.program.region_rows import RegionRows


@dataclass(slots=True)
class Building:
    """A strip whose size is not known before all phases are."""

    start: int
    end: int
    kept: bool = False
    n_bytes: int = 0

    def holds(self, n_bytes: int) -> None:
        self.n_bytes = max(self.n_bytes, n_bytes)

    def built(self) -> Strip:
        return Strip(self.n_bytes, self.start, self.end, self.kept)


@dataclass(slots=True)
class Held:
    """The strips of one row value: ``strip`` for its new rows, ``kept`` for those of earlier phases.

    ``kept``: two where rows move from one to the other, at most one where they do not.
    """

    strip: int = -1
    kept: list[int] = field(default_factory=list)


class StripLayout:
    """The ``strips`` of a region.

    ``held``: of what is made or loaded, by row value. ``own``: of inputs that are put together, by operator
    and number of the input. ``updates``: for each operator, the values whose kept rows change after it.
    """

    def __init__(self, rows: RegionRows) -> None:
        self._rows = rows
        self.strips: list[Building] = []
        self.held = {value: Held() for value in rows.made}
        self.own: dict[tuple[int, int], int] = {}
        self.updates: list[list[int]] = [[] for _ in rows.operators]
        self._place()

    def _place(self) -> None:
        """Make the strips: of what is made, of inputs that are put together, of what is kept."""
        for position, item in enumerate(self._rows.items):
            for value in self._rows.loaded_before(position):
                self.held[value].strip = self._strip(position)
            for number in range(len(item.inputs)):
                if not self._rows.is_direct(position, number):
                    self.own[position, number] = self._strip(position)
            self._place_output(position, item)
            self._prolong(position, item)
        for value, made in self._rows.made.items():
            readers = self._rows.gathering[value]
            if readers and not made.whole and self._rows.is_kept(value):
                self._keep(value, max([made.maker, *(position for position, _ in readers)]))

    def _keep(self, value: int, update: int) -> None:
        """Make strips for rows that later phases need; they change after operator ``update``."""
        held, end = self.held[value], len(self._rows.items)
        count = 2 if self._rows.waits(value) else 1
        held.kept = [self._strip(0, end, kept=True) for _ in range(count)]
        self._extend(held.strip, update)
        self.updates[update].append(value)

    def _strip(self, start: int, end: int | None = None, kept: bool = False) -> int:
        self.strips.append(Building(start, start + 1 if end is None else end, kept))
        return len(self.strips) - 1

    def _extend(self, strip: int, position: int) -> None:
        self.strips[strip].end = max(self.strips[strip].end, position + 1)

    def _place_output(self, position: int, item: RowOperator) -> None:
        held = self.held[item.output]
        held.strip = self._strip(position)
        if item.in_place is None:
            return
        shared = self.own.get((position, item.in_place))
        if shared is None and self._is_last_use(position, item.in_place):
            shared = self.held[item.inputs[item.in_place].row_value].strip
        if shared is not None:
            self.strips.pop()
            held.strip = shared

    def _prolong(self, position: int, item: RowOperator) -> None:
        """Keep what operator ``position`` reads until then."""
        for taken in item.inputs:
            for part in self._rows.parts[taken.row_value]:
                if part.row_value in self.held:
                    self._extend(self.held[part.row_value].strip, position)

    def _is_last_use(self, position: int, number: int) -> bool:
        """Return whether nothing needs the strip of an input after operator ``position``."""
        taken = self._rows.items[position].inputs[number].row_value
        made = self._rows.made.get(taken)
        if made is None or made.whole or made.copies:
            return False
        return not any(
            (later, place) != (position, number)
            and (later >= position or not self._rows.is_direct(later, place))
            for value, held in self.held.items()
            if held.strip == self.held[taken].strip
            for later, place in self._rows.readers[value]
        )
