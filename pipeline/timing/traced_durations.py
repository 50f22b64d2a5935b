"""How long each operation of a sweep took, from its trace: r_i, c_i and k_i of seed 003.

An operation is served from when all that it waits for was complete and its stage had a server for it, to
its completion. So it holds all that the loop around it costs, and from these times the delay follows again.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from pipeline.schedule.schedule import Stage
from pipeline.schedule.trace import TraceEvent


@dataclass(frozen=True)
class Service:
    """When an operation was served, in seconds since its sweep began."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


#: Shorter gaps between kernels are the loop's, not the disk's.
STALL_SECONDS = 50e-6


#: For each stage its operations; None where the trace does not show the end of one.
Services = tuple[tuple[Service | None, ...], ...]


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
) -> tuple[Service | None, ...]:
    """First come, first served: one starts when fewer than ``servers`` before it are incomplete."""
    latest = [0.0] * servers  # so many latest completions, the earliest of them first
    ready = 0.0
    served: list[Service | None] = []
    for after, end in zip(stage.after, ends, strict=True):
        ready = max(ready, *(row[count] for row, count in zip(complete, after, strict=True)))
        # Never after its end: two that end together may report so in either order.
        start = min(max(ready, latest[0]), end)
        served.append(Service(start, end) if end < inf else None)
        heapq.heappushpop(latest, end)
    return tuple(served)


def launched(
    kernels: Sequence[Service | None], runs: Sequence[range]
) -> Iterator[tuple[range, Service | None]]:
    """Yield the kernels of each launch, in order, and when it was served; ``runs``: those of several.

    None: the trace does not show its beginning, or its end.
    """
    index, of_runs = 0, {run.start: run for run in runs}
    while index < len(kernels):
        run = of_runs.get(index, range(index, index + 1))
        first, last = kernels[run.start], kernels[run.stop - 1]
        yield run, None if first is None or last is None else Service(first.start, last.end)
        index = run.stop
