"""Regions on tiles: which boxes of its output each operator makes for each tile, a phase (seed 002).

A tile is a box of the last operator's output; what it needs decides, backwards, what the others make
(``upTile``). Where tiles reuse what others made, only what is not there yet is made: every element once,
whatever the order of the tiles. Where they do not, overlaps are made again in each tile.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from models.network.windows import Window
from models.packs.records.row_parts import RowOperator
from pipeline.program.boxes.box import Interval, RowBox, common, without
from pipeline.program.boxes.stretch import Keeping, Stretch, StripLayout
from pipeline.program.region_plan import Region, RegionError, RegionPlan, RowCut, check_sizes
from pipeline.program.regions import operators_of, plan_cut, planned
from pipeline.program.row_network import RowNetwork

#: Which results of other tiles a tile reuses: none, so that overlaps are made again; all there are, line by
#: line; all there are, every other tile first (seed 002, Section 2.1.3).
Reuse = Literal["none", "raster", "checkerboard"]


@dataclass(frozen=True, slots=True)
class TileCut(RowCut):
    """Tiles: so many columns of so many rows, which ``reuse`` what others made."""

    columns: int
    reuse: Reuse = "none"

    takes_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_sizes(self.rows, self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledOperator(RowOperator):
    """A row operator that makes any columns of its rows: its graph pads neither side.

    No pack has them: fused_pack.py makes them. ``across``: to columns of each input what its window is to
    rows.
    """

    across: tuple[Window, ...]

    @property
    def units(self) -> tuple[int, int]:
        """So many rows, and columns, are made of the same ones."""
        return self.unit, max(window.factor for window in self.across)


def tiles_of(height: int, width: int, cut: TileCut) -> list[RowBox]:
    """Return the tiles of a plane in the order in which they run, the last ones perhaps smaller.

    Line by line; in a checkerboard those of one colour first, which have no edge in common.
    """
    down, across = -(-height // cut.rows), -(-width // cut.columns)
    places = [(i, j) for i in range(down) for j in range(across)]
    if cut.reuse == "checkerboard":
        places.sort(key=lambda place: sum(place) % 2)
    return [RowBox(_slice(i, cut.rows, height), _slice(j, cut.columns, width)) for i, j in places]


def hull(boxes: Iterable[RowBox]) -> RowBox | None:
    """Return the smallest box around those of ``boxes`` that are not empty; None: all are."""
    filled = [box for box in boxes if box.pixels]
    if not filled:
        return None
    rows, columns = ([box[axis] for box in filled] for axis in range(2))
    return RowBox(_around(rows), _around(columns))


def _around(filled: Sequence[Interval]) -> Interval:
    return Interval(min(each.first for each in filled), max(each.end for each in filled))


def through(box: RowBox, down: Window, across: Window) -> RowBox:
    """Return the box of an input that ``box`` is made of; it may reach outside of the input."""
    return RowBox(box.rows.through(down), box.columns.through(across))


def _slice(number: int, size: int, extent: int) -> Interval:
    return Interval(number * size, min((number + 1) * size, extent))


class TileStretch(Stretch):
    """Cut as ``cut`` says.

    Raises:
        RegionError: an operator makes no tiles, or what the region reads would be overwritten.
    """

    def __init__(self, network: RowNetwork, region: Region, operators: range, cut: TileCut) -> None:
        super().__init__(network, region, operators)
        self.cut = cut
        self._tiled = list(map(self._of_tiles, operators))
        for value in sorted(self.outside):
            over = sorted(network.memory.overlapping(value) & self.written)
            if over:
                raise RegionError(
                    f"{self.name(over[0])} lies over {self.name(value)}, which later tiles read"
                )
        _, _, height, width = network.values[self.items[-1].output].shape
        for tile in tiles_of(height, width, cut):
            self._make(tile, height, width)

    def _of_tiles(self, number: int) -> TiledOperator:
        item = self.network.operators[number]
        if not isinstance(item, TiledOperator):
            raise RegionError(f"{self.name(item.output)} is not made by tiles, only by whole rows")
        return item

    def _make(self, tile: RowBox, height: int, width: int) -> None:
        """Find the boxes that each operator makes for ``tile`` of the output of the last operator."""
        wanted: dict[int, list[RowBox]] = {}
        for position in reversed(range(len(self.items))):
            item = self._tiled[position]
            inside = self.inside[item.output]
            boxes = wanted.get(item.output, [])
            if inside.lies_whole or not self.readers[item.output]:
                boxes = [*boxes, self._share(item.output, tile, height, width)]
            needed = hull(boxes)
            new_boxes = [] if needed is None else [_aligned(needed, item)]
            if self.cut.reuse != "none":
                there = [box for before in inside.boxes for box in before]
                new_boxes = [left for box in new_boxes for left in without(box, there)]
            inside.boxes.append(new_boxes)
            for number, taken in enumerate(item.inputs):
                for box in new_boxes:
                    needs = self.read(position, number, box)
                    if needs is not None:
                        for part in self.parts[taken.row_value]:
                            wanted.setdefault(part.row_value, []).append(needs)

    def read(self, position: int, number: int, box: RowBox) -> RowBox | None:
        """Return what of ``needed`` is no padding; None: all is."""
        taken = self.items[position].inputs[number]
        return common(self.needed(position, number, box), self.all_of(taken.row_value))

    def _share(self, value: int, tile: RowBox, height: int, width: int) -> RowBox:
        """Return the part of ``value`` that belongs to ``tile`` of so many rows and columns."""
        whole = self.all_of(value)
        return RowBox(
            _scaled(tile.rows, whole.rows.end, height),
            _scaled(tile.columns, whole.columns.end, width),
        )

    @cached_property
    def direct(self) -> frozenset[tuple[int, int]]:
        return frozenset(
            (position, number)
            for position, item in enumerate(self.items)
            for number, taken in enumerate(item.inputs)
            if taken.row_value in self.inside and self._is_direct(position, number)
        )

    def _is_direct(self, position: int, number: int) -> bool:
        item = self.items[position]
        makers = self.inside[item.inputs[number].row_value].boxes
        return all(
            not boxes or [self.needed(position, number, box) for box in boxes] == there
            for boxes, there in zip(self.inside[item.output].boxes, makers, strict=True)
        )

    def needed(self, position: int, number: int, box: RowBox) -> RowBox:
        item = self._tiled[position]
        return through(box, item.inputs[number].window, item.across[number])


@plan_cut.register
def _(cut: TileCut, network: RowNetwork, region: Region) -> RegionPlan:
    operators = operators_of(network, region)
    return planned(TileStretch(network, region, operators, cut), kept_between_tiles)


def _scaled(lines: Interval, extent: int, last: int) -> Interval:
    return Interval(lines.first * extent // last, lines.end * extent // last)


def _aligned(box: RowBox, item: TiledOperator) -> RowBox:
    """Return ``box`` made larger, to where upsampling begins and ends."""
    down, across = item.units
    return RowBox(_multiples(box.rows, down), _multiples(box.columns, across))


def _multiples(lines: Interval, unit: int) -> Interval:
    return Interval(lines.first // unit * unit, -(-lines.end // unit) * unit)


# What tiles keep for later ones: boxes of what was made, from the tile that makes them to one that reads.
#
# They lie in one strip through the whole region; two may lie in the same place if they are not kept at
# once.

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class KeptTile:
    """``box`` of a value: tile ``maker`` makes it, tile ``reader`` takes it."""

    row_value: int
    box: RowBox
    maker: int
    reader: int


def kept_between_tiles(stretch: TileStretch, layout: StripLayout) -> Keeping:
    """Return what tiles keep for later ones; what lies whole somewhere is read from there."""
    keeping = Keeping()
    kept = [*_kept(stretch)] if stretch.cut.reuse != "none" else []
    offsets, n_bytes = placed_boxes(
        kept, [layout.n_bytes(item.row_value, item.box) for item in kept]
    )
    if not n_bytes:
        return keeping
    store = layout.strips.kept(n_bytes)
    for item, offset in zip(kept, offsets, strict=True):
        place = layout.place(item.row_value, store, item.box, offset)
        keeping.add_put(item.maker, stretch.inside[item.row_value].maker, place)
        keeping.add_held(item.reader, place)
    return keeping


def _kept(stretch: TileStretch) -> Iterator[KeptTile]:
    for value, inside in stretch.inside.items():
        if not inside.whole:
            wanted = [_wanted(stretch, value, tile) for tile in range(stretch.phases)]
            yield from kept_between(value, inside.boxes, wanted)


def kept_between(
    row_value: int, made: Sequence[Sequence[RowBox]], wanted: Sequence[Sequence[RowBox]]
) -> Iterator[KeptTile]:
    """Yield what later tiles read of a value. ``made``: its boxes by tile; ``wanted``: those read."""
    for reader, wants in enumerate(wanted):
        for tile, boxes in enumerate(made[:reader]) if wants else ():
            for box in boxes:
                shared = hull(both for want in wants if (both := common(want, box)) is not None)
                if shared is not None:
                    yield KeptTile(row_value, shared, tile, reader)


def _wanted(stretch: TileStretch, value: int, tile: int) -> list[RowBox]:
    """Return the boxes of ``value`` that operators read for ``tile``."""
    needs = (
        stretch.read(position, number, box)
        for position, number in stretch.readers[value]
        for box in stretch.inside[stretch.items[position].output].boxes[tile]
    )
    return [box for box in needs if box is not None]


def placed_boxes(kept: Sequence[KeptTile], sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where each of ``kept`` lies, and the bytes of all: large ones first, as low as they fit."""
    offsets = [0] * len(kept)
    placed: list[int] = []
    for number in sorted(range(len(kept)), key=lambda each: -sizes[each]):
        item, offset = kept[number], 0
        busy = [
            (offsets[other], offsets[other] + sizes[other])
            for other in placed
            if kept[other].maker <= item.reader and item.maker <= kept[other].reader
        ]
        for start, end in sorted(busy):
            if start >= offset + sizes[number]:
                break
            offset = max(offset, -(-end // _ALIGNMENT) * _ALIGNMENT)
        offsets[number] = offset
        placed.append(number)
    return offsets, max((offsets[n] + sizes[n] for n in placed), default=0)
