"""Regions: pieces that follow each other, computed in parts: some rows, or channels, in each phase.

Every operator writes the rows that it makes to a *strip*. An operator that needs exactly these reads them
there; one that needs others, the overlap of a 3 x 3 kernel or rows that waited for a slower branch, gets a
strip of its own, put together of new rows and of those that are *kept* from one phase to the next (the
self-loops of seed 001). What is read outside of the region is copied to where it lies whole. Groups of
channels are added up (seed 004, channels.py).

Where a region makes a value of the same form as one that is not read after it, it may write over that:
rows of the old one are then *loaded*, once, before rows of the new one take their place (many_rows.py).
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from models.packs.records.row_parts import RowInput, unrolled_by_rows
from pipeline.program.channels import plan_channels
from pipeline.program.region_plan import (
    Action,
    AreaCopy,
    ChannelCut,
    Fill,
    GraphCall,
    Interval,
    Region,
    RegionError,
    RegionPlan,
    with_equal_as_one,
)
from pipeline.program.row_network import PlaneRange, RowNetwork
from pipeline.program.stretch import Lying, Stretch, StripLayout

# What happens in a region, phase by phase: rows are loaded, gathered, computed, copied out and kept.


class _Phases:
    """Lists the actions of a region. Strips grow, meanwhile, to what they have to hold."""

    def __init__(self, stretch: Stretch, layout: StripLayout) -> None:
        self._stretch = stretch
        self._layout = layout
        self._values = stretch.network.values
        self._now = 0

    def phase(self, number: int) -> Iterator[Action]:
        """Yield what phase ``number`` does; phases come in their order, each once."""
        self._now = number
        for position, item in enumerate(self._stretch.items):
            for value in self._stretch.loaded[position]:
                yield from self._load(value)
            if self._new(item.output):
                yield from self._run(position)
            yield from self._keep(position)

    def _new(self, value: int) -> Interval:
        """Return the rows that are made, or loaded, now."""
        return self._stretch.rows[value][self._now]

    def _load(self, value: int) -> Iterator[Action]:
        rows, planes = self._new(value), self._values[value].planes
        if rows:
            place = self._layout.place(value, self._layout.made[value], rows)
            yield AreaCopy(self._whole(value).area(rows, 0, planes), place.area(rows, 0, planes))

    def _run(self, position: int) -> Iterator[Action]:
        item = self._stretch.items[position]
        rows, areas = self._new(item.output), []
        for number, taken in enumerate(item.inputs):
            needs = rows.through(taken.window)
            own = self._layout.own.get((position, number))
            strip = self._layout.made[taken.row_value] if own is None else own
            place = self._layout.place(taken.row_value, strip, needs)
            if own is not None:
                yield from self._gather(taken, place)
            areas.append(place.area(needs, 0, self._values[taken.row_value].planes))
        place = self._layout.place(item.output, self._layout.made[item.output], rows)
        output = place.area(rows, 0, self._values[item.output].planes)
        yield GraphCall(self._stretch.operators[position], tuple(areas), output)
        inside = self._stretch.inside[item.output]
        for copy in [*[self._itself(item.output)] * inside.whole, *inside.copies]:
            target = self._whole(copy.row_value)
            yield AreaCopy(
                place.area(rows, copy.source_plane, copy.planes),
                target.area(rows, copy.first_plane, copy.planes),
            )

    def _keep(self, position: int) -> Iterator[Action]:
        """Put what later phases need, once operator ``position`` has run, to where it stays."""
        for kept in self._layout.kept:
            if kept.update != position:
                continue
            strip = kept.turned(self._now, bool(self._new(kept.value)))
            if strip is not None:
                place = self._layout.place(kept.value, strip, kept.left[self._now])
                yield from self._put(self._itself(kept.value), place.rows, place)
                kept.now = place

    def _gather(self, taken: RowInput, target: Lying) -> Iterator[Action]:
        """Put what ``target`` should have of an input together there."""
        value, rows = self._values[taken.row_value], target.rows
        beyond = (
            Interval(rows.first, min(rows.end, 0)),
            Interval(max(rows.first, value.height), rows.end),
        )
        for outside in beyond if taken.fill != "edge" else ():
            if outside:
                yield Fill(target.area(outside, 0, value.planes), taken.fill != "zero")
        inside = rows.within(value.height)
        if not inside:
            return
        for part in self._stretch.parts[taken.row_value]:
            yield from self._put(part, inside, target)
        edges = Interval(0, 1), Interval(value.height - 1, value.height)
        for edge, outside in zip(edges, beyond, strict=True) if taken.fill == "edge" else ():
            for row in range(outside.first, outside.end):
                again = target.area(Interval(row, row + 1), 0, value.planes)
                yield AreaCopy(target.area(edge, 0, value.planes), again)

    def _put(self, part: PlaneRange, rows: Interval, target: Lying) -> Iterator[Action]:
        """Put ``rows`` of a part, which one operator makes, to ``target``."""
        for source in self._sources(part.row_value):
            both = source.rows.common(rows)
            if both:
                yield AreaCopy(
                    source.area(both, part.source_plane, part.planes),
                    target.area(both, part.first_plane, part.planes),
                )

    def _sources(self, value: int) -> Iterator[Lying]:
        """Yield where rows of a value of one maker lie now."""
        inside = self._stretch.inside.get(value)
        if inside is None or inside.whole:
            yield self._whole(value)
            return
        yield from (kept.now for kept in self._layout.kept if kept.value == value)
        yield Lying(value, self._layout.made[value], self._new(value))

    def _whole(self, value: int) -> Lying:
        return Lying(value, None, Interval(0, self._values[value].height))

    def _itself(self, value: int) -> PlaneRange:
        return PlaneRange(value, 0, 0, self._values[value].planes)


# The plan of a region.


def plan_region(network: RowNetwork, region: Region) -> RegionPlan:
    """Plan ``region``: what is made in each phase, what lies where, what happens.

    Raises:
        RegionError: some of its pieces have no row operators, or cannot run in groups of channels.
    """
    if isinstance(region.cut, ChannelCut):
        return plan_channels(network, region, region.cut)
    operators = network.within(region.pieces)
    if operators is None:
        raise RegionError(f"pieces {region.first_piece} to {region.end_piece} do not run on rows")
    plan = _planned(Stretch(network, region, operators, region.cut.rows, saving=True))
    if not plan.over:
        return plan
    other = _planned(Stretch(network, region, operators, region.cut.rows, saving=False))
    return min(other, plan, key=partial(_size, network))


def _planned(stretch: Stretch) -> RegionPlan:
    layout = StripLayout(stretch)
    happening = _Phases(stretch, layout)
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
            width = stretch.network.values[item.output].shape[3]
            pixels = np.array([width * len(rows) for rows in stretch.rows[item.output]], np.int64)
            most = max(most, int(unrolled_by_rows(item.unrolled, pixels).max(initial=0)))
    return most


def _size(network: RowNetwork, plan: RegionPlan) -> int:
    """Return the bytes of strips, less what is saved of whole values."""
    return plan.live_bytes() - sum(network.values[old].n_bytes for _, old in plan.over)
