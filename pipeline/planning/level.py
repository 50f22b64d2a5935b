"""The kernels of one chunk size, their weights and their times: what drafts of plans share."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from models.packs.manifest import Manifest
from pipeline.planning.plan import Plan
from pipeline.planning.units import Unit, streamed_units
from pipeline.timing.durations import Durations


@dataclass(frozen=True)
class Level:
    """The kernels of one chunk size. ``kept_bytes``: what is resident whatever is chosen.

    ``until[p]``: seconds of kernels [0, p).
    """

    plan: Plan
    units: tuple[Unit, ...]
    kept_bytes: int
    until: tuple[float, ...]
    slowdown: float
    disturbance: float

    @cached_property
    def streamable_bytes(self) -> int:
        return sum(unit.length for unit in self.units)

    @cached_property
    def largest_bytes(self) -> int:
        """The least ring."""
        return max((unit.length for unit in self.units if not unit.in_arena), default=0)


def level_of(manifest: Manifest, plan: Plan, durations: Durations) -> Level:
    """Return the level of ``plan``, which keeps no more resident than it must."""
    return Level(
        plan,
        streamed_units(manifest, plan.steps, set(plan.resident)),
        plan.resident_bytes,
        tuple(accumulate(durations.stages[-1], initial=0.0)),
        durations.slowdown,
        durations.disturbance,
    )
