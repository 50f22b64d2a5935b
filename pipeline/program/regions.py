"""Regions: pieces that follow each other, computed a few rows at a time (row phases).

Every operator writes the rows that it makes to a *strip*. Whoever needs exactly these reads them there;
who needs others, the overlap of a 3 x 3 kernel or rows that waited for a slower branch, gets a strip of its
own, put together of new rows and of those that are *kept* from one phase to the next (the self-loops of
seed 001). What is read outside of the region is copied to where it lies whole.

Where a region makes a value of the same form as one that nobody reads after it, it may write over that:
rows of the old one are then *loaded*, once, before rows of the new one take their place (loading.py).
"""

from functools import partial

from pipeline.program.channels.plan import plan_channels
from pipeline.program.region_phases import Phases
from pipeline.program.region_plan import (
    Action,
    Area,
    Call,
    Columns,
    Compute,
    Fill,
    Gather,
    InStrip,
    InValue,
    Move,
    Place,
    Region,
    RegionError,
    RegionPlan,
    Reuse,
    Strip,
    launches,
)
from pipeline.program.region_rows import RegionRows
from pipeline.program.region_strips import StripLayout
from pipeline.program.row_network import RowNetwork
from pipeline.program.tiling.plan import plan_tiles

__all__ = [
    "Action",
    "Area",
    "Call",
    "Columns",
    "Compute",
    "Fill",
    "Gather",
    "InStrip",
    "InValue",
    "Move",
    "Place",
    "Region",
    "RegionError",
    "RegionPlan",
    "Reuse",
    "Strip",
    "launches",
    "plan_region",
]


def plan_region(network: RowNetwork, region: Region) -> RegionPlan:
    """Plan ``region``: which rows, what lies where, what happens.

    Raises:
        RegionError: some of its pieces have no row operators; or it cannot run on tiles, or in groups of
            channels.
    """
    if region.channels is not None:
        return plan_channels(network, region)
    operators = network.within(region.pieces)
    columns = 1 if region.columns is None else region.columns
    if operators is None or min(region.rows, columns) < 1:
        raise RegionError(f"pieces {region.first_piece} to {region.end_piece} do not run on rows")
    if region.columns is not None:
        return plan_tiles(network, region, operators)
    plan = _planned(network, region, operators, saving=True)
    if not plan.over:
        return plan
    return min(
        _planned(network, region, operators, saving=False), plan, key=partial(_size, network)
    )


def _size(network: RowNetwork, plan: RegionPlan) -> int:
    """Return the bytes of strips, less what is saved of whole values."""
    return plan.live_bytes() - sum(network.values[old].n_bytes for _, old in plan.over)


def _planned(network: RowNetwork, region: Region, operators: range, saving: bool) -> RegionPlan:
    """Plan ``region``; ``saving``: with values written over others that nobody reads any more."""
    rows = RegionRows(network, region, operators, saving)
    layout = StripLayout(rows)
    happening = Phases(rows, layout)
    same: dict[Action, Action] = {}  # most actions are alike in many phases: then they are one
    phases = tuple(
        tuple(same.setdefault(action, action) for action in happening.phase(number))
        for number in range(len(rows.ranges))
    )
    return RegionPlan(
        region,
        operators,
        tuple(strip.built() for strip in layout.strips),
        phases,
        frozenset(happening.read),
        frozenset(rows.written()),
        rows.over,
    )
