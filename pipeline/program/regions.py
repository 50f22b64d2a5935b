"""Regions: pieces that follow each other, computed in parts: some rows, boxes, or channels in each phase.

Every operator writes the rows that it makes to a *strip*. Whoever needs exactly these reads them there;
who needs others, the overlap of a 3 x 3 kernel or rows that waited for a slower branch, gets a strip of its
own, put together of new rows and of those that are *kept* from one phase to the next (the self-loops of
seed 001). What is read outside of the region is copied to where it lies whole. So it is on tiles, whose
boxes are some columns of rows (seed 002); groups of channels are added up (seed 004, channels.py).

Where a region makes a value of the same form as one that nobody reads after it, it may write over that:
rows of the old one are then *loaded*, once, before rows of the new one take their place (loading.py).
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from models.packs.records.row_parts import unrolled_by_rows
from pipeline.program.boxes.layout import Keeping, StripLayout
from pipeline.program.boxes.phases import Phases
from pipeline.program.boxes.rows import RowStretch, kept_between_phases
from pipeline.program.boxes.store import kept_between_tiles
from pipeline.program.boxes.stretch import Stretch
from pipeline.program.boxes.tiles import TileStretch
from pipeline.program.channels import plan_channels
from pipeline.program.cuts import ChannelCut, Region, RegionError, TileCut
from pipeline.program.region_plan import RegionPlan, with_equal_as_one
from pipeline.program.row_network import RowNetwork

_Cut = TypeVar("_Cut", bound=Stretch)


def plan_region(network: RowNetwork, region: Region) -> RegionPlan:
    """Plan ``region``: what is made in each phase, what lies where, what happens.

    Raises:
        RegionError: some of its pieces have no row operators; or they cannot run on tiles, or in groups of
            channels.
    """
    cut = region.cut
    if isinstance(cut, ChannelCut):
        return plan_channels(network, region, cut)
    operators = network.within(region.pieces)
    if operators is None:
        raise RegionError(f"pieces {region.first_piece} to {region.end_piece} do not run on rows")
    if isinstance(cut, TileCut):
        return _planned(TileStretch(network, region, operators, cut), kept_between_tiles)
    plan = _planned(
        RowStretch(network, region, operators, cut.rows, saving=True), kept_between_phases
    )
    if not plan.over:
        return plan
    other = _planned(
        RowStretch(network, region, operators, cut.rows, saving=False), kept_between_phases
    )
    return min(other, plan, key=partial(_size, network))


def _planned(stretch: _Cut, keeping: Callable[[_Cut, StripLayout], Keeping]) -> RegionPlan:
    """Plan ``stretch``, whose phases keep for later ones what ``keeping`` says."""
    layout = StripLayout(stretch)
    happening = Phases(stretch, layout, keeping(stretch, layout))
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
            pixels = np.array([box.pixels for made in boxes for box in made], np.int64)
            most = max(most, int(unrolled_by_rows(item.unrolled, pixels).max(initial=0)))
    return most


def _size(network: RowNetwork, plan: RegionPlan) -> int:
    """Return the bytes of strips, less what is saved of whole values."""
    return plan.live_bytes() - sum(network.values[old].n_bytes for _, old in plan.over)
