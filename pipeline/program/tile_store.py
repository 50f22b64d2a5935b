"""What tiles keep for later ones: boxes of what was made, from the tile that makes them to one that reads.

They lie in one strip through the whole region; two may lie in the same place if they are not kept at once.
"""

from dataclasses import dataclass

from pipeline.program.boxes import Box, common, hull, needed_box
from pipeline.program.tile_boxes import TileBoxes

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Kept:
    """``box`` of a value: box ``slot`` of what tile ``maker`` makes holds it, tile ``reader`` takes it."""

    row_value: int
    box: Box
    slot: int
    maker: int
    reader: int


def kept_boxes(boxes: TileBoxes) -> list[Kept]:
    """Return all that is kept between tiles; what lies whole somewhere is read from there."""
    found: list[Kept] = []
    for value, made in boxes.made.items():
        if not made.whole:
            found.extend(_kept_of(boxes, value, made.maker))
    return found


def _kept_of(boxes: TileBoxes, value: int, position: int) -> list[Kept]:
    makers = [
        (tile, slot, box)
        for tile, found in enumerate(boxes.boxes)
        for slot, box in enumerate(found[position])
    ]
    kept = []
    for reader in range(1, len(boxes.boxes)):
        wanted = _wanted(boxes, value, reader) if boxes.region.reuse != "none" else []
        for tile, slot, box in makers if wanted else ():
            shared = [both for want in wanted if (both := common(want, box)) is not None]
            if tile < reader and shared:
                kept.append(Kept(value, hull(shared), slot, tile, reader))
    return kept


def _wanted(boxes: TileBoxes, value: int, tile: int) -> list[Box]:
    """Return the boxes of ``value`` that operators read for ``tile``."""
    needs = (
        boxes.inside(value, needed_box(boxes.items[position].inputs[number], box))
        for position, number in boxes.readers[value]
        for box in boxes.boxes[tile][position]
    )
    return [box for box in needs if box is not None]


def placed_boxes(kept: list[Kept], sizes: list[int]) -> tuple[list[int], int]:
    """Return where each of ``kept`` lies, and the bytes of all: large ones first, each as low as it fits."""
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
