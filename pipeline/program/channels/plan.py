"""A bottleneck some channels at a time (seed 004, Section 3.3, Eq. 3): each group is a phase.

A group's channels are made, added to the result, and forgotten; what the bottleneck reads and its result
lie whole. So its memory does not depend on how many inner channels there are. With fewer rows than all it
runs band by band: rows of what it reads are gathered, all groups run on these, and rows of the result are
put where they belong; overlaps between bands are made again, so nothing is kept from one to the next.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from models.packs.records.bottlenecks import Bottleneck, GroupInput
from models.packs.records.pieces import Operand
from pipeline.program.boxes.box import Box, Interval
from pipeline.program.boxes.layout import Lying
from pipeline.program.channels.groups import (
    Band,
    bands,
    bottleneck_of,
    edges,
    groups,
    passes,
)
from pipeline.program.channels.strips import GroupStrips
from pipeline.program.cuts import Channels, Region, RegionError
from pipeline.program.region_plan import (
    Action,
    Area,
    Compute,
    Gather,
    InStrip,
    InValue,
    Move,
    Place,
    RegionPlan,
)
from pipeline.program.row_network import RowNetwork

_FLOAT_BYTES = 4


def plan_channels(network: RowNetwork, region: Region, cut: Channels) -> RegionPlan:
    """Plan ``region``, cut as ``cut`` says.

    Raises:
        RegionError: it is no bottleneck, or cannot run in such groups or on so few rows.
    """
    item = bottleneck_of(network.program, region.pieces)
    if cut.channels not in item.sizes:
        raise RegionError(f"groups of {cut.channels} channels, not of {item.sizes}")
    phases = _Phases(network, item, cut)
    happening = tuple(phases.all())
    return RegionPlan(
        region,
        range(0),
        phases.strips.moments,
        phases.strips.built(),
        happening,
        frozenset(phases.sources),
        frozenset((item.output,)),
        alone=_alone(network, item, phases.sources),
        scratch_bytes=max(operator.scratch_bytes for operator in item.operators),
    )


def _alone(network: RowNetwork, item: Bottleneck, sources: set[int]) -> frozenset[int]:
    """Return the result where it would lie over what later groups read.

    Raises:
        RegionError: it lies there as a part of something larger.
    """
    program, places = network.program, network.memory.roots

    def memory(row_value: int) -> tuple[int, int, int]:
        value = network.values[row_value].value
        root, offset = places[value]
        return root, offset, offset + program.values[value].n_bytes

    own = memory(item.output)
    for source in sources:
        root, start, end = memory(source)
        if root == own[0] and start < own[2] and own[1] < end:
            value = program.values[network.values[item.output].value]
            if value.parent is None or program.values[value.parent].n_bytes != value.n_bytes:
                raise RegionError(f"{value.name} is a part of what it is made of")
            return frozenset((item.output,))
    return frozenset()


class _Phases:
    """Tells the actions of ``item``."""

    def __init__(self, network: RowNetwork, item: Bottleneck, cut: Channels) -> None:
        self._network = network
        self._item = item
        self._bands = bands(item, cut.rows, network.values)
        self._groups = groups(item, cut.channels)
        self._passes = passes(item)
        self.strips = GroupStrips(item, cut.channels, self._bands)
        self._whole = len(self._bands) == 1
        self._gathered: dict[int, int] = {}
        # What is done for a group is the same in all bands of as many rows; its weights in any.
        self._done: dict[tuple[tuple[int, ...], int, int], tuple[Action, ...]] = {}
        self._same: dict[Action, Action] = {}
        self._weights_of: dict[tuple[int, int], Operand] = {}

    @cached_property
    def sources(self) -> set[int]:
        """The row values that it reads."""
        inputs = (taken for operator in self._item.operators for taken in operator.inputs)
        return {taken.row_value for taken in inputs if taken.row_value is not None}

    @cached_property
    def _added(self) -> int | None:
        """The row value that is added to the result."""
        inputs = self._item.operators[-1].inputs
        return next((taken.row_value for taken in inputs if taken.row_value is not None), None)

    @cached_property
    def _result(self) -> int:
        """The strip of the result's rows, where these do not lie in their place."""
        _, channels, _, width = self._item.operators[-1].shape
        most = max(len(band.result) for band in self._bands)
        return self.strips.kept(_FLOAT_BYTES * channels * most * width)

    @cached_property
    def _weights(self) -> int:
        """The strip of the weights that add up one group."""
        outputs = self._item.operators[-1].shape[1]
        most = max(len(group) for group in self._groups)
        return self.strips.during_pass(len(self._passes) - 1, _FLOAT_BYTES * outputs * most)

    def all(self) -> Iterator[tuple[Action, ...]]:
        """Yield what each phase does; actions that are alike are one object."""
        for band in self._bands:
            before = () if self._whole else self._as_one(self._fetched(band))
            form = self._form(band)
            for turn, numbers in enumerate(self._passes):
                each = numbers if turn == len(self._passes) - 1 else numbers[:-1]
                for group in self._groups:
                    key = form, turn, group.first
                    if key not in self._done:
                        done = self._of_group(turn, each, group, band)
                        self._done[key] = self._as_one(done)
                    yield before + self._done[key]
                    before = ()
                if each != numbers:
                    before = self._as_one([self._once(turn, numbers[-1])])
            if not self._whole:
                yield self._as_one([self._put(band)])

    def _as_one(self, actions: Iterable[Action]) -> tuple[Action, ...]:
        return tuple(self._same.setdefault(action, action) for action in actions)

    def _form(self, band: Band) -> tuple[int, ...]:
        """Return what a group does in ``band`` depends on: how many rows, and which are borders."""
        made = zip(self._item.operators, band.made, strict=True)
        return (
            *(edges(operator, rows) for operator, rows in made),
            *map(len, band.made),
            *map(len, band.read.values()),
        )

    def _of_group(
        self, turn: int, numbers: Sequence[int], group: Interval, band: Band
    ) -> Iterator[Action]:
        """Yield what is done for a group; weights are gathered first, so that kernels follow each other."""
        *made, last = numbers
        if self._item.operators[last].kind == "sum":
            part, copies = self._part(self._item.operators[last].inputs[1], group)
            yield from copies
            yield from (self._each(turn, number, group, band) for number in made)
            yield self._sum(turn, part, group, band)
        else:
            yield from (self._each(turn, number, group, band) for number in numbers)

    def _each(self, turn: int, number: int, group: Interval, band: Band) -> Compute:
        operator = self._item.operators[number]
        rows = band.made[number]
        _, _, _, width = operator.shape
        strip = self.strips.of_operator[turn, number]
        inputs = tuple(self._input(turn, taken, group, band) for taken in operator.inputs)
        if operator.kind == "mean":
            place = InStrip(strip, (1, len(group), 1, 1), _FLOAT_BYTES * group.first)
            return Compute(number, operator.graphs[0], inputs, place)
        size = self._item.sizes.index(len(group))
        graph = operator.graphs[4 * size + edges(operator, rows)]
        return Compute(number, graph, inputs, InStrip(strip, (1, len(group), len(rows), width)))

    def _once(self, turn: int, number: int) -> Compute:
        operator = self._item.operators[number]
        everything = Interval(0, self._item.channels)
        inputs = tuple(
            self._input(turn, taken, everything, self._bands[0]) for taken in operator.inputs
        )
        place = InStrip(self.strips.of_operator[turn, number], operator.shape)
        return Compute(number, operator.graphs[0], inputs, place)

    def _sum(self, turn: int, part: Place, group: Interval, band: Band) -> Compute:
        number = len(self._item.operators) - 1
        made, _, *others = self._item.operators[number].inputs
        inputs = [self._input(turn, made, group, band), part]
        target = self._target(band)
        first, more, last = self._item.operators[number].graphs
        if group.first:
            graph = last if group is self._groups[-1] else more
            return Compute(number, graph, (*inputs, target), target)
        for taken in others:
            fetched = taken.row_value is not None and not self._whole
            inputs.append(target if fetched else self._input(turn, taken, group, band))
        return Compute(number, first, tuple(inputs), target)

    def _part(self, taken: GroupInput, group: Interval) -> tuple[Place, list[Action]]:
        """Return where the weights of a group's inputs lie, and how they come there."""
        weights = taken.weights
        assert weights is not None  # models/packs/bottleneck_checks.py
        outputs, inputs = weights.shape[:2]
        block = self._network.program.target.block
        shape = (outputs, len(group), 1, 1)
        first = group.first // block
        if outputs == block:
            offset = weights.offset + _FLOAT_BYTES * group.first * block
            return replace(weights, offset=offset, shape=shape), []
        source = replace(weights, shape=(outputs // block, inputs // block, block * block))
        place = InStrip(self._weights, shape)
        blocks = first, first + len(group) // block
        held = InStrip(self._weights, (outputs // block, len(group) // block, block * block))
        return place, [Gather(source, blocks, held)]

    def _target(self, band: Band) -> InStrip | InValue:
        _, channels, _, width = self._item.operators[-1].shape
        shape = (1, channels, len(band.result), width)
        return InValue(self._item.output, shape) if self._whole else InStrip(self._result, shape)

    def _input(self, turn: int, taken: GroupInput, group: Interval, band: Band) -> Place:
        if taken.weights is not None:
            weights_key = id(taken), group.first
            if weights_key not in self._weights_of:
                own = _of_weights(taken.weights, taken.axis == "channels", group)
                self._weights_of[weights_key] = own
            return self._weights_of[weights_key]
        if taken.row_value is not None:
            return self._source(taken, group, band)
        assert taken.made is not None
        made = self._item.operators[taken.made]
        if made.kind == "each":
            _, _, _, width = made.shape
            strip = self.strips.of_operator[turn, taken.made]
            return InStrip(strip, (1, len(group), len(band.made[taken.made]), width))
        strip = next(
            strip for (_, number), strip in self.strips.of_operator.items() if number == taken.made
        )
        if taken.axis == "factors":
            return InStrip(strip, (len(group), 1, 1, 1), _FLOAT_BYTES * group.first)
        return InStrip(strip, made.shape)

    def _source(self, taken: GroupInput, group: Interval, band: Band) -> Place:
        """Return where a group finds what it needs of a row value."""
        assert taken.row_value is not None
        _, channels, _, width = self._network.values[taken.row_value].shape
        rows = len(band.read[taken.row_value])
        if taken.axis is None:
            shape, offset = (1, channels, rows, width), 0
        else:
            shape = (1, len(group), rows, width)
            offset = _FLOAT_BYTES * group.first * rows * width
        if self._whole:
            return InValue(taken.row_value, shape, offset)
        return InStrip(self._gathered[taken.row_value], shape, offset)

    def _fetched(self, band: Band) -> Iterator[Action]:
        """Yield what brings the rows that a band reads to strips."""
        for row_value, rows in band.read.items():
            value = self._network.values[row_value]
            if row_value not in self._gathered:
                most = max(len(each.read[row_value]) for each in self._bands)
                n_bytes = value.planes * value.row_bytes * most
                self._gathered[row_value] = self.strips.kept(n_bytes)
            yield self._moved(row_value, rows, self._gathered[row_value])
        if self._added is not None:
            yield self._moved(self._added, band.result, self._result)

    def _moved(self, row_value: int, rows: Interval, strip: int) -> Move:
        whole, held = self._lying(row_value, rows, strip)
        return Move(whole, held)

    def _put(self, band: Band) -> Move:
        whole, held = self._lying(self._item.output, band.result, self._result)
        return Move(held, whole)

    def _lying(self, row_value: int, rows: Interval, strip: int) -> tuple[Area, Area]:
        """Return ``rows`` of a value where it lies whole, and in a strip that holds just them."""
        value = self._network.values[row_value]
        _, _, height, width = value.shape
        columns = Interval(0, width)
        box, everything = Box(rows, columns), Box(Interval(0, height), columns)
        places = Lying(row_value, None, everything), Lying(row_value, strip, box)
        whole, held = (place.area(box, 0, value.planes) for place in places)
        return whole, held


def _of_weights(weights: Operand, by_channel: bool, group: Interval) -> Operand:
    """Return the weights of a group, which lie together, or all of them."""
    if not by_channel:
        return weights
    axis = next(axis for axis, length in enumerate(weights.shape) if length > 1)
    own = weights.n_bytes // weights.shape[axis]
    shape = (*weights.shape[:axis], len(group), *weights.shape[axis + 1 :])
    assert math.prod(weights.shape[:axis]) == 1
    return replace(weights, offset=weights.offset + own * group.first, shape=shape)
