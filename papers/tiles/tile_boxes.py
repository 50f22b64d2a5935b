"""Tiles of a plane, the boxes that layers make for them, where what tiles keep for each other lies.

Nothing here runs: the engine computes rows (docs/research/tiles.md). After seed 002.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from models.network.windows import Window
from pipeline.program.region_plan import Interval

#: Which results of other tiles a tile reuses: none, so that overlaps are made again; all there are, line by
#: line; all there are, every other tile first (seed 002, Section 2.1.3).
Reuse = Literal["none", "raster", "checkerboard"]


class RowBox(NamedTuple):
    """Columns ``columns`` of rows ``rows``."""

    rows: Interval
    columns: Interval

    @property
    def pixels(self) -> int:
        return len(self.rows) * len(self.columns)


def common(one: RowBox, other: RowBox) -> RowBox | None:
    """Return what lies in both boxes, None where nothing does."""
    both = RowBox(one.rows.common(other.rows), one.columns.common(other.columns))
    return both if both.pixels else None


def without(box: RowBox, others: Sequence[RowBox]) -> list[RowBox]:
    """Return what of ``box`` lies in none of ``others``: boxes apart from each other, few of them."""
    left = [box]
    for other in others:
        left = [part for each in left for part in _without(each, other)]
    return left


def _without(box: RowBox, other: RowBox) -> list[RowBox]:
    """Return what of ``box`` is not in ``other``: above, below, to the left and to the right of it."""
    both = common(box, other)
    if both is None:
        return [box]
    parts = [
        RowBox(Interval(box.rows.first, both.rows.first), box.columns),
        RowBox(Interval(both.rows.end, box.rows.end), box.columns),
        RowBox(both.rows, Interval(box.columns.first, both.columns.first)),
        RowBox(both.rows, Interval(both.columns.end, box.columns.end)),
    ]
    return [part for part in parts if part.pixels]


def tiles_of(height: int, width: int, size: tuple[int, int], reuse: Reuse) -> list[RowBox]:
    """Return the tiles of a plane, rows and columns of ``size``, the last ones perhaps smaller.

    They are in the order in which they run: line by line; in a checkerboard those of one colour first,
    which have no edge in common.
    """
    down, across = -(-height // size[0]), -(-width // size[1])
    places = [(i, j) for i in range(down) for j in range(across)]
    if reuse == "checkerboard":
        places.sort(key=lambda place: sum(place) % 2)
    return [RowBox(_slice(i, size[0], height), _slice(j, size[1], width)) for i, j in places]


def _slice(number: int, size: int, extent: int) -> Interval:
    return Interval(number * size, min((number + 1) * size, extent))


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


# What tiles keep for later ones: boxes of what was made, from the tile that makes them to one that reads.
#
# They lie in one strip through the whole group; two may lie in the same place if they are not kept at
# once.

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class KeptTile:
    """``box`` of what a layer makes: tile ``maker`` makes it, tile ``reader`` takes it."""

    layer: int
    box: RowBox
    maker: int
    reader: int


def kept_between(
    layer: int, made: Sequence[Sequence[RowBox]], wanted: Sequence[Sequence[RowBox]]
) -> Iterator[KeptTile]:
    """Yield what later tiles read of a layer. ``made``: its boxes by tile; ``wanted``: those read."""
    for reader, wants in enumerate(wanted):
        for tile, boxes in enumerate(made[:reader]) if wants else ():
            for box in boxes:
                shared = hull(both for want in wants if (both := common(want, box)) is not None)
                if shared is not None:
                    yield KeptTile(layer, shared, tile, reader)


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
