"""Which rows the operators of a region make, need and keep, phase by phase, and what replaces what.

Pure. A value is told by its number among the row values; *whole*: read outside of the region, so it lies
in one piece there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from models.packs.manifest import RowOperator
from pipeline.program.region_plan import Region, RegionError
from pipeline.program.row_network import Part, RowNetwork
from pipeline.program.row_ranges import Rows, needed, row_ranges
from pipeline.program.shared_memory import Access


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
    each phase. ``made``: by row value. ``over``: pairs, what is written over what.

    Raises:
        RegionError: it would copy what is made outside, or read rows that it overwrote.
    """

    def __init__(self, network: RowNetwork, region: Region, operators: range) -> None:
        self.network = network
        self.region = region
        self.operators = operators
        self.items: list[RowOperator] = [network.operators[number] for number in operators]
        after = network.read_after(region.end_piece)
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
        self.over = tuple(self._replaced())
        self._lefts: dict[int, list[Rows]] = {}
        if any(network.memory.overwritten([*self._reads()], [*self._writes()])):
            raise RegionError(
                f"pieces {region.first_piece} to {region.end_piece} would read rows that they overwrote"
            )

    @cached_property
    def parts(self) -> dict[int, tuple[Part, ...]]:
        values = {taken.row_value for item in self.items for taken in item.inputs}
        return {value: self.network.parts(value, self.region.pieces) for value in values}

    @cached_property
    def readers(self) -> dict[int, list[tuple[int, int]]]:
        """For each value of one maker, who reads it: operators and which of their inputs it is part of."""
        found: dict[int, list[tuple[int, int]]] = {value: [] for value in self.made}
        for position, item in enumerate(self.items):
            for number, taken in enumerate(item.inputs):
                for part in self.parts[taken.row_value]:
                    if part.row_value in found:
                        found[part.row_value].append((position, number))
        return found

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
                    or needed(taken.window, phase[position]) == made.rows[number_of_phase]
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
                        first = min(first, max(needed(window, rows[position]).first, 0))
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

    def _reads(self) -> Iterator[Access]:
        """Yield what operators read where it lies whole, and rows of what is written over when they are."""
        for value, made in self.made.items():
            if made.loaded:
                yield Access(
                    made.maker, value, [rows.first if rows else None for rows in made.rows]
                )
        for position, item in enumerate(self.items):
            for number, taken in enumerate(item.inputs):
                firsts = [
                    max(needed(taken.window, phase[position]).first, 0) if phase[position] else None
                    for phase in self.ranges
                ]
                for part in self.parts[taken.row_value]:
                    maker = self.made.get(part.row_value)
                    if maker is None or (maker.whole and not self.is_direct(position, number)):
                        yield Access(position, part.row_value, firsts)

    def _writes(self) -> Iterator[Access]:
        """Yield what operators write where it lies whole."""
        for value, made in self.made.items():
            ends = [rows.end for rows in made.rows]
            for written in (
                *([value] if made.whole else []),
                *(copy.row_value for copy in made.copies),
            ):
                yield Access(made.maker, written, ends)

    def _replaced(self) -> Iterator[tuple[int, int]]:
        """Find what may be written over what, and load the rows of the latter."""
        alone = self.network.alone
        free = [value for value, made in self.made.items() if made.whole and value in alone]
        for old in sorted(self.network.last_read(self.region.pieces)):
            readers = [
                (position, taken.window)
                for position, item in enumerate(self.items)
                for taken in item.inputs
                if old in {part.row_value for part in self.parts[taken.row_value]}
            ]
            if not readers:
                continue
            height = self.network.values[old].height
            ends = [
                max(
                    (needed(window, phase[at]).end for at, window in readers if phase[at]),
                    default=0,
                )
                for phase in self.ranges
            ]
            ends = [min(end, height) for end in accumulate(ends, max)]
            first = min(position for position, _ in readers)
            for new in free:
                made = zip(self.made[new].rows, ends, strict=True)
                in_time = self.made[new].maker >= first and all(
                    rows.end <= end for rows, end in made
                )
                if in_time and self.network.same_form(old, new):
                    starts = [0, *ends[:-1]]
                    rows = [Rows(*pair) for pair in zip(starts, ends, strict=True)]
                    self.made[old] = Made(first, False, rows=rows, loaded=True)
                    free.remove(new)
                    yield new, old
                    break
