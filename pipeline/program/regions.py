"""Regions: pieces that follow each other, computed in parts: some rows, boxes, or channels in each phase.

Every operator writes the rows that it makes to a *strip*. An operator that needs exactly these reads them
there; one that needs others, the overlap of a 3 x 3 kernel or rows that waited for a slower branch, gets a
strip of its own, put together of new rows and of those that are *kept* from one phase to the next (the
self-loops of seed 001). What is read outside of the region is copied to where it lies whole. Groups of
channels are added up (seed 004, channels.py).

Where a region makes a value of the same form as one that is not read after it, it may write over that:
rows of the old one are then *loaded*, once, before rows of the new one take their place (many_rows.py).
"""

from collections.abc import Callable, Iterator
from functools import partial, singledispatch
from typing import TypeVar

import numpy as np

from models.packs.records.row_parts import RowInput, unrolled_by_rows
from pipeline.program.boxes.box import Interval, RowBox, common, without
from pipeline.program.boxes.row_stretch import RowStretch, kept_between_phases
from pipeline.program.boxes.stretch import Keeping, Lying, Stretch, StripLayout
from pipeline.program.channels import plan_channels
from pipeline.program.region_plan import (
    Action,
    AreaCopy,
    ChannelCut,
    Cut,
    Fill,
    GraphCall,
    Region,
    RegionError,
    RegionPlan,
    with_equal_as_one,
)
from pipeline.program.row_network import PlaneRange, RowNetwork

# What happens in a region, phase by phase: boxes are loaded, gathered, computed, copied out and kept.


class _Phases:
    """Lists the actions of a region. Strips grow, meanwhile, to what they have to hold."""

    def __init__(self, stretch: Stretch, layout: StripLayout, keeping: Keeping) -> None:
        self._stretch = stretch
        self._layout = layout
        self._keeping = keeping
        self._now = 0

    def phase(self, number: int) -> Iterator[Action]:
        """Yield what phase ``number`` does; phases come in their order, each once."""
        self._now = number
        for position, item in enumerate(self._stretch.items):
            for value in self._stretch.loaded[position]:
                yield from self._load(value)
            for slot, box in enumerate(self._stretch.inside[item.output].boxes[number]):
                yield from self._run(position, slot, box)
            for place in self._keeping.put(number, position):
                yield from self._put(self._itself(place.row_value), place.box, place)

    def _load(self, value: int) -> Iterator[Action]:
        planes = self._stretch.network.values[value].planes
        for slot, box in enumerate(self._stretch.inside[value].boxes[self._now]):
            place = self._layout.place(value, self._layout.made[value, slot], box)
            yield AreaCopy(self._whole(value).area(box, 0, planes), place.area(box, 0, planes))

    def _run(self, position: int, slot: int, box: RowBox) -> Iterator[Action]:
        item, values = self._stretch.items[position], self._stretch.network.values
        areas = []
        for number, taken in enumerate(item.inputs):
            needs = self._stretch.needed(position, number, box)
            own = self._layout.own.get((position, number, slot))
            strip = self._layout.made[taken.row_value, slot] if own is None else own
            place = self._layout.place(taken.row_value, strip, needs)
            if own is not None:
                yield from self._gather(taken, place)
            areas.append(place.area(needs, 0, values[taken.row_value].planes))
        place = self._layout.place(item.output, self._layout.made[item.output, slot], box)
        output = place.area(box, 0, values[item.output].planes)
        yield GraphCall(self._stretch.operators[position], tuple(areas), output)
        inside = self._stretch.inside[item.output]
        for copy in [*[self._itself(item.output)] * inside.whole, *inside.copies]:
            target = self._whole(copy.row_value)
            yield AreaCopy(
                place.area(box, copy.source_plane, copy.planes),
                target.area(box, copy.first_plane, copy.planes),
            )

    def _gather(self, taken: RowInput, target: Lying) -> Iterator[Action]:
        """Put what ``target`` should have of an input together there."""
        box, whole = target.box, self._stretch.all_of(taken.row_value)
        planes = self._stretch.network.values[taken.row_value].planes
        inside = common(box, whole)
        margins = [] if inside == box else without(box, [whole])
        for margin in margins if taken.fill != "edge" else ():
            yield Fill(target.area(margin, 0, planes), taken.fill != "zero")
        if inside is None:
            return
        for part in self._stretch.parts[taken.row_value]:
            yield from self._put(part, inside, target)
        for line, again in _edges(box, inside) if margins and taken.fill == "edge" else ():
            yield AreaCopy(target.area(line, 0, planes), target.area(again, 0, planes))

    def _put(self, part: PlaneRange, wanted: RowBox, target: Lying) -> Iterator[Action]:
        """Put the box ``wanted`` of a part, which one operator makes, to ``target``."""
        for source, box in self._sources(part.row_value, wanted):
            yield AreaCopy(
                source.area(box, part.source_plane, part.planes),
                target.area(box, part.first_plane, part.planes),
            )

    def _sources(self, value: int, wanted: RowBox) -> Iterator[tuple[Lying, RowBox]]:
        """Yield where the box ``wanted`` of a value of one maker lies now."""
        inside = self._stretch.inside.get(value)
        if inside is None or inside.whole:
            yield self._whole(value), wanted
            return
        places = [*self._keeping.held(self._now, value)]
        for slot, box in enumerate(inside.boxes[self._now]):
            places.append(Lying(value, self._layout.made[value, slot], box))
        for place in places:
            both = common(place.box, wanted)
            if both is not None:
                yield place, both

    def _whole(self, value: int) -> Lying:
        return Lying(value, None, self._stretch.all_of(value))

    def _itself(self, value: int) -> PlaneRange:
        return PlaneRange(value, 0, 0, self._stretch.network.values[value].planes)


