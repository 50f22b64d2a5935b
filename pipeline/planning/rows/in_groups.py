"""Bottlenecks in groups of channels: which groups and rows plans may choose, and what each takes."""

from collections.abc import Callable, Iterator

from models.packs.manifest import Manifest
from models.packs.records.bottlenecks import Bottleneck
from pipeline.planning.rows.exact_regions import ExactRegion
from pipeline.program.channels.groups import height
from pipeline.program.regions import Region, RegionError, plan_region
from pipeline.program.row_network import RowNetwork
from pipeline.program.row_times import RowTimes, phase_seconds
from pipeline.program.stopping import go_on

# All rows at once, or as many bands. Each binds kernels of its own and makes overlaps again.
_BANDS = (1, 4, 8)


def group_regions(manifest: Manifest) -> Iterator[Region]:
    """Yield the bottlenecks of ``manifest`` in all groups and bands that plans may choose."""
    for item in manifest.bottlenecks:
        for channels in item.sizes:
            for rows in _rows(item):
                yield Region(item.first_piece, item.end_piece, rows, channels=channels)


def _rows(item: Bottleneck) -> list[int]:
    last = height(item.operators[-1])
    gated = any(operator.kind == "once" for operator in item.operators)
    counts = (1,) if gated else _BANDS
    return list(dict.fromkeys(-(-last // count) for count in counts))


def in_groups(
    network: RowNetwork, times: RowTimes, known: Callable[[Region], bool] = lambda region: True
) -> Iterator[ExactRegion]:
    """Yield what each of them takes; not of those that cannot run, or whose time is not ``known``."""
    for region in group_regions(network.manifest):
        go_on()
        if not known(region):
            continue
        try:
            plan = plan_region(network, region)
        except RegionError:
            continue
        yield ExactRegion.of(network, plan, sum(phase_seconds(network, plan, times)))
