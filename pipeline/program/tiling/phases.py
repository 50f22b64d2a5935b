"""What happens for each tile of a region: inputs are put together, boxes computed, copied out and kept."""

from collections.abc import Iterator
from dataclasses import replace

from models.packs.records.rows import RowInput
from pipeline.program.region_plan import Action, Area, Call, Columns, Fill, Move, RegionError
from pipeline.program.row_network import Part
from pipeline.program.row_ranges import Rows
from pipeline.program.tiling.boxes import Box, common, margins
from pipeline.program.tiling.made import TileBoxes
from pipeline.program.tiling.store import Kept
from pipeline.program.tiling.strips import TileStrips


class TilePhases:
    """Tells the actions of each tile; strips grow, meanwhile, to what they have to hold."""

    def __init__(self, boxes: TileBoxes, strips: TileStrips) -> None:
        self._boxes = boxes
        self._strips = strips
        self._kept_by: dict[tuple[int, int, int], list[tuple[Kept, int]]] = {}
        self._kept_for: dict[tuple[int, int], list[tuple[Kept, int]]] = {}
        for item, offset in zip(strips.kept, strips.offsets, strict=True):
            self._kept_by.setdefault((item.maker, item.row_value, item.slot), []).append(
                (item, offset)
            )
            self._kept_for.setdefault((item.reader, item.row_value), []).append((item, offset))

    def phase(self, tile: int) -> Iterator[Action]:
        """Yield what happens for tile ``tile``."""
        for position, made in enumerate(self._boxes.boxes[tile]):
            for slot, box in enumerate(made):
                yield from self._run(tile, position, slot, box)

    def _run(self, tile: int, position: int, slot: int, box: Box) -> Iterator[Action]:
        item = self._boxes.items[position]
        areas = []
        for number, taken in enumerate(item.inputs):
            needs = item.needed(number, box)
            own = self._strips.own.get((position, number, slot))
            if own is None:
                maker = self._boxes.made[taken.row_value].maker
                areas.append(self._area(taken.row_value, self._strips.made[maker, slot], needs))
                continue
            target = self._area(taken.row_value, own, needs)
            yield from self._gather(tile, taken, needs, target)
            areas.append(target)
        output = self._area(item.output, self._strips.made[position, slot], box)
        yield Call(self._boxes.operators[position], item.tile_graph, tuple(areas), output)
        made = self._boxes.made[item.output]
        itself = Part(item.output, 0, 0, output.planes)
        for copy in (*([itself] if made.whole else []), *made.copies):
            target = replace(self._whole(copy.row_value, box), first_plane=copy.first_plane)
            yield Move(_planes(output, copy), replace(target, planes=copy.planes))
        for kept, offset in self._kept_by.get((tile, item.output, slot), ()):
            yield Move(_inside(output, box, kept.box), self._stored(kept, offset))

    def _gather(self, tile: int, taken: RowInput, needs: Box, target: Area) -> Iterator[Action]:
        """Put the box ``needs`` of an input together in ``target``."""
        _, _, height, width = self._boxes.network.values[taken.row_value].shape
        fill, around = taken.fill, margins(needs, height, width)
        behind = [box for box in around if _is_behind(box, height, width)] if fill == "edge" else []
        for margin in around:
            if margin not in behind:
                yield Fill(_inside(target, needs, margin), fill != "zero")
        inside = self._boxes.inside(taken.row_value, needs)
        for part in self._boxes.parts[taken.row_value] if inside else ():
            assert inside is not None
            for source, box in self._sources(tile, part, inside):
                area = _inside(target, needs, box)
                yield Move(source, replace(area, first_plane=part.first_plane, planes=part.planes))
        # Columns first: rows behind are as wide as the box.
        for margin in sorted(behind, key=lambda box: box.rows.first >= height):
            for before, copy in _again(margin, height):
                yield Move(_inside(target, needs, before), _inside(target, needs, copy))

    def _sources(self, tile: int, part: Part, wanted: Box) -> Iterator[tuple[Area, Box]]:
        """Yield where the box ``wanted`` of a value of one maker lies now."""
        value = part.row_value
        made = self._boxes.made.get(value)
        if made is None or (made.whole and self._boxes.region.reuse != "none"):
            yield _planes(self._whole(value, wanted), part), wanted
            return
        for slot, box in enumerate(self._boxes.boxes[tile][made.maker]):
            both = common(box, wanted)
            if both is not None:
                strip = self._area(value, self._strips.made[made.maker, slot], box)
                yield _planes(_inside(strip, box, both), part), both
        for kept, offset in self._kept_for.get((tile, value), ()):
            both = common(kept.box, wanted)
            if both is not None:
                yield _planes(_inside(self._stored(kept, offset), kept.box, both), part), both

    def _area(self, value: int, strip: int, box: Box) -> Area:
        """Return a strip as it is when it holds just ``box``."""
        self._strips.strips[strip].holds(self._strips.box_bytes(value, box))
        planes = self._boxes.network.values[value].planes
        rows, columns = len(box.rows), len(box.columns)
        return Area(value, strip, rows, 0, planes, 0, rows, Columns(0, columns, columns))

    def _stored(self, kept: Kept, offset: int) -> Area:
        area = self._area(kept.row_value, self._strips.store, kept.box)
        return replace(area, offset=offset)

    def _whole(self, value: int, box: Box) -> Area:
        """Return ``box`` of a value where that lies whole.

        Raises:
            RegionError: it does not.
        """
        held = self._boxes.network.values[value]
        if value in self._boxes.network.in_parts:
            raise RegionError(f"{held.name} is nowhere whole")
        whole = Area(
            value,
            None,
            held.height,
            0,
            held.planes,
            0,
            held.height,
            Columns(0, held.shape[3], held.shape[3]),
        )
        return _inside(whole, Box(Rows(0, 0), Rows(0, 0)), box)


def _is_behind(margin: Box, height: int, width: int) -> bool:
    """Return whether ``margin`` lies below a value, or beside it to the right."""
    return margin.rows.first >= height or margin.columns.first >= width


def _again(margin: Box, height: int) -> Iterator[tuple[Box, Box]]:
    """Yield each row of a margin below a value, or column to the right, behind the one before it."""
    rows, columns = margin.rows, margin.columns
    if rows.first >= height:
        for row in range(rows.first, rows.end):
            yield Box(Rows(row - 1, row), columns), Box(Rows(row, row + 1), columns)
    else:
        for column in range(columns.first, columns.end):
            yield Box(rows, Rows(column - 1, column)), Box(rows, Rows(column, column + 1))


def _inside(area: Area, held: Box, box: Box) -> Area:
    """Return ``box`` of the area that holds ``held``."""
    assert area.columns is not None
    columns = Columns(box.columns.first - held.columns.first, len(box.columns), area.columns.held)
    return replace(
        area, first_row=box.rows.first - held.rows.first, rows=len(box.rows), columns=columns
    )


def _planes(area: Area, part: Part) -> Area:
    return replace(area, first_plane=area.first_plane + part.source_plane, planes=part.planes)
