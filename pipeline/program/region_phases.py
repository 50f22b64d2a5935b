"""What happens in a region, phase by phase: rows are loaded, gathered, computed, copied out and kept."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from models.packs.records.rows import RowInput, RowOperator
from pipeline.program.region_plan import Action, Area, Call, Fill, Move, RegionError
from pipeline.program.region_rows import RegionRows
from pipeline.program.region_strips import StripLayout
from pipeline.program.row_network import Part
from pipeline.program.row_ranges import Rows

_NONE = Rows(0, 0)


@dataclass(slots=True)
class _Now:
    """Which rows of a value are there: the new ones of this phase, and those kept in ``kept[turn]``."""

    new_rows: Rows = _NONE
    kept_rows: Rows = _NONE
    turn: int = 0


class Phases:
    """Tells the actions of a region. ``read``: the row values taken from where they lie whole, so far.

    Strips grow, meanwhile, to what they have to hold.
    """

    def __init__(self, rows: RegionRows, layout: StripLayout) -> None:
        self._rows = rows
        self._layout = layout
        self._now = {value: _Now() for value in rows.made}
        self.read: set[int] = set()

    def phase(self, phase: int) -> Iterator[Action]:
        """Yield what phase ``phase`` does; phases come in their order, each once."""
        for value, made in self._rows.made.items():
            now = self._now[value]
            now.new_rows = made.rows[phase]
            if self._layout.held[value].kept:
                now.kept_rows = self._rows.left(value, phase - 1) if phase else _NONE
        for position, item in enumerate(self._rows.items):
            rows = self._rows.ranges[phase][position]
            for value in self._rows.loaded_before(position):
                if self._now[value].new_rows:
                    yield self._load(value)
            if rows:
                yield from self._run(position, item, rows)
            for value in self._layout.updates[position]:
                yield from self._keep(value, self._rows.left(value, phase))

    def _load(self, value: int) -> Move:
        self.read.add(value)
        rows = self._now[value].new_rows
        source = replace(self._whole(value), first_row=rows.first, rows=len(rows))
        return Move(source, self._new(value, len(rows)))

    def _run(self, position: int, item: RowOperator, rows: Rows) -> Iterator[Action]:
        areas = []
        for number, taken in enumerate(item.inputs):
            wanted = rows.through(taken.window)
            own = self._layout.own.get((position, number))
            if own is None:
                areas.append(self._new(taken.row_value, len(wanted)))
                continue
            target = self._whole_strip(taken.row_value, own, len(wanted))
            yield from self._gather(taken, wanted, target)
            areas.append(target)
        made = self._rows.made[item.output]
        output = self._new(item.output, len(rows))
        yield Call(self._rows.operators[position], item.graph, tuple(areas), output)
        itself = Part(item.output, 0, 0, output.planes)
        for copy in (*([itself] if made.whole else []), *made.copies):
            yield Move(
                _planes(output, copy),
                replace(
                    self._whole(copy.row_value),
                    first_plane=copy.first_plane,
                    planes=copy.planes,
                    first_row=rows.first,
                    rows=len(rows),
                ),
            )

    def _new(self, value: int, rows: int) -> Area:
        """Return the strip of the new rows of ``value`` when it holds so many."""
        return self._whole_strip(value, self._layout.held[value].strip, rows)

    def _whole_strip(self, value: int, strip: int, rows: int) -> Area:
        """Return a strip as it is when it holds just these rows."""
        held = self._rows.network.values[value]
        self._layout.strips[strip].holds(held.planes * rows * held.row_bytes)
        return Area(value, strip, rows, 0, held.planes, 0, rows)

    def _whole(self, value: int) -> Area:
        """Return a value where it lies whole.

        Raises:
            RegionError: it does not.
        """
        held = self._rows.network.values[value]
        if value in self._rows.network.in_parts:
            raise RegionError(f"value {held.value} is nowhere whole")
        return Area(value, None, held.height, 0, held.planes, 0, held.height)

    def _gather(self, taken: RowInput, wanted: Rows, target: Area) -> Iterator[Action]:
        """Put the rows ``wanted`` of an input together in ``target``."""
        height = self._rows.network.values[taken.row_value].height
        above, below = max(-wanted.first, 0), max(wanted.end - height, 0)
        fill, end = taken.fill, len(wanted) - below
        for first, count in ((0, above), (end, below)) if fill != "edge" else ():
            if count:
                yield Fill(replace(target, first_row=first, rows=count), fill != "zero")
        inside = wanted.within(height)
        for part in self._rows.parts[taken.row_value]:
            for source, rows in self._sources(part, inside):
                yield Move(
                    source,
                    replace(
                        target,
                        first_plane=part.first_plane,
                        planes=source.planes,
                        first_row=rows.first - wanted.first,
                        rows=len(rows),
                    ),
                )
        around = ((above, range(above)), (end - 1, range(end, end + below)))
        for edge, beyond in around if fill == "edge" else ():
            for row in beyond:
                one = replace(target, first_row=row, rows=1)
                yield Move(replace(one, first_row=edge), one)

    def _sources(self, part: Part, wanted: Rows) -> Iterator[tuple[Area, Rows]]:
        """Yield where the rows ``wanted`` of a value of one maker lie now."""
        value = part.row_value
        made = self._rows.made.get(value)
        if made is None or made.whole:
            if made is None:
                self.read.add(value)
            area = replace(self._whole(value), first_row=wanted.first, rows=len(wanted))
            yield _planes(area, part), wanted
            return
        held, now = self._layout.held[value], self._now[value]
        places = [(now.new_rows, held.strip)]
        if held.kept:
            places.insert(0, (now.kept_rows, held.kept[now.turn]))
        for rows, strip in places:
            common = rows.common(wanted)
            if common:
                area = self._whole_strip(value, strip, len(rows))
                area = replace(area, first_row=common.first - rows.first, rows=len(common))
                yield _planes(area, part), common

    def _keep(self, value: int, left: Rows) -> Iterator[Action]:
        """Keep the rows ``left`` for later phases."""
        held, now = self._layout.held[value], self._now[value]
        if not now.new_rows and left == now.kept_rows:
            return
        turn = (now.turn + 1) % len(held.kept)
        target = self._whole_strip(value, held.kept[turn], len(left))
        whole = Part(value, 0, 0, self._rows.network.values[value].planes)
        for source, rows in self._sources(whole, left) if left else ():
            yield Move(source, replace(target, first_row=rows.first - left.first, rows=len(rows)))
        now.turn, now.kept_rows = turn, left


def _planes(area: Area, part: Part) -> Area:
    return replace(area, first_plane=area.first_plane + part.source_plane, planes=part.planes)
