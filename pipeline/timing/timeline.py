"""When every operation of a sweep starts and ends, by recurrence; and bounds of its delay.

The schedule releases in a fixed order, so an operation starts when the last of what it waits for has
ended: a maximum over earlier ends and the free server of its stage. Reads have ``depth`` servers, copies
and kernels one each. Planners, predictions and the bound have their times from here; ``trace`` drives the
engine's own schedule through them.
"""

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.schedule.schedule import Schedule, ScheduleError, Stage
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import Durations, beside_tail

Interval = tuple[float, float]


class StageServer(Protocol):
    """What runs the operations of one stage, first come first served."""

    def serve(self, index: int, ready: float) -> Interval:
        """Return when operation ``index``, released at ``ready``, starts and ends."""
        ...


class _Fifo:
    """``depth`` servers for one line. ``busy``: times in which some of them work, in order."""

    def __init__(self, seconds: Sequence[float], depth: int = 1) -> None:
        self.busy: list[list[float]] = []
        self._seconds = seconds
        self._free = [0.0] * depth

    def serve(self, index: int, ready: float) -> Interval:
        free = self._free[0]
        start = ready if ready > free else free
        end = start + self._seconds[index]
        self.occupy(start, end)
        return start, end

    def occupy(self, start: float, end: float) -> None:
        """Note that the server that was free first works during [start, end)."""
        heapq.heapreplace(self._free, end)
        if self.busy and start <= self.busy[-1][1]:
            self.busy[-1][1] = max(self.busy[-1][1], end)
        else:
            self.busy.append([start, end])


class Slowed:
    """One server that advances at 1 / (1 + slowdown) of its speed while another stage is ``busy``."""

    def __init__(self, seconds: Sequence[float], busy: list[list[float]], slowdown: float) -> None:
        self._seconds = seconds
        self._busy = busy
        self._factor = 1.0 + slowdown
        self._free = 0.0
        self._passed = 0

    def serve(self, index: int, ready: float) -> Interval:
        start = ready if ready > self._free else self._free
        self._free = self._end(start, self._seconds[index])
        return start, self._free

    def _end(self, now: float, work: float) -> float:
        busy, factor = self._busy, self._factor
        while self._passed < len(busy):
            begin, end = busy[self._passed]
            if now < begin:
                if now + work <= begin:
                    return now + work
                work -= begin - now
                now = begin
            if now < end:
                if now + work * factor <= end:
                    return now + work * factor
                work -= (end - now) / factor
                now = end
            # Only the last interval can still grow, and from reads that start after this operation.
            if self._passed == len(busy) - 1:
                break
            self._passed += 1
        return now + work


@dataclass(frozen=True)
class Timeline:
    """``starts[t][i]`` and ``ends[t][i]``: seconds since the sweep began, of operation i of stage t.

    Negative for reads that ran before it.
    """

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
    return _sweep(stages, durations, [(0.0, 0.0)] * carried, range(carried))


def back_to_back(stages: Sequence[Stage], durations: Durations) -> Timeline:
    """Return the times of a sweep that begins when another one ends, its head perhaps in flight."""
    first = _sweep(stages, durations)
    ahead, end = stages[0].ahead, first.delay_seconds
    if not ahead:
        return first
    head = list(zip(first.starts[0][-ahead:], first.ends[0][-ahead:], strict=True))
    moved = [(start - end, stop - end) for start, stop in head]
    return _sweep(stages, durations, moved, beside_tail(stages))


def _sweep(
    stages: Sequence[Stage],
    durations: Durations,
    head: Sequence[Interval] = (),
    early: Collection[int] = (),
) -> Timeline:
    reads = _Fifo(durations.stages[0], durations.depth)
    for start, end in head:
        reads.occupy(start, end)
    between = [_Fifo(row) for row in durations.stages[1:-1]]
    seconds = durations.kernels(stages, early)
    kernels: StageServer = _Fifo(seconds)
    if durations.slowdown:
        kernels = Slowed(seconds, reads.busy, durations.slowdown)
    starts, ends = _recur(stages, [reads, *between, kernels], head)
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
    stages: Sequence[Stage], servers: Sequence[StageServer], head: Sequence[Interval] = ()
) -> tuple[tuple[list[float], ...], tuple[list[float], ...]]:
    """Return starts and ends of all operations, asking each stage's server in order.

    An operation of a later stage is asked for when all earlier stages have gone as far as they can without
    it: what starts before it ends is known then. ``head``: the first reads, which another sweep released.

    Raises:
        ScheduleError: the stages wait for each other.
    """
    starts: tuple[list[float], ...] = tuple([] for _ in stages)
    ends: tuple[list[float], ...] = tuple([] for _ in stages)
    # latest[t][n]: when the first n operations of stage t have all ended.
    latest: list[list[float]] = [[0.0] for _ in stages]
    released = [0.0] * len(stages)
    for start, end in head:
        starts[0].append(start)
        ends[0].append(end)
        latest[0].append(max(end, latest[0][-1]))
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
    are complete when the sweep begins. Kernels count as slowed down all the time.
    """
    factor = 1.0 + durations.slowdown
    kernels = durations.kernels(stages)
    rows = [*durations.stages[:-1], tuple(factor * seconds for seconds in kernels)]
    # Reads for the next sweep delay nothing in this one: they come after all others.
    own = [Stage(stage.name, stage.after[: len(stage) - stage.ahead]) for stage in stages]
    servers = [_Fifo(row) for row in rows]
    servers[0] = _Fifo(rows[0], durations.depth)
    _, ends = _recur(own, servers, [(0.0, 0.0)] * carried)
    return max((max(row) for row in ends if row), default=0.0)
