"""A region on tiles (seed 002): each tile of the last operator's output is a phase.

Rows are tiles as wide as the network; what runs on rows is planned in regions.py, which loads what would be
overwritten and spreads the first rows over several phases.
"""

from pipeline.program.region_plan import Action, Region, RegionPlan
from pipeline.program.row_network import RowNetwork
from pipeline.program.tiling.made import TileBoxes
from pipeline.program.tiling.phases import TilePhases
from pipeline.program.tiling.strips import TileStrips


def plan_tiles(network: RowNetwork, region: Region, operators: range) -> RegionPlan:
    """Plan ``region``, whose columns are given.

    Raises:
        RegionError: it cannot run on tiles; the message names what is in the way.
    """
    boxes = TileBoxes(network, region, operators)
    strips = TileStrips(boxes)
    happening = TilePhases(boxes, strips)
    same: dict[Action, Action] = {}
    phases = tuple(
        tuple(same.setdefault(action, action) for action in happening.phase(tile))
        for tile in range(len(boxes.boxes))
    )
    return RegionPlan(
        region,
        operators,
        tuple(strip.built() for strip in strips.strips),
        phases,
        boxes.read,
        boxes.written(),
    )
