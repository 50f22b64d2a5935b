"""Regions of a network, for tests: at random places, or as large as possible."""

from random import Random

from pipeline.program.region_plan import Cut, Region, RegionError, RowCut
from pipeline.program.regions import plan_region
from pipeline.program.row_network import RowNetwork

_ROWS = (1, 1, 2, 3, 4, 7, 16, 40)


def random_regions(random: Random, network: RowNetwork) -> tuple[Region, ...]:
    """Return regions of any pieces that can be one, apart from each other."""
    count = len(network.program.pieces)
    found: list[Region] = []
    start = 0
    while start < count:
        ends = [end for end in range(start + 1, count + 1) if network.within(range(start, end))]
        random.shuffle(ends)
        for end in ends if random.random() < 0.8 else ():
            region = Region(start, end, RowCut(random.choice(_ROWS)), random.random() < 0.5)
            if is_possible(network, region):
                found.append(region)
                start = end - 1
                break
        start += 1
    return tuple(found)


def largest_regions(network: RowNetwork, cut: Cut) -> tuple[Region, ...]:
    """Return the longest regions there are, from the first piece on, each cut as ``cut`` says."""
    count = len(network.program.pieces)
    found: list[Region] = []
    start = 0
    while start < count:
        regions = [Region(start, end, cut) for end in range(count, start, -1)]
        region = next((item for item in regions if is_possible(network, item)), None)
        if region is not None:
            found.append(region)
        start = start + 1 if region is None else region.end_piece
    return tuple(found)


def is_possible(network: RowNetwork, region: Region) -> bool:
    try:
        plan_region(network, region)
    except RegionError:
        return False
    return True
