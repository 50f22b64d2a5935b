"""A bottleneck some channels at a time (seed 004, Section 3.3, Eq. 3): each group is a phase.

A group's channels are made, added to the result, and forgotten; what the bottleneck reads and its result
lie whole. So its memory does not depend on how many inner channels there are. With fewer rows than all it
runs band by band: rows of what it reads are gathered, all groups run on these, and rows of the result are
put where they belong; overlaps between bands are made again, so nothing is kept from one to the next.

It is planned apart from rows and boxes (boxes/), with the same strips, moves and plan: its operators run
again for every group, in several passes, and what they make is part of no row value.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from models.packs.records.pieces import Operand
from models.packs.records.row_parts import Bottleneck, GroupInput, GroupOperator, RowValue
from pipeline.program.boxes.box import Interval, RowBox
from pipeline.program.boxes.stretch import Lying
from pipeline.program.program import Program
from pipeline.program.region_plan import (
    Action,
    Area,
    AreaCopy,
    ChannelCut,
    Compute,
    Floats,
    Region,
    RegionError,
    RegionPlan,
    Strips,
    WeightGather,
    with_equal_as_one,
)
from pipeline.program.row_network import RowNetwork

_FLOAT_BYTES = 4


def bottleneck_of(program: Program, pieces: range) -> Bottleneck:
    """Return the bottleneck that ``pieces`` are.

    Raises:
        RegionError: they are none.
    """
    for item in program.bottlenecks:
        if range(item.first_piece, item.end_piece) == pieces:
            return item
    raise RegionError(f"pieces {pieces.start} to {pieces.stop} are no bottleneck")


def groups(item: Bottleneck, most: int) -> list[Interval]:
    """Return all inner channels in groups of ``most``, the last ones in smaller sizes that there are."""
    intervals: list[Interval] = []
    first = 0
    for size in reversed([size for size in item.sizes if size <= most]):
        while item.channels - first >= size:
            intervals.append(Interval(first, first + size))
            first += size
    return intervals


def passes(item: Bottleneck) -> list[list[int]]:
    """Return which operators run for every group, then which for every group again, and so on.

    A pass but the last one ends with the one that runs once.
    """
    numbers_of_passes = []
    for last, operator in enumerate(item.operators):
        if operator.kind in ("once", "sum"):
            needed = {last}
            for number in range(last, -1, -1):  # what is read is made before
                if number in needed:
                    makers = (taken.made for taken in item.operators[number].inputs)
                    needed |= {
                        n for n in makers if n is not None and item.operators[n].kind != "once"
                    }
            numbers_of_passes.append(sorted(needed))
    return numbers_of_passes


@dataclass(frozen=True, slots=True)
class _Band:
    """The rows of the result, those ``made`` of it by operators, those ``read`` of row values."""

    result: Interval
    made: Mapping[int, Interval]
    read: Mapping[int, Interval]


def _bands(item: Bottleneck, rows: int, values: Sequence[RowValue]) -> list[_Band]:
    """Return the bands of up to ``rows`` rows of the result; one: all rows.

    They are even: a last one of few rows would leave the padding below to the one before.

    Raises:
        RegionError: all rows are needed before the first; or operators need other rows of one tensor, or
            padding inside.
    """
    last = item.operators[-1].height
    if rows >= last:
        intervals = {n: Interval(0, operator.height) for n, operator in enumerate(item.operators)}
        read = {value: Interval(0, values[value].height) for value in _sources(item)}
        return [_Band(intervals[len(intervals) - 1], intervals, read)]
    if any(operator.kind in ("mean", "once") for operator in item.operators):
        raise RegionError("factors of a gate are made of all rows")
    count = -(-last // rows)
    ends = [last * number // count for number in range(count + 1)]
    return [_band(item, Interval(*pair), values) for pair in pairwise(ends)]


def _band(item: Bottleneck, result: Interval, values: Sequence[RowValue]) -> _Band:
    """Return the band of ``result``: rows through windows from there back, the same for all readers."""
    made, read = {len(item.operators) - 1: result}, dict[int, Interval]()
    for number, operator in reversed([*enumerate(item.operators)]):
        for taken in operator.inputs if number in made else ():
            if taken.made is not None:
                intervals, which, length = made, taken.made, item.operators[taken.made].height
            elif taken.row_value is not None and operator.kind != "sum":
                intervals, which, length = read, taken.row_value, values[taken.row_value].height
            else:
                continue
            wanted = made[number].through(taken.window)
            above = wanted.first < 0 and made[number].first > 0
            if above or (wanted.end > length and made[number].end < operator.height):
                raise RegionError(f"{len(made[number])} rows at a time need padding inside")
            needed = wanted.within(length)
            if intervals.setdefault(which, needed) != needed:
                raise RegionError("operators need other rows of one tensor")
    return _Band(result, made, {value: read[value] for value in _sources(item) if value in read})


def _sources(item: Bottleneck) -> list[int]:
    """Return the row values that ``item`` reads, each once."""
    inputs = (taken.row_value for operator in item.operators for taken in operator.inputs)
    return list(dict.fromkeys(value for value in inputs if value is not None))


def plan_channels(network: RowNetwork, region: Region, cut: ChannelCut) -> RegionPlan:
    """Plan ``region``, cut as ``cut`` says.

    Raises:
        RegionError: it is no bottleneck, or cannot run in such groups or on so few rows.
    """
    item = bottleneck_of(network.program, region.pieces)
    if cut.channels not in item.sizes:
        raise RegionError(f"groups of {cut.channels} channels, not of {item.sizes}")
    phases = _Phases(network, item, cut)
    happening = with_equal_as_one(phases.all())
    sources = frozenset(_sources(item))
    return RegionPlan(
        region,
        range(0),
        phases.strips.moments,
        phases.strips.built(),
        happening,
        sources,
        frozenset((item.output,)),
        alone=_alone(network, item, sources),
        scratch_bytes=max(operator.scratch_bytes for operator in item.operators),
    )


def _alone(network: RowNetwork, item: Bottleneck, sources: frozenset[int]) -> frozenset[int]:
    """Return the result where it would lie over what later groups read.

    Raises:
        RegionError: it lies there as a part of something larger.
    """
    if sources.isdisjoint(network.memory.overlapping(item.output)):
        return frozenset()
    values = network.program.values
    value = values[network.values[item.output].value]
    if value.parent is None or values[value.parent].n_bytes != value.n_bytes:
        raise RegionError(f"{value.name} is a part of what it is made of")
    return frozenset((item.output,))


class _Phases:
    """Lists the actions of ``item``; its strips grow, meanwhile, to what they have to hold."""

    def __init__(self, network: RowNetwork, item: Bottleneck, cut: ChannelCut) -> None:
        self._network = network
        self._item = item
        self._bands = _bands(item, cut.rows, network.values)
        self._groups = groups(item, cut.channels)
        self._passes = passes(item)
        self._block = network.program.target.block
        self._whole = len(self._bands) == 1
        self.strips = Strips(sum(map(len, self._passes)))
        self._made = [*self._laid_out()]
        self._of_value: dict[int, int] = {}  # the strips of row values, where these are in bands
        self._band, self._turn, self._group = self._bands[0], 0, self._groups[0]

    def _laid_out(self) -> Iterator[dict[int, int]]:
        """Yield, for each pass, the strips of what operators make; means and factors stay."""
        moment, kept = 0, dict[int, int]()
        for numbers in self._passes:
            strips = dict(kept)
            for number in numbers:
                operator = self._item.operators[number]
                for taken in operator.inputs:
                    if taken.made is not None:
                        self.strips.prolong(strips[taken.made], moment + 1)
                if operator.kind == "each":
                    strips[number] = self.strips.during(moment, moment + 1)
                elif operator.kind != "sum":
                    strips[number] = kept[number] = self.strips.kept()
                moment += 1
            yield strips

    @cached_property
    def _weights(self) -> int:
        """The strip of the weights that add up one group, in the last pass."""
        return self.strips.during(self.strips.moments - len(self._passes[-1]), self.strips.moments)

    def all(self) -> Iterator[Iterable[Action]]:
        """Yield what each phase does."""
        # The same in all bands of as many rows.
        done: dict[tuple[tuple[int, ...], int, int], list[Action]] = {}
        for band in self._bands:
            self._band = band
            before: list[Action] = [] if self._whole else [*self._fetched()]
            form = self._form()
            for turn, numbers in enumerate(self._passes):
                self._turn = turn
                for group in self._groups:
                    self._group = group
                    key = form, turn, group.first
                    if key not in done:
                        done[key] = [*self._of_group(numbers)]
                    yield [*before, *done[key]]
                    before = []
                if self._item.operators[numbers[-1]].kind == "once":
                    self._group = Interval(0, self._item.channels)
                    before = [self._computed(numbers[-1])]
            if not self._whole:
                strip, whole = self._lying(self._item.output, band.result, self._item.output)
                yield [AreaCopy(strip, whole)]

    def _form(self) -> tuple[int, ...]:
        """Return what kernels see of a band: how many rows, and which are borders."""
        made, read = self._band.made, self._band.read
        sizes = (len(rows) for rows in (*made.values(), *read.values()))
        return (*sizes, *map(self._edges, made))

    def _fetched(self) -> Iterator[AreaCopy]:
        """Yield what brings the rows that a band reads to strips, those that are added to the result's."""
        added = (taken.row_value for taken in self._item.operators[-1].inputs)
        for row_value, rows, place in (
            *((value, rows, value) for value, rows in self._band.read.items()),
            *(
                (value, self._band.result, self._item.output)
                for value in added
                if value is not None
            ),
        ):
            in_strip, whole = self._lying(row_value, rows, place)
            yield AreaCopy(whole, in_strip)

    def _lying(self, row_value: int, rows: Interval, place: int) -> tuple[Area, Area]:
        """Return ``rows`` of a value in the strip of value ``place``, and where it lies whole."""
        value = self._network.values[row_value]
        _, channels, height, width = value.shape
        strip = self._in_strip_of(place, (1, channels, len(rows), width)).strip
        columns = Interval(0, width)
        box, everything = RowBox(rows, columns), RowBox(Interval(0, height), columns)
        in_strip, whole = Lying(row_value, strip, box), Lying(row_value, None, everything)
        return in_strip.area(box, 0, value.planes), whole.area(box, 0, value.planes)

    def _of_group(self, numbers: Sequence[int]) -> Iterator[Action]:
        """Yield what is done for a group; weights are gathered first, so that kernels follow each other."""
        group, last = self._group, self._item.operators[numbers[-1]]
        weights = last.inputs[1].weights if last.kind == "sum" else None
        if weights is not None and last.shape[1] > self._block:
            blocks = last.shape[1] // self._block, self._item.channels // self._block
            source = replace(weights, shape=(*blocks, self._block**2))
            gathered = self._in(
                self._weights, (blocks[0], len(group) // self._block, self._block**2)
            )
            yield WeightGather(
                source, (group.first // self._block, group.end // self._block), gathered
            )
        for number in numbers:
            if self._item.operators[number].kind != "once":
                yield self._computed(number)

    def _computed(self, number: int) -> Compute:
        """Return how an operator makes a group; the factors of a gate are made of all channels."""
        operator, group = self._item.operators[number], self._group
        inputs = [self._input(operator, taken) for taken in operator.inputs]
        graph, place = operator.graphs[0], self._place(number)
        if operator.kind == "each":
            size = self._item.sizes.index(len(group))
            graph = operator.graphs[4 * size + self._edges(number)]
        elif operator.kind == "mean":
            place = _part(place, group)
        elif operator.kind == "sum" and group.first:  # it adds to what there is
            graph = operator.graphs[2 if group is self._groups[-1] else 1]
            inputs[2:] = [place]
        return Compute(number, graph, tuple(inputs), place)

    def _edges(self, number: int) -> int:
        """Return which of an operator's four graphs makes its rows: all, the first, inner, the last."""
        rows, height = self._band.made[number], self._item.operators[number].height
        edges = rows.first == 0, rows.end == height
        return [(True, True), (True, False), (False, False), (False, True)].index(edges)

    def _input(self, operator: GroupOperator, taken: GroupInput) -> Floats | Operand:
        """Return where ``operator`` finds a group's part of an input, or all of it."""
        if taken.weights is not None:
            return self._of_weights(taken.weights, taken.axis)
        if taken.made is not None:
            place = self._place(taken.made)
            if taken.axis == "factors":
                place = place._replace(shape=(self._item.channels, 1, 1, 1))
            elif taken.axis == "channels":
                return place  # it holds just those
        else:
            value = taken.row_value
            assert value is not None  # models/packs/row_checks.py
            if operator.kind == "sum":
                return self._rows(value, self._band.result, self._item.output)
            place = self._rows(value, self._band.read[value], value)
        return _part(place, self._group) if taken.axis else place

    def _of_weights(self, weights: Operand, axis: str | None) -> Floats | Operand:
        """Return where a group's weights lie: together, or, of those that add it up, in blocks."""
        if axis is None:
            return weights
        part = _part(Floats(None, None, weights.shape), self._group)
        if axis == "inputs":
            shape = (weights.shape[0], len(self._group), 1, 1)
            if weights.shape[0] > self._block:
                return self._in(self._weights, shape)
            part = Floats(None, None, shape, _FLOAT_BYTES * self._group.first * self._block)
        return replace(weights, offset=weights.offset + part.offset, shape=part.shape)

    def _place(self, number: int) -> Floats:
        """Return where what an operator makes lies: of a group; means and factors of all."""
        operator = self._item.operators[number]
        if operator.kind == "sum":
            return self._rows(self._item.output, self._band.result, self._item.output)
        shape = operator.shape
        if operator.kind == "each":
            shape = (1, len(self._group), len(self._band.made[number]), shape[3])
        return self._in(self._made[self._turn][number], shape)

    def _rows(self, row_value: int, rows: Interval, place: int) -> Floats:
        """Return ``rows`` of a value where kernels find them: where it lies whole, or as ``_lying``."""
        _, channels, _, width = self._network.values[row_value].shape
        shape = (1, channels, len(rows), width)
        return Floats(None, row_value, shape) if self._whole else self._in_strip_of(place, shape)

    def _in_strip_of(self, row_value: int, shape: tuple[int, ...]) -> Floats:
        if row_value not in self._of_value:
            self._of_value[row_value] = self.strips.kept()
        return self._in(self._of_value[row_value], shape)

    def _in(self, strip: int, shape: tuple[int, ...]) -> Floats:
        """Return floats of ``shape`` in a strip, which holds nothing else then."""
        self.strips.hold(strip, _FLOAT_BYTES * math.prod(shape))
        return Floats(strip, None, shape)


def _part(place: Floats, group: Interval) -> Floats:
    """Return a group's part of floats whose first axis above 1 is all channels: it lies together."""
    axis = next(axis for axis, length in enumerate(place.shape) if length > 1)
    own = _FLOAT_BYTES * math.prod(place.shape[axis + 1 :])
    shape = (*place.shape[:axis], len(group), *place.shape[axis + 1 :])
    return place._replace(offset=own * group.first, shape=shape)
