"""Regions: pieces that follow each other, computed a few rows at a time (row phases).

Every operator writes the rows that it makes to a *strip*. Whoever needs exactly these reads them there;
who needs others, the overlap of a 3 x 3 kernel or rows that waited for a slower branch, gets a strip of its
own, put together of new rows and of those that are *kept* from one phase to the next (the self-loops of
seed 001). What is read outside of the region is copied to where it lies whole.

Where a region makes a value of the same form as one that nobody reads after it, it may write over that:
rows of the old one are then *loaded*, once, before rows of the new one take their place.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from models.packs.manifest import RowInput, RowOperator
from pipeline.program.row_network import Part, RowNetwork
from pipeline.program.row_ranges import Rows, needed, row_ranges
from pipeline.program.shared_memory import Access


@dataclass(frozen=True)
class Region:
    """The pieces ``pieces`` of the manifest, ``rows`` rows of the last of them at a time."""

    first_piece: int
    end_piece: int
    rows: int

    @property
    def pieces(self) -> range:
        return range(self.first_piece, self.end_piece)


@dataclass(frozen=True)
class Area:
    """Rows [first_row, first_row + rows) of ``planes`` planes, in a strip or in a whole value.

    ``strip``: the number of a strip of the region, None: ``row_value`` where it is whole. There lie
    ``held_rows`` rows of each plane, one plane behind the other; these are those from ``first_plane`` on.
    """

    row_value: int
    strip: int | None
    held_rows: int
    first_plane: int
    planes: int
    first_row: int
    rows: int


@dataclass(frozen=True)
class Move:
    """Copy rows of one area to another of the same size."""

    source: Area
    target: Area


@dataclass(frozen=True)
class Fill:
    """Write what padding holds."""

    target: Area
    lowest: bool


@dataclass(frozen=True)
class Call:
    """Run row operator ``operator`` on whole strips."""

    operator: int
    inputs: tuple[Area, ...]
    output: Area


Action = Move | Fill | Call


@dataclass(frozen=True)
class Strip:
    """Memory of a region, in use during the operators [start, end) of every phase.

    ``kept`` ones hold rows between phases, too: nothing else may lie there during the whole region.
    """

    n_bytes: int
    start: int
    end: int
    kept: bool = False


@dataclass(frozen=True)
class RegionPlan:
    """What a region does, phase by phase, and the memory it needs beside whole values.

    ``operators``: those of the manifest that it runs. ``read``, ``written``: row values that it takes from,
    or puts to, where they lie whole. ``over``: of the written ones, which of the read ones they replace.
    """

    region: Region
    operators: range
    strips: tuple[Strip, ...]
    phases: tuple[tuple[Action, ...], ...]
    read: frozenset[int]
    written: frozenset[int]
    over: tuple[tuple[int, int], ...] = ()

    def live_bytes(self) -> int:
        """Return the most that its strips hold at once."""
        changes = [0] * (len(self.operators) + 1)
        for strip in self.strips:
            start, end = (0, -1) if strip.kept else (strip.start, strip.end)
            changes[start] += strip.n_bytes
            changes[end] -= strip.n_bytes
        return max(accumulate(changes))


class RegionError(Exception):
    """These pieces cannot run on rows."""


def plan_region(network: RowNetwork, region: Region) -> RegionPlan:
    """Plan ``region``.

    Raises:
        RegionError: some of its pieces have no row operators.
    """
    operators = network.within(region.pieces)
    if operators is None or region.rows < 1:
        raise RegionError(f"pieces {region.first_piece} to {region.end_piece} do not run on rows")
    return _Planner(network, region, operators).plan()


@dataclass
class _Made:
    """What an operator of the region makes, or is loaded, by row value: its strips, and what is kept.

    ``maker``: who makes it; of what is loaded, who reads it first. ``rows``: the new ones of each phase.
    ``whole``: it is read outside where it lies whole. ``copies``: values of which planes of it are part.
    ``kept_rows``: those that lie in ``kept[turn]`` now. ``update``: after which operator they change.
    """

    maker: int
    whole: bool
    rows: list[Rows] = field(default_factory=list)
    loaded: bool = False
    copies: list[Part] = field(default_factory=list)
    strip: int = -1
    kept: list[int] = field(default_factory=list)
    turn: int = 0
    kept_rows: Rows = field(default_factory=lambda: Rows(0, 0))
    new_rows: Rows = field(default_factory=lambda: Rows(0, 0))
    update: int = -1


@dataclass
class _Building:
    """A strip whose size is not known before all phases are."""

    start: int
    end: int
    kept: bool = False
    n_bytes: int = 0

    def holds(self, n_bytes: int) -> None:
        self.n_bytes = max(self.n_bytes, n_bytes)


class _Planner:
    def __init__(self, network: RowNetwork, region: Region, operators: range) -> None:
        self._network = network
        self._region = region
        self._operators = operators
        self._items: list[RowOperator] = [network.operators[number] for number in operators]
        after = network.read_after(region.end_piece)
        self._made = {
            item.output: _Made(position, network.values[item.output].value in after)
            for position, item in enumerate(self._items)
        }
        for value, part in network.copied(region.pieces):
            if part.row_value not in self._made:
                raise RegionError(f"piece {network.values[value].first_piece} copies from outside")
            self._made[part.row_value].copies.append(replace(part, row_value=value))
        wholes = [
            bool(self._made[item.output].whole or self._made[item.output].copies)
            for item in self._items
        ]
        self._ranges = row_ranges(network, region.pieces, operators, region.rows, wholes)
        for made in self._made.values():
            made.rows = [phase[made.maker] for phase in self._ranges]
        self._over = tuple(self._replaced())
        self._strips: list[_Building] = []
        self._own: dict[tuple[int, int], int] = {}  # strips of inputs that are put together
        self._updates: list[list[int]] = [[] for _ in operators]
        self._lefts: dict[int, list[Rows]] = {}
        self._read: set[int] = set()
        if any(network.memory.overwritten([*self._reads()], [*self._writes()])):
            raise RegionError(
                f"pieces {region.first_piece} to {region.end_piece} would read rows that they overwrote"
            )

    def plan(self) -> RegionPlan:
        self._place()
        same: dict[Action, Action] = {}  # most actions are alike in many phases: then they are one
        phases = tuple(
            tuple(same.setdefault(action, action) for action in self._phase(number))
            for number in range(len(self._ranges))
        )
        strips = tuple(Strip(s.n_bytes, s.start, s.end, s.kept) for s in self._strips)
        written = {value for value, made in self._made.items() if made.whole}
        written |= {copy.row_value for made in self._made.values() for copy in made.copies}
        return RegionPlan(
            self._region,
            self._operators,
            strips,
            phases,
            frozenset(self._read),
            frozenset(written),
            self._over,
        )

    def _reads(self) -> Iterator[Access]:
        """Yield what operators read where it lies whole, and rows of what is written over when they are."""
        for value, made in self._made.items():
            if made.loaded:
                yield Access(
                    made.maker, value, [rows.first if rows else None for rows in made.rows]
                )
        for position, item in enumerate(self._items):
            for number, taken in enumerate(item.inputs):
                firsts = [
                    max(needed(taken.window, phase[position]).first, 0) if phase[position] else None
                    for phase in self._ranges
                ]
                for part in self._parts[taken.row_value]:
                    maker = self._made.get(part.row_value)
                    if maker is None or (maker.whole and not self._is_direct(position, number)):
                        yield Access(position, part.row_value, firsts)

    def _writes(self) -> Iterator[Access]:
        """Yield what operators write where it lies whole."""
        for value, made in self._made.items():
            ends = [rows.end for rows in made.rows]
            for written in (
                *([value] if made.whole else []),
                *(copy.row_value for copy in made.copies),
            ):
                yield Access(made.maker, written, ends)

    def _replaced(self) -> Iterator[tuple[int, int]]:
        """Find what may be written over what, and load the rows of the latter."""
        alone = self._network.alone
        free = [value for value, made in self._made.items() if made.whole and value in alone]
        for old in sorted(self._network.last_read(self._region.pieces)):
            readers = [
                (position, taken.window)
                for position, item in enumerate(self._items)
                for taken in item.inputs
                if old in {part.row_value for part in self._parts[taken.row_value]}
            ]
            if not readers:
                continue
            height = self._network.values[old].height
            ends = [
                max(
                    (needed(window, phase[at]).end for at, window in readers if phase[at]),
                    default=0,
                )
                for phase in self._ranges
            ]
            ends = [min(end, height) for end in accumulate(ends, max)]
            first = min(position for position, _ in readers)
            for new in free:
                made = zip(self._made[new].rows, ends, strict=True)
                in_time = self._made[new].maker >= first and all(
                    rows.end <= end for rows, end in made
                )
                if in_time and self._network.same_form(old, new):
                    starts = [0, *ends[:-1]]
                    rows = [Rows(*pair) for pair in zip(starts, ends, strict=True)]
                    self._made[old] = _Made(first, False, rows=rows, loaded=True)
                    free.remove(new)
                    yield new, old
                    break

    # What lies where

    def _place(self) -> None:
        """Make the strips: of what is made, of inputs that are put together, of what is kept."""
        for position, item in enumerate(self._items):
            for made in self._made.values():
                if made.loaded and made.maker == position:
                    made.strip = self._strip(position)
            for number in range(len(item.inputs)):
                if not self._is_direct(position, number):
                    self._own[position, number] = self._strip(position)
            self._place_output(position, item)
            self._prolong(position, item)
        for value, made in self._made.items():
            readers = self._gathering[value]
            made.update = max([made.maker, *(position for position, _ in readers)])
            if readers and not made.whole and self._is_kept(value):
                end = len(self._items)
                count = 2 if self._waits(value) else 1
                made.kept = [self._strip(0, end, kept=True) for _ in range(count)]
                self._extend(made.strip, made.update)
                self._updates[made.update].append(value)

    def _strip(self, start: int, end: int | None = None, kept: bool = False) -> int:
        self._strips.append(_Building(start, start + 1 if end is None else end, kept))
        return len(self._strips) - 1

    def _extend(self, strip: int, position: int) -> None:
        self._strips[strip].end = max(self._strips[strip].end, position + 1)

    def _place_output(self, position: int, item: RowOperator) -> None:
        made = self._made[item.output]
        made.strip = self._strip(position)
        if item.in_place is None:
            return
        shared = self._own.get((position, item.in_place))
        if shared is None and self._is_last_use(position, item.in_place):
            shared = self._made[item.inputs[item.in_place].row_value].strip
        if shared is not None:
            self._strips.pop()
            made.strip = shared

    def _prolong(self, position: int, item: RowOperator) -> None:
        """Keep what operator ``position`` reads until then."""
        for taken in item.inputs:
            for part in self._parts[taken.row_value]:
                if part.row_value in self._made:
                    self._extend(self._made[part.row_value].strip, position)

    @cached_property
    def _parts(self) -> dict[int, tuple[Part, ...]]:
        values = {taken.row_value for item in self._items for taken in item.inputs}
        return {value: self._network.parts(value, self._region.pieces) for value in values}

    @cached_property
    def _readers(self) -> dict[int, list[tuple[int, int]]]:
        """For each value of one maker, who reads it: operators and which of their inputs it is part of."""
        found: dict[int, list[tuple[int, int]]] = {value: [] for value in self._made}
        for position, item in enumerate(self._items):
            for number, taken in enumerate(item.inputs):
                for part in self._parts[taken.row_value]:
                    if part.row_value in found:
                        found[part.row_value].append((position, number))
        return found

    def _is_direct(self, position: int, number: int) -> bool:
        return (position, number) in self._direct

    @cached_property
    def _direct(self) -> set[tuple[int, int]]:
        """The inputs that are, in every phase, just what their makers make in the phase."""
        found = set()
        for position, item in enumerate(self._items):
            for number, taken in enumerate(item.inputs):
                made = self._made.get(taken.row_value)
                if made is not None and all(
                    not phase[position]
                    or needed(taken.window, phase[position]) == made.rows[number_of_phase]
                    for number_of_phase, phase in enumerate(self._ranges)
                ):
                    found.add((position, number))
        return found

    def _is_last_use(self, position: int, number: int) -> bool:
        """Return whether nothing needs the strip of an input after operator ``position``."""
        made = self._made.get(self._items[position].inputs[number].row_value)
        if made is None or made.whole or made.copies:
            return False
        return not any(
            (later, place) != (position, number)
            and (later >= position or not self._is_direct(later, place))
            for value, held in self._made.items()
            if held.strip == made.strip
            for later, place in self._readers[value]
        )

    @cached_property
    def _gathering(self) -> dict[int, list[tuple[int, int]]]:
        """Of the readers of each value those for whom rows are put together."""
        return {
            value: [reader for reader in readers if reader not in self._direct]
            for value, readers in self._readers.items()
        }

    def _is_kept(self, value: int) -> bool:
        """Return whether rows of ``value`` are needed in a later phase than that which makes them."""
        return any(self._left(value, phase) for phase in range(len(self._ranges)))

    def _waits(self, value: int) -> bool:
        """Return whether kept rows are kept for more than one phase: then they move."""
        return any(
            self._left(value, phase).first < rows.first
            for phase, rows in enumerate(self._made[value].rows)
        )

    def _left(self, value: int, phase: int) -> Rows:
        """Return the rows of ``value`` that are needed after ``phase``."""
        return self._all_left(value)[phase]

    def _all_left(self, value: int) -> list[Rows]:
        """Return, for each phase, the rows of ``value`` that are needed after it."""
        if value not in self._lefts:
            made = self._made[value].rows
            first = made[-1].end
            found = []
            for rows, new in zip(reversed(self._ranges), reversed(made), strict=True):
                end = new.end
                found.append(Rows(min(first, end), end))
                for position, number in self._gathering[value]:
                    if rows[position]:
                        window = self._items[position].inputs[number].window
                        first = min(first, max(needed(window, rows[position]).first, 0))
            self._lefts[value] = found[::-1]
        return self._lefts[value]

    # What happens

    def _phase(self, phase: int) -> Iterator[Action]:
        for value, made in self._made.items():
            made.new_rows = made.rows[phase]
            if made.kept:
                made.kept_rows = self._left(value, phase - 1) if phase else Rows(0, 0)
        for position, item in enumerate(self._items):
            rows = self._ranges[phase][position]
            for value, made in self._made.items():
                if made.loaded and made.maker == position and made.new_rows:
                    yield self._load(value, made)
            if rows:
                yield from self._run(position, item, rows)
            for value in self._updates[position]:
                yield from self._keep(value, self._made[value], self._left(value, phase))

    def _load(self, value: int, made: _Made) -> Move:
        self._read.add(value)
        rows = made.new_rows
        source = replace(self._whole(value), first_row=rows.first, rows=len(rows))
        return Move(source, self._whole_strip(value, made.strip, len(rows)))

    def _run(self, position: int, item: RowOperator, rows: Rows) -> Iterator[Action]:
        areas = []
        for number, taken in enumerate(item.inputs):
            wanted = needed(taken.window, rows)
            own = self._own.get((position, number))
            if own is None:
                made = self._made[taken.row_value]
                areas.append(self._whole_strip(taken.row_value, made.strip, len(wanted)))
                continue
            target = self._whole_strip(taken.row_value, own, len(wanted))
            yield from self._gather(taken, wanted, target)
            areas.append(target)
        made = self._made[item.output]
        output = self._whole_strip(item.output, made.strip, len(rows))
        yield Call(self._operators[position], tuple(areas), output)
        itself = Part(item.output, 0, 0, output.planes)
        for copy in (*([itself] if made.whole else []), *made.copies):
            yield Move(
                _planes(output, copy),
                replace(
                    self._whole(copy.row_value),
                    first_plane=copy.first_plane,
                    planes=copy.planes,
                    first_row=rows.first,
                    rows=len(rows),
                ),
            )

    def _whole_strip(self, value: int, strip: int, rows: int) -> Area:
        """Return a strip as it is when it holds just these rows."""
        held = self._network.values[value]
        self._strips[strip].holds(held.planes * rows * held.row_bytes)
        return Area(value, strip, rows, 0, held.planes, 0, rows)

    def _whole(self, value: int) -> Area:
        """Return a value where it lies whole.

        Raises:
            RegionError: it does not: between the operators of a piece values are smaller.
        """
        held = self._network.values[value]
        if self._network.manifest.values[held.value].n_bytes != held.n_bytes:
            raise RegionError(f"value {held.value} is nowhere whole")
        return Area(value, None, held.height, 0, held.planes, 0, held.height)

    def _gather(self, taken: RowInput, wanted: Rows, target: Area) -> Iterator[Action]:
        """Put the rows ``wanted`` of an input together in ``target``."""
        height = self._network.values[taken.row_value].height
        above, below = max(-wanted.first, 0), max(wanted.end - height, 0)
        lowest = taken.window.fill == "lowest"
        if above:
            yield Fill(replace(target, rows=above), lowest)
        if below:
            yield Fill(replace(target, first_row=len(wanted) - below, rows=below), lowest)
        inside = Rows(max(wanted.first, 0), min(wanted.end, height))
        for part in self._parts[taken.row_value]:
            for source, rows in self._sources(part, inside):
                yield Move(
                    source,
                    replace(
                        target,
                        first_plane=part.first_plane,
                        planes=source.planes,
                        first_row=rows.first - wanted.first,
                        rows=len(rows),
                    ),
                )

    def _sources(self, part: Part, wanted: Rows) -> Iterator[tuple[Area, Rows]]:
        """Yield where the rows ``wanted`` of a value of one maker lie now."""
        value = part.row_value
        made = self._made.get(value)
        if made is None or made.whole:
            if made is None:
                self._read.add(value)
            area = replace(self._whole(value), first_row=wanted.first, rows=len(wanted))
            yield _planes(area, part), wanted
            return
        held = [(made.new_rows, made.strip)]
        if made.kept:
            held.insert(0, (made.kept_rows, made.kept[made.turn]))
        for rows, strip in held:
            common = Rows(max(rows.first, wanted.first), min(rows.end, wanted.end))
            if common:
                area = self._whole_strip(value, strip, len(rows))
                area = replace(area, first_row=common.first - rows.first, rows=len(common))
                yield _planes(area, part), common

    def _keep(self, value: int, made: _Made, left: Rows) -> Iterator[Action]:
        """Keep the rows ``left`` for later phases."""
        if not made.new_rows and left == made.kept_rows:
            return
        turn = (made.turn + 1) % len(made.kept)
        target = self._whole_strip(value, made.kept[turn], len(left))
        whole = Part(value, 0, 0, self._network.values[value].planes)
        for source, rows in self._sources(whole, left) if left else ():
            yield Move(source, replace(target, first_row=rows.first - left.first, rows=len(rows)))
        made.turn, made.kept_rows = turn, left


def _planes(area: Area, part: Part) -> Area:
    return replace(area, first_plane=area.first_plane + part.source_plane, planes=part.planes)
