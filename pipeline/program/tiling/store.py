"""What tiles keep for later ones: boxes of what was made, from the tile that makes them to one that reads.

They lie in one strip through the whole region; two may lie in the same place if they are not kept at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.program.tiling.boxes import Box, common, hull
from pipeline.program.tiling.made import TileBoxes

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
    if boxes.region.reuse == "none":
        return []
    found: list[Kept] = []
    for value, made in boxes.made.items():
        if not made.whole:
            makers = [tile[made.maker] for tile in boxes.boxes]
            wanted = [_wanted(boxes, value, tile) for tile in range(len(boxes.boxes))]
            found.extend(kept_between(value, makers, wanted))
    return found


def kept_between(
    row_value: int, made: Sequence[Sequence[Box]], wanted: Sequence[Sequence[Box]]
) -> Iterator[Kept]:
    """Yield what later tiles read of a value, by who ``made`` it: boxes of each tile, as ``wanted`` are."""
    for reader, wants in enumerate(wanted):
        for tile, boxes in enumerate(made[:reader]) if wants else ():
            for slot, box in enumerate(boxes):
                shared = [both for want in wants if (both := common(want, box)) is not None]
                if shared:
                    yield Kept(row_value, hull(shared), slot, tile, reader)


def _wanted(boxes: TileBoxes, value: int, tile: int) -> list[Box]:
    """Return the boxes of ``value`` that operators read for ``tile``."""
    needs = (
        boxes.inside(value, boxes.items[position].needed(number, box))
        for position, number in boxes.readers[value]
        for box in boxes.boxes[tile][position]
    )
    return [box for box in needs if box is not None]


def placed_boxes(kept: Sequence[Kept], sizes: Sequence[int]) -> tuple[list[int], int]:
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
