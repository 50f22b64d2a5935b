"""The strips of a region on tiles: of what is made, of inputs put together, and one of what is kept."""

from pipeline.program.region_strips import Building
from pipeline.program.tiling.boxes import Box
from pipeline.program.tiling.made import TileBoxes
from pipeline.program.tiling.store import Kept, kept_boxes, placed_boxes


class TileStrips:
    """What lies where.

    ``made``: the strips of an operator's boxes, by position and slot; ``own``: those of inputs that are put
    together, by position, input and slot. ``store``: the strip of what is ``kept``, ``offsets[i]`` where in
    it ``kept[i]`` lies.
    """

    def __init__(self, boxes: TileBoxes) -> None:
        self._boxes = boxes
        self.strips: list[Building] = []
        self.made: dict[tuple[int, int], int] = {}
        self.own: dict[tuple[int, int, int], int] = {}
        for position in range(len(boxes.items)):
            for slot in range(max(len(tile[position]) for tile in boxes.boxes)):
                self._place(position, slot)
        self.kept: list[Kept] = kept_boxes(boxes)
        sizes = [self.box_bytes(item.row_value, item.box) for item in self.kept]
        self.offsets, n_bytes = placed_boxes(self.kept, sizes)
        self.store = len(self.strips)
        if n_bytes:
            self.strips.append(Building(0, len(boxes.items), kept=True, n_bytes=n_bytes))

    def box_bytes(self, row_value: int, box: Box) -> int:
        """Return what ``box`` of all planes takes."""
        held = self._boxes.network.values[row_value]
        return held.planes * box.pixels * (held.row_bytes // held.shape[3])

    def _place(self, position: int, slot: int) -> None:
        """Make the strips of box ``slot`` of operator ``position``."""
        item = self._boxes.items[position]
        for number in range(len(item.inputs)):
            if (position, number) not in self._boxes.direct:
                self.own[position, number, slot] = self._strip(position)
        shared = None if item.in_place is None else self._shared(position, item.in_place, slot)
        self.made[position, slot] = self._strip(position) if shared is None else shared
        end = max((reader for reader, _ in self._boxes.readers[item.output]), default=position)
        held = self.strips[self.made[position, slot]]
        held.end = max(held.end, end + 1)

    def _shared(self, position: int, number: int, slot: int) -> int | None:
        """Return the strip of an input that the output may lie in; None: nothing may lie in it."""
        own = self.own.get((position, number, slot))
        if own is not None:
            return own
        value = self._boxes.items[position].inputs[number].row_value
        strip = self.made[self._boxes.made[value].maker, slot]
        last = self.strips[strip].end == position + 1
        return strip if last and not self._is_read_otherwise(position, number) else None

    def _is_read_otherwise(self, position: int, number: int) -> bool:
        """Return whether another input of the operator lies in the strips of this one."""
        inputs = self._boxes.items[position].inputs
        own = self._strips_of(inputs[number].row_value)
        others = {
            part.row_value
            for other, taken in enumerate(inputs)
            if other != number
            for part in self._boxes.parts[taken.row_value]
        }
        return any(own & self._strips_of(value) for value in others & self._boxes.made.keys())

    def _strips_of(self, value: int) -> set[int]:
        """Return the strips that boxes of ``value`` lie in."""
        maker = self._boxes.made[value].maker
        return {strip for (position, _), strip in self.made.items() if position == maker}

    def _strip(self, position: int) -> int:
        self.strips.append(Building(position, position + 1))
        return len(self.strips) - 1
