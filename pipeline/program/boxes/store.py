"""What tiles keep for later ones: boxes of what was made, from the tile that makes them to one that reads.

They lie in one strip through the whole region; two may lie in the same place if they are not kept at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.program.boxes.box import RowBox, common, hull
from pipeline.program.boxes.layout import Keeping, StripLayout
from pipeline.program.boxes.tiles import TileStretch

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
    """Yield what later tiles read of a value, by who ``made`` it: boxes of each tile, as ``wanted`` are."""
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