def _edges(box: RowBox, inside: RowBox) -> Iterator[tuple[RowBox, RowBox]]:
    """Yield what is at the border of a value, and what of ``box`` around it holds the same again.

    Columns first: rows are then as wide as the box.
    """
    for edge, column in _beyond(box.columns, inside.columns):
        yield RowBox(inside.rows, edge), RowBox(inside.rows, column)
    for edge, row in _beyond(box.rows, inside.rows):
        yield RowBox(edge, box.columns), RowBox(row, box.columns)


def _beyond(around: Interval, inside: Interval) -> Iterator[tuple[Interval, Interval]]:
    """Yield the first or the last of ``inside``, and each that lies before or behind it."""
    first, last = Interval(inside.first, inside.first + 1), Interval(inside.end - 1, inside.end)
    for number in range(around.first, inside.first):
        yield first, Interval(number, number + 1)
    for number in range(inside.end, around.end):
        yield last, Interval(number, number + 1)


# The plan of a region, however it is cut.

_Cut = TypeVar("_Cut", bound=Stretch)


def plan_region(network: RowNetwork, region: Region) -> RegionPlan:
    """Plan ``region``: what is made in each phase, what lies where, what happens.

    Raises:
        RegionError: some of its pieces have no row operators, or cannot run in groups of channels.
    """
    return plan_cut(region.cut, network, region)


@singledispatch
def plan_cut(cut: Cut, network: RowNetwork, region: Region) -> RegionPlan:
    """Plan ``region``, which is cut in rows unless what plans ``cut`` is registered."""
    operators = operators_of(network, region)
    plan = planned(
        RowStretch(network, region, operators, cut.rows, saving=True), kept_between_phases
    )
    if not plan.over:
        return plan
    other = planned(
        RowStretch(network, region, operators, cut.rows, saving=False), kept_between_phases
    )
    return min(other, plan, key=partial(_size, network))


@plan_cut.register
def _(cut: ChannelCut, network: RowNetwork, region: Region) -> RegionPlan:
    return plan_channels(network, region, cut)


def operators_of(network: RowNetwork, region: Region) -> range:
    """Return the row operators of ``region``.

    Raises:
        RegionError: some of its pieces have none.
    """
    operators = network.within(region.pieces)
    if operators is None:
        raise RegionError(f"pieces {region.first_piece} to {region.end_piece} do not run on rows")
    return operators


def planned(stretch: _Cut, keeping: Callable[[_Cut, StripLayout], Keeping]) -> RegionPlan:
    """Plan ``stretch``, whose phases keep for later ones what ``keeping`` says."""
    layout = StripLayout(stretch)
    happening = _Phases(stretch, layout, keeping(stretch, layout))
    phases = with_equal_as_one(map(happening.phase, range(stretch.phases)))
    return RegionPlan(
        stretch.region,
        stretch.operators,
        len(stretch.operators),
        layout.strips.built(),
        phases,
        stretch.outside,
        stretch.written,
        stretch.over,
        scratch_bytes=_scratch_bytes(stretch),
    )


def _scratch_bytes(stretch: Stretch) -> int:
    """Return the most that the kernel of any operator allocates in any phase."""
    most = 0
    for item in stretch.items:
        if item.unrolled is not None:
            boxes = stretch.inside[item.output].boxes
            pixels = np.array(
                [box.pixels for boxes_of_phase in boxes for box in boxes_of_phase], np.int64
            )
            most = max(most, int(unrolled_by_rows(item.unrolled, pixels).max(initial=0)))
    return most


def _size(network: RowNetwork, plan: RegionPlan) -> int:
    """Return the bytes of strips, less what is saved of whole values."""
    return plan.live_bytes() - sum(network.values[old].n_bytes for _, old in plan.over)
