"""When every operation of a sweep starts and ends, by recurrence; and bounds of its delay.

The schedule releases in a fixed order, so an operation starts when the last of what it waits for has
ended: a maximum over earlier ends and the free server of its stage. Reads have ``depth`` servers, copies
and kernels one each. Planners, predictions and the bound have their times from here; ``trace`` drives the
engine's own schedule through them.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.schedule.schedule import Schedule, ScheduleError, Stage
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import Durations


class _Servers:
    """``depth`` servers for one line, first come first served."""

    def __init__(self, seconds: Sequence[float], depth: int = 1) -> None:
        self._seconds = seconds
        self._free = [0.0] * depth

    def serve(self, index: int, ready: float) -> tuple[float, float]:
        """Return when operation ``index``, released at ``ready``, starts and ends."""
        free = self._free[0]
        start = ready if ready > free else free
        end = start + self._seconds[index]
        heapq.heapreplace(self._free, end)
        return start, end


@dataclass(frozen=True)
class Timeline:
    """``starts[t][i]`` and ``ends[t][i]``: seconds since the sweep began, of operation i of stage t."""

    starts: tuple[list[float], ...]
    ends: tuple[list[float], ...]
    delay_seconds: float

    @property
    def stall_seconds(self) -> float:
        """Time in which the last stage waited."""
        begun, ended = self.starts[-1], self.ends[-1]
        # Gap by gap: a difference of sums would not be zero where there is none.
        return sum(
            max(start - before, 0.0)
            for before, start in zip([0.0, *ended], [*begun, self.delay_seconds], strict=True)
        )


def timeline(stages: Sequence[Stage], durations: Durations, carried: int = 0) -> Timeline:
    """Return the times of one sweep whose first ``carried`` reads are complete when it begins."""
    reads = _Servers(durations.stages[0], durations.depth)
    between = [_Servers(row) for row in durations.stages[1:-1]]
    kernels = _Servers(durations.kernels(stages))
    starts, ends = _recur(stages, [reads, *between, kernels], carried)
    delay = max(
        (
            end
            for stage, row in zip(stages, ends, strict=True)
            for end in row[: len(stage) - stage.ahead]
        ),
        default=0.0,
    )
    return Timeline(starts, ends, max(delay, 0.0))


def trace(stages: Sequence[Stage], line: Timeline, carried: int = 0) -> Iterator[TraceEvent]:
    """Yield what an engine would report of the sweep ``line``; its first ``carried`` reads are complete."""
    schedule, now = Schedule(stages, carried), 0.0
    for index in range(carried):
        yield TraceEvent("release", stages[0].name, index)
        schedule.completed(0, index)
        yield TraceEvent("complete", stages[0].name, index)
    flying: list[tuple[float, int, int]] = []
    while True:
        for action in schedule.release():
            yield TraceEvent("release", stages[action.stage].name, action.index, now)
            end = line.ends[action.stage][action.index]
            heapq.heappush(flying, (end, action.stage, action.index))
        if schedule.finished:
            return
        now = flying[0][0]
        while flying and flying[0][0] <= now:
            _, stage, index = heapq.heappop(flying)
            schedule.completed(stage, index)
            yield TraceEvent("complete", stages[stage].name, index, now)


def _recur(
    stages: Sequence[Stage], servers: Sequence[_Servers], carried: int
) -> tuple[tuple[list[float], ...], tuple[list[float], ...]]:
    """Return starts and ends of all operations, asking each stage's server in order.

    An operation of a later stage is asked for when all earlier stages have gone as far as they can without
    it: what starts before it ends is known then. The first ``carried`` reads have ended before.

    Raises:
        ScheduleError: the stages wait for each other.
    """
    starts: tuple[list[float], ...] = tuple([] for _ in stages)
    ends: tuple[list[float], ...] = tuple([] for _ in stages)
    # latest[t][n]: when the first n operations of stage t have all ended.
    latest: list[list[float]] = [[0.0] for _ in stages]
    released = [0.0] * len(stages)
    for row in (starts[0], ends[0], latest[0]):
        row.extend([0.0] * carried)
    stage = 0
    # Plain loops and comparisons: planners spend most of their time here.
    while stage < len(stages):
        waits, serve, known = stages[stage].after, servers[stage].serve, latest[stage]
        own_starts, own_ends = starts[stage], ends[stage]
        ready, index = released[stage], len(own_ends)
        begun, most = index, len(waits)
        while index < most:
            for count, others in zip(waits[index], latest, strict=False):
                if count >= len(others):
                    break
                if others[count] > ready:  # noqa: PLR1730  max() takes twice as long
                    ready = others[count]
            else:
                start, end = serve(index, ready)
                own_starts.append(start)
                own_ends.append(end)
                known.append(end if end > known[-1] else known[-1])
                released[stage] = ready
                index += 1
                if not stage:
                    continue
            break
        # What a later stage ended may let an earlier one go on.
        stage = 0 if stage and index > begun else stage + 1
    for item, row in zip(stages, ends, strict=True):
        if len(row) < len(item):
            raise ScheduleError(f"{item.name} {len(row)} waits for what never ends")
    return starts, ends


def bound(stages: Sequence[Stage], durations: Durations, carried: int = 0) -> float:
    """Return seconds that no sweep exceeds whose operations take no longer than ``durations``.

    It holds whatever the sweep before left in flight; with ``carried`` only if so many reads of the head
    are complete when the sweep begins.
    """
    # Reads for the next sweep delay nothing in this one: they come after all others.
    own = [Stage(stage.name, stage.after[: len(stage) - stage.ahead]) for stage in stages]
    first, *others = (*durations.stages[:-1], durations.kernels(stages))
    servers = [_Servers(first, durations.depth), *map(_Servers, others)]
    _, ends = _recur(own, servers, carried)
    return max((max(row) for row in ends if row), default=0.0)
