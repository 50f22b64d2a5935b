"""An upper bound of the delay of a sweep, by max-plus analysis of its schedule (docs/research/bound.md).

Every start is a maximum of ends, every end a start plus a duration, and reads take servers in the order of
their release: so longer durations never make anything earlier, and the recurrence with upper bounds of
all durations bounds every execution.
"""

from collections.abc import Sequence

from pipeline.schedule.schedule import Stage
from pipeline.timing.durations import Durations
from pipeline.timing.timeline import Fifo, recur


def bound(stages: Sequence[Stage], durations: Durations, carried: int = 0) -> float:
    """Return seconds that no sweep exceeds whose operations take no longer than ``durations``.

    It holds whatever the sweep before left in flight; with ``carried`` only if so many reads of the head
    are complete when the sweep begins. Kernels count as slowed down all the time.
    """
    factor = 1.0 + durations.slowdown
    kernels = durations.kernels(stages)
    rows = [*durations.stages[:-1], tuple(factor * seconds for seconds in kernels)]
    # Reads for the next sweep delay nothing in this one: they come after all others.
    own = [Stage(stage.name, stage.after[: len(stage) - stage.ahead]) for stage in stages]
    servers = [Fifo(row) for row in rows]
    servers[0] = Fifo(rows[0], durations.depth)
    _, ends = recur(own, servers, [(0.0, 0.0)] * carried)
    return max((max(row) for row in ends if row), default=0.0)
