"""Bottlenecks in groups of channels: which groups and rows plans may choose, and what each takes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from models.packs.records.row_parts import Bottleneck
from pipeline.program.choice import BINDING_BYTES
from pipeline.program.cuts import ChannelCut, Region, RegionError
from pipeline.program.program import Program
from pipeline.program.region_plan import Compute, RegionPlan
from pipeline.program.regions import plan_region
from pipeline.program.row_network import RowNetwork
from pipeline.program.row_times import RowTimes, phase_seconds
from pipeline.program.steps import MOVE_BYTES, STEP_BYTES
from pipeline.program.stopping import go_on

# All rows at once, or as many bands. Each binds kernels of its own and makes overlaps again.
_BANDS = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class RegionInGroups:
    """What ``region`` takes: bytes of its own and of what it binds, and seconds.

    ``own_bytes``: of strips, and of what it does not write over what it reads, though whole pieces do.
    ``touched``: the row values that it reads or writes where these lie whole. ``graphs``: that its kernels
    run.
    """

    region: Region
    own_bytes: int
    scratch_bytes: int
    binding_bytes: int
    seconds: float
    touched: frozenset[int]
    graphs: frozenset[int]

    @classmethod
    def of(cls, network: RowNetwork, plan: RegionPlan, seconds: float) -> "RegionInGroups":
        """Return what ``plan`` takes, which runs for so many seconds."""
        # Of those that are alike all are one object.
        actions = {id(action): action for phase in plan.phases for action in phase}.values()
        kernels = [action for action in actions if isinstance(action, Compute)]
        alone = sum(network.values[value].n_bytes for value in plan.alone)
        return cls(
            plan.region,
            plan.live_bytes() + alone,
            plan.scratch_bytes,
            BINDING_BYTES * len(kernels)
            + MOVE_BYTES * (len(actions) - len(kernels))
            + STEP_BYTES * len(plan.phases),
            seconds,
            plan.read | plan.written,
            frozenset(action.graph for action in kernels),
        )


def group_regions(program: Program) -> Iterator[Region]:
    """Yield the bottlenecks of ``program`` in all groups and bands that plans may choose."""
    for item in program.bottlenecks:
        for channels in item.sizes:
            for rows in _rows(item):
                yield Region(item.first_piece, item.end_piece, ChannelCut(channels, rows))


def _rows(item: Bottleneck) -> list[int]:
    last = item.operators[-1].height
    gated = any(operator.kind == "once" for operator in item.operators)
    counts = (1,) if gated else _BANDS
    return list(dict.fromkeys(-(-last // count) for count in counts))


def in_groups(
    network: RowNetwork, regions: Iterable[Region], times: RowTimes
) -> Iterator[RegionInGroups]:
    """Yield what each of ``regions`` takes; not of those that cannot run."""
    for region in regions:
        go_on()
        try:
            plan = plan_region(network, region)
        except RegionError:
            continue
        yield RegionInGroups.of(network, plan, sum(phase_seconds(network, plan, times)))
