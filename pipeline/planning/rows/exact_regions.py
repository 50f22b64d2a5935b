"""Regions that are planned one by one, as sketches know rows only: on tiles, or in groups of channels."""

from dataclasses import dataclass

from models.packs.choice import BINDING_BYTES
from pipeline.program.region_plan import Call, Compute, Region, RegionPlan
from pipeline.program.row_network import RowNetwork
from pipeline.program.sessions import graph_of
from pipeline.program.steps import MOVE_BYTES, STEP_BYTES


@dataclass(frozen=True, slots=True)
class ExactRegion:
    """What ``region`` takes: bytes of its own and of what it binds, and seconds at most.

    ``own_bytes``: of strips, and of what it does not write over what it reads, though whole pieces do.
    ``doubt_seconds``: by how much the seconds are more than what it usually takes. ``touched``: the row
    values that it reads or writes where these lie whole. ``graphs``: that its kernels run.
    """

    region: Region
    own_bytes: int
    binding_bytes: int
    seconds: float
    doubt_seconds: float
    touched: frozenset[int]
    graphs: frozenset[int]

    @classmethod
    def of(
        cls, network: RowNetwork, plan: RegionPlan, seconds: float, doubt_seconds: float = 0.0
    ) -> "ExactRegion":
        """Return what ``plan`` takes, which runs for so many seconds."""
        actions = {action for phase in plan.phases for action in phase}
        calls = [action for action in actions if isinstance(action, Call)]
        computed = [action for action in actions if isinstance(action, Compute)]
        copies = len(actions) - len(calls) - len(computed)
        alone = sum(network.values[value].n_bytes for value in plan.alone)
        graphs = {graph_of(network.manifest, call) for call in calls}
        return cls(
            plan.region,
            plan.live_bytes() + alone,
            BINDING_BYTES * (len(calls) + len(computed))
            + MOVE_BYTES * copies
            + STEP_BYTES * len(plan.phases),
            seconds,
            doubt_seconds,
            plan.read | plan.written,
            frozenset(graphs | {action.graph for action in computed}),
        )
