"""Which rows the operators of a region make, need and keep, phase by phase, and what replaces what.

Pure. A value is told by its number among the row values; *whole*: read outside of the region, so it lies
in one piece there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from models.packs.records.rows import RowOperator
from pipeline.program.loading import Written, needed_loadings, saving_loadings
from pipeline.program.many_rows import Wanted, one_region, wanted
from pipeline.program.region_plan import Region, RegionError
from pipeline.program.row_network import Part, RowNetwork, readers_of
from pipeline.program.row_ranges import Rows, row_ranges


@dataclass(slots=True)
class Made:
    """What an operator of the region makes, or is loaded, by row value.

    ``maker``: who makes it; of what is loaded, who reads it first. ``rows``: the new ones of each phase.
    ``whole``: it is read outside where it lies whole. ``copies``: values of which planes of it are part.
    """

    maker: int
    whole: bool
    rows: list[Rows] = field(default_factory=list)
    loaded: bool = False
    copies: list[Part] = field(default_factory=list)


class RegionRows:
    """What is known of ``region`` before anything has a place.

    ``items``: its operators, numbers ``operators`` of the network. ``ranges``: the rows that each makes in
    each phase. ``made``: by row value. ``over``: pairs, what is written over what; none unless ``saving``.

    Raises:
        RegionError: it would copy what is made outside, write two values to the same memory, or read
            what it makes under another name.
    """

    def __init__(self, network: RowNetwork, region: Region, operators: range, saving: bool) -> None:
        self.network = network
        self.region = region
        self.operators = operators
        self.items: list[RowOperator] = [network.operators[number] for number in operators]
        after = network.readers.after(region.end_piece)
        self.made = {
            item.output: Made(position, network.values[item.output].value in after)
            for position, item in enumerate(self.items)
        }
        for value, part in network.copied(region.pieces):
            if part.row_value not in self.made:
                raise RegionError(f"piece {network.values[value].first_piece} copies from outside")
            self.made[part.row_value].copies.append(replace(part, row_value=value))
        wholes = [
            bool(self.made[item.output].whole or self.made[item.output].copies)
            for item in self.items
        ]
        self.ranges = row_ranges(network, region.pieces, operators, region.rows, wholes)
        for made in self.made.values():
            made.rows = [phase[made.maker] for phase in self.ranges]
        self._lefts: dict[int, list[Rows]] = {}
        self.over = tuple(self._load(saving))

    @cached_property
    def parts(self) -> dict[int, tuple[Part, ...]]:
        return self.network.parts_read(self.items, self.region.pieces)

    @cached_property
    def readers(self) -> dict[int, list[tuple[int, int]]]:
        """For each value of one maker, who reads it: operators and which of their inputs it is part of."""
        return readers_of(self.items, self.parts, self.made)

    def is_direct(self, position: int, number: int) -> bool:
        return (position, number) in self._direct

    @cached_property
    def _direct(self) -> set[tuple[int, int]]:
        """The inputs that are, in every phase, just what their makers make in the phase."""
        found = set()
        for position, item in enumerate(self.items):
            for number, taken in enumerate(item.inputs):
                made = self.made.get(taken.row_value)
                if made is not None and all(
                    not phase[position]
                    or phase[position].through(taken.window) == made.rows[number_of_phase]
                    for number_of_phase, phase in enumerate(self.ranges)
                ):
                    found.add((position, number))
        return found

    @cached_property
    def gathering(self) -> dict[int, list[tuple[int, int]]]:
        """Of the readers of each value those for whom rows are put together."""
        return {
            value: [reader for reader in readers if reader not in self._direct]
            for value, readers in self.readers.items()
        }

    def is_kept(self, value: int) -> bool:
        """Return whether rows of ``value`` are needed in a later phase than that which makes them."""
        return any(self.left(value, phase) for phase in range(len(self.ranges)))

    def waits(self, value: int) -> bool:
        """Return whether kept rows are kept for more than one phase: then they move."""
        return any(
            self.left(value, phase).first < rows.first
            for phase, rows in enumerate(self.made[value].rows)
        )

    def left(self, value: int, phase: int) -> Rows:
        """Return the rows of ``value`` that are needed after ``phase``."""
        return self._all_left(value)[phase]

    def _all_left(self, value: int) -> list[Rows]:
        """Return, for each phase, the rows of ``value`` that are needed after it."""
        if value not in self._lefts:
            made = self.made[value].rows
            first = made[-1].end
            found = []
            for rows, new in zip(reversed(self.ranges), reversed(made), strict=True):
                end = new.end
                found.append(Rows(min(first, end), end))
                for position, number in self.gathering[value]:
                    if rows[position]:
                        window = self.items[position].inputs[number].window
                        first = min(first, max(window.begin(rows[position].first), 0))
            self._lefts[value] = found[::-1]
        return self._lefts[value]

    def written(self) -> set[int]:
        """Return the row values that are put to where they lie whole."""
        copied = {copy.row_value for made in self.made.values() for copy in made.copies}
        return copied | {value for value, made in self.made.items() if made.whole}

    def loaded_before(self, position: int) -> list[int]:
        """Return the values whose rows are loaded before operator ``position`` runs."""
        return [
            value for value, made in self.made.items() if made.loaded and made.maker == position
        ]

    def _load(self, saving: bool) -> Iterator[tuple[int, int]]:
        """Find what is loaded; yield what is written over what, to save memory."""
        reads, writes = self._reads(), self._writes()
        first, end = self.region.first_piece, self.region.end_piece
        if self.network.memory.clash({item.value for item in writes}):
            raise RegionError(f"pieces {first} to {end} would overwrite what they made")
        if self.network.views(reads, self.region.pieces):
            raise RegionError(f"pieces {first} to {end} read what they made under another name")
        loaded = [*needed_loadings(self.network, reads, writes)]
        if saving:
            loaded += saving_loadings(self.network, self.region.pieces, reads, writes)
        for item in loaded:
            if item.which[0]:
                firsts, ends = item.made.first[0].tolist(), item.made.ends[0].tolist()
                rows = [Rows(*pair) for pair in zip(firsts, ends, strict=True)]
                self.made[item.value] = Made(item.operator, False, rows=rows, loaded=True)
                if item.new is not None:
                    yield item.new, item.value

    def _writes(self) -> list[Written]:
        """Return what is written where it lies whole."""
        return [
            Written(written, made.maker, one_region(made.rows).ends)
            for value, made in self.made.items()
            for written in ([value] * made.whole + [copy.row_value for copy in made.copies])
        ]

    def _reads(self) -> dict[int, list[Wanted]]:
        """Return who reads what is made outside."""
        found: dict[int, list[Wanted]] = {}
        for position, item in enumerate(self.items):
            made = self.made[item.output].rows
            for taken in item.inputs:
                parts = {part.row_value for part in self.parts[taken.row_value]}
                for part in parts - self.made.keys():
                    rows = wanted(position, taken.window, one_region(made))
                    found.setdefault(part, []).append(rows)
        return found
