"""How long the operations of a plan take: what planners, predictions and the bound calculate with."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from pipeline.schedule.schedule import Stage
from pipeline.schedule.trace import TraceEvent

_TWO_STAGES = 2


@dataclass(frozen=True)
class Durations:
    """Seconds of each operation of each stage, aligned with the stages of a plan.

    Reads for the next sweep are included. ``depth``: reads in flight, each on a server of its own.
    ``disturbance``: seconds that each read takes from the kernels, however short: threads that wake, caches
    that are lost.
    """

    stages: tuple[tuple[float, ...], ...]
    depth: int
    disturbance: float = 0.0

    def __post_init__(self) -> None:
        if self.depth < 1 or self.disturbance < 0:
            raise ValueError(f"depth {self.depth} below 1, or a negative time in {self}")

    def kernels(self, stages: Sequence[Stage]) -> tuple[float, ...]:
        """Return the seconds of each kernel, disturbed by reads.

        A read of this pass disturbs the kernel that needs it first; one for the next pass that which runs
        when it may start.
        """
        disturbed = list(self.stages[-1])
        if not self.disturbance or len(stages) == 1:
            return self.stages[-1]
        needs = list(accumulate((after[-2] for after in stages[-1].after), max))
        for kernel, (before, count) in enumerate(zip([0, *needs], needs, strict=False)):
            disturbed[kernel] += self.disturbance * (count - before)
        for kernel in _head_after(stages):
            if kernel < len(disturbed):
                disturbed[kernel] += self.disturbance
        return tuple(disturbed)


def _head_after(stages: Sequence[Stage]) -> Iterator[int]:
    """Yield, for each read for the next sweep, how many kernels end before it may start.

    Where it waits for copies, that is as many as these wait for.
    """
    head = stages[0].after[len(stages[0]) - stages[0].ahead :]
    return accumulate((max(after[-1], _before_copies(stages, after)) for after in head), max)


def _before_copies(stages: Sequence[Stage], after: Sequence[int]) -> int:
    """Return how many kernels end before the copies that ``after`` counts."""
    copies = after[1] if len(stages) > _TWO_STAGES else 0
    return max((needed[-1] for needed in stages[1].after[:copies]), default=0)


# How long each operation of a sweep took, from its trace: r_i, c_i and k_i of seed 003.
#
# An operation is served from when all that it waits for was complete and its stage had a server for it,
# to its completion. So it holds all that the loop around it costs, and from these times the delay follows
# again.


@dataclass(frozen=True)
class ServiceTime:
    """When an operation was served, in seconds since its sweep began."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


#: Shorter gaps between kernels are the loop's, not the disk's.
STALL_SECONDS = 50e-6


#: For each stage its operations; None where the trace does not show the end of one.
Services = tuple[tuple[ServiceTime | None, ...], ...]


def services(stages: Sequence[Stage], events: Iterable[TraceEvent], depth: int) -> Services:
    """Return when each operation was served; the first stage serves ``depth`` at a time, others one.

    Operations that the sweep before released count from the beginning of this one.
    """
    names = {stage.name: number for number, stage in enumerate(stages)}
    ends = [[inf] * len(stage) for stage in stages]
    for event in events:
        if event.what == "complete":
            ends[names[event.stage]][event.index] = event.at
    # complete[t][n]: when the first n operations of stage t were.
    complete = [list(accumulate(row, max, initial=0.0)) for row in ends]
    return tuple(
        _served(stage, ends[number], complete, 1 if number else depth)
        for number, stage in enumerate(stages)
    )


def _served(
    stage: Stage, ends: Sequence[float], complete: Sequence[Sequence[float]], servers: int
) -> tuple[ServiceTime | None, ...]:
    """First come, first served: one starts when fewer than ``servers`` before it are incomplete."""
    latest = [0.0] * servers  # so many latest completions, the earliest of them first
    ready = 0.0
    served: list[ServiceTime | None] = []
    for after, end in zip(stage.after, ends, strict=True):
        ready = max(ready, *(row[count] for row, count in zip(complete, after, strict=True)))
        # Never after its end: two that end together may report so in either order.
        start = min(max(ready, latest[0]), end)
        served.append(ServiceTime(start, end) if end < inf else None)
        heapq.heappushpop(latest, end)
    return tuple(served)


def launched(
    kernels: Sequence[ServiceTime | None], runs: Sequence[range]
) -> Iterator[tuple[range, ServiceTime | None]]:
    """Yield the kernels of each launch, in order, and when it was served; ``runs``: those of several.

    None: the trace does not show its beginning, or its end.
    """
    index, of_runs = 0, {run.start: run for run in runs}
    while index < len(kernels):
        run = of_runs.get(index, range(index, index + 1))
        first, last = kernels[run.start], kernels[run.stop - 1]
        yield run, None if first is None or last is None else ServiceTime(first.start, last.end)
        index = run.stop
