"""What the loop around kernels costs: the schedule of a sweep that reads, asked and told at every step.

Sweeps in which nothing else takes time: reads and copies have ended when they are started, kernels do
nothing. Sweeps without reads have no such loop, and kernels are measured in those.
"""

from collections.abc import Callable
from statistics import median

from pipeline.devices.base import Done
from pipeline.execution.sweep import Sweeper
from pipeline.planning.plan import Plan
from pipeline.schedule.trace import TraceEvent

_SWEEPS = 9


def loop_seconds(plan: Plan, recorded: bool = False) -> list[float]:
    """Return what a step of ``plan`` takes beside its kernel, sweep by sweep; ``recorded``: with traces."""
    stages = plan.stages
    sweeper = Sweeper(stages, [_at_once] * (len(stages) - 1), [_nothing] * len(stages[-1]))
    found = []
    for _ in range(_SWEEPS):
        events: list[TraceEvent] = []
        record: Callable[[TraceEvent], None] | None = events.append if recorded else None
        found.append(sweeper.run(record=record).delay_seconds / max(len(stages[-1]), 1))
    return found


def recorded_loop_seconds(plan: Plan) -> float:
    """Return what all steps of a sweep of ``plan`` take beside their kernels where it is recorded."""
    return median(loop_seconds(plan, recorded=True)) * len(plan.stages[-1])


def _at_once(index: int, done: Done) -> None:
    done(None, 0.0)


def _nothing() -> None:
    pass
