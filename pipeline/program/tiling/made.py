"""Which boxes of its output each operator of a region makes for each tile.

A tile is a box of the last operator's output; what it needs decides, backwards, what the others make
(``upTile`` of seed 002). Where tiles reuse what others made, only what is not there yet is made: every
element once, whatever the order of the tiles. Where they do not, overlaps are made again in each tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from pipeline.program.region_plan import Region, RegionError, Reuse
from pipeline.program.row_network import Part, RowNetwork, readers_of
from pipeline.program.row_ranges import Rows
from pipeline.program.tiling.boxes import Box, common, hull, without
from pipeline.program.tiling.operators import TiledOperator


@dataclass(slots=True)
class TileMade:
    """What an operator of the region makes: ``maker``, by position; the rest as ``Made`` of rows."""

    maker: int
    whole: bool
    copies: list[Part] = field(default_factory=list)


def tiles_of(height: int, width: int, rows: int, columns: int, reuse: Reuse) -> list[Box]:
    """Return the tiles of a plane in the order in which they run, the last ones perhaps smaller.

    Line by line; in a checkerboard those of one colour first, which have no edge in common.
    """
    down, across = -(-height // rows), -(-width // columns)
    places = [(i, j) for i in range(down) for j in range(across)]
    if reuse == "checkerboard":
        places.sort(key=lambda place: sum(place) % 2)
    return [Box(_slice(i, rows, height), _slice(j, columns, width)) for i, j in places]


def _slice(number: int, size: int, extent: int) -> Rows:
    return Rows(number * size, min((number + 1) * size, extent))


class TileBoxes:
    """What is known of ``region`` before anything has a place.

    ``items``: its operators, numbers ``operators`` of the network. ``made``: by row value. ``boxes[t][i]``:
    what operator i makes for tile t. ``read``: row values from outside.

    Raises:
        RegionError: an operator makes no tiles, or what the region reads would be overwritten.
    """

    def __init__(self, network: RowNetwork, region: Region, operators: range) -> None:
        self.network = network
        self.region = region
        self.operators = operators
        self.items = list(self._tiled(operators))
        after = network.readers.after(region.end_piece)
        self.made = {
            item.output: TileMade(position, network.values[item.output].value in after)
            for position, item in enumerate(self.items)
        }
        self._add_copies()
        self.parts = network.parts_read(self.items, region.pieces)
        self.read = frozenset(
            part.row_value for parts in self.parts.values() for part in parts
        ) - frozenset(self.made)
        self._check_memory()
        self.boxes = self._found()

    def name(self, row_value: int) -> str:
        return self.network.values[row_value].name

    def written(self) -> frozenset[int]:
        """Return the row values that are put to where they lie whole."""
        copied = {copy.row_value for made in self.made.values() for copy in made.copies}
        return frozenset(copied | {value for value, made in self.made.items() if made.whole})

    @cached_property
    def readers(self) -> dict[int, list[tuple[int, int]]]:
        """For each value of one maker, who reads it: operators and which of their inputs it is part of."""
        return readers_of(self.items, self.parts, self.made)

    @cached_property
    def direct(self) -> frozenset[tuple[int, int]]:
        """The inputs that are, in every tile, just what their makers make for it."""
        return frozenset(
            (position, number)
            for position, item in enumerate(self.items)
            for number, taken in enumerate(item.inputs)
            if taken.row_value in self.made
            and all(
                not tile[position]
                or [item.needed(number, box) for box in tile[position]]
                == tile[self.made[taken.row_value].maker]
                for tile in self.boxes
            )
        )

    def inside(self, row_value: int, box: Box) -> Box | None:
        """Return what of ``box`` is no padding."""
        return common(box, self._all(row_value))

    def _all(self, row_value: int) -> Box:
        _, _, height, width = self.network.values[row_value].shape
        return Box(Rows(0, height), Rows(0, width))

    def _tiled(self, operators: range) -> Iterator[TiledOperator]:
        for number in operators:
            item = self.network.operators[number]
            if not isinstance(item, TiledOperator):
                name = self.name(item.output)
                raise RegionError(f"{name} is not made by tiles, only by whole rows")
            yield item

    def _add_copies(self) -> None:
        for value, part in self.network.copied(self.region.pieces):
            if part.row_value not in self.made:
                raise RegionError(f"{self.name(value)} is put together of what tiles do not make")
            copy = Part(value, part.source_plane, part.first_plane, part.planes)
            self.made[part.row_value].copies.append(copy)

    def _check_memory(self) -> None:
        """Refuse to write over what later tiles, or anybody else, would read.

        Raises:
            RegionError: it names both values: a cut inside a residual block, mostly.
        """
        written = self.written()
        if self.network.memory.clash(written):
            raise RegionError(f"tiles up to {self._last} would overwrite what they made")
        if self.network.views(self.read, self.region.pieces):
            raise RegionError(f"tiles up to {self._last} read what they made under another name")
        for value in sorted(self.read):
            over = sorted(self.network.memory.overlapping(value) & written)
            if over:
                raise RegionError(
                    f"{self.name(over[0])} lies over {self.name(value)}, which later tiles read"
                )

    @property
    def _last(self) -> str:
        return self.name(self.items[-1].output)

    def _found(self) -> list[list[list[Box]]]:
        """Return the boxes of every tile and operator."""
        last = self.network.values[self.items[-1].output]
        rows, columns = self.region.rows, self.region.columns or last.shape[3]
        tiles = tiles_of(last.height, last.shape[3], rows, columns, self.region.reuse)
        done: dict[int, list[Box]] = {value: [] for value in self.made}
        return [self._tile(tile, last.shape, done) for tile in tiles]

    def _tile(
        self, tile: Box, shape: tuple[int, ...], done: dict[int, list[Box]]
    ) -> list[list[Box]]:
        """Return what each operator makes for ``tile`` of an output of ``shape``; add it to ``done``."""
        wanted: dict[int, list[Box]] = {}
        found: list[list[Box]] = [[] for _ in self.items]
        for position in reversed(range(len(self.items))):
            item = self.items[position]
            value, made = item.output, self.made[item.output]
            boxes = wanted.get(value, [])
            if made.whole or made.copies or not self.readers[value]:
                boxes = [*boxes, self._share(value, tile, shape)]
            if not any(box.pixels for box in boxes):
                continue
            around = _aligned(hull(box for box in boxes if box.pixels), item)
            found[position] = [around]
            if self.region.reuse != "none":
                found[position] = without(around, done[value])
                done[value] += found[position]
            for number, taken in enumerate(item.inputs):
                for box in found[position]:
                    inside = self.inside(taken.row_value, item.needed(number, box))
                    for part in self.parts[taken.row_value] if inside else ():
                        assert inside is not None
                        wanted.setdefault(part.row_value, []).append(inside)
        return found

    def _share(self, value: int, tile: Box, shape: tuple[int, ...]) -> Box:
        """Return the part of ``value`` that belongs to ``tile`` of an output of ``shape``."""
        _, _, height, width = self.network.values[value].shape
        return Box(_scaled(tile.rows, height, shape[2]), _scaled(tile.columns, width, shape[3]))


def _scaled(lines: Rows, extent: int, last: int) -> Rows:
    return Rows(lines.first * extent // last, lines.end * extent // last)


def _aligned(box: Box, item: TiledOperator) -> Box:
    """Return ``box`` made larger, to where upsampling begins and ends."""
    down, across = item.units
    return Box(_multiples(box.rows, down), _multiples(box.columns, across))


def _multiples(lines: Rows, unit: int) -> Rows:
    return Rows(lines.first // unit * unit, -(-lines.end // unit) * unit)
