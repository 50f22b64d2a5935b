"""The schedule on a virtual clock: what a sweep would take, from how long its operations take.

Drives the same ``Schedule`` as the engine. Reads have ``depth`` servers, the copier and the kernels one
each; whatever is released waits in line for a server of its stage.
"""

import heapq
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipeline.schedule.schedule import Schedule, Stage
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import Durations, beside_tail


@dataclass(frozen=True)
class Simulated:
    """A sweep that did not happen. Seconds; ``events`` on the clock of the sweep, as the engine reports.

    ``stall_seconds``: the kernel stage waited. ``read_busy_seconds``: some read was in flight.
    """

    delay_seconds: float
    stall_seconds: float
    read_busy_seconds: float
    events: tuple[TraceEvent, ...]


def simulate(stages: Sequence[Stage], durations: Durations, carried: int = 0) -> Simulated:
    """Simulate one sweep whose first ``carried`` reads are complete when it begins.

    ``carried`` is 0 for a model's first request; ``stages[0].ahead`` for one after an idle moment.
    """
    machine = _Machine(stages, durations)
    return machine.sweep(carried, early=range(carried))


def simulate_back_to_back(stages: Sequence[Stage], durations: Durations) -> Simulated:
    """Simulate a sweep that begins at the end of another one, while its head may still be read."""
    machine = _Machine(stages, durations)
    first = machine.sweep()
    if not stages[0].ahead:
        return first
    return machine.sweep(stages[0].ahead, machine.hand_over(), beside_tail(stages))


class _Machine:
    """The servers, and the clock in seconds since the current sweep began."""

    def __init__(self, stages: Sequence[Stage], durations: Durations) -> None:
        self._stages = tuple(stages)
        self._durations = durations
        self._kernel = len(stages) - 1
        self._limits = [durations.depth, *[1] * (len(stages) - 1)]
        self._lines: list[deque[int]] = [deque() for _ in stages]
        self._working = [0] * len(stages)
        self._ends: list[tuple[float, int, int]] = []  # of all but kernels, whose speed changes
        self._running: int | None = None
        self._work = 0.0
        self._now = 0.0

    def sweep(
        self, carried: int = 0, flying: Collection[int] = (), early: Collection[int] = ()
    ) -> Simulated:
        """Run to the end. All ``carried`` reads but ``flying`` are complete; ``early``: Durations."""
        schedule = Schedule(self._stages, carried)
        kernels = self._durations.kernels(self._stages, early)
        self._seconds = (*self._durations.stages[:-1], kernels)
        self._events: list[TraceEvent] = []
        self._now = self._stalled = self._read_busy = 0.0
        for index in range(carried):
            self._note("release", 0, index)
        for index in range(carried):
            if index not in flying:
                self._complete(schedule, 0, index)
        self._release(schedule)
        while not schedule.finished:
            for stage, index in self._advance():
                self._complete(schedule, stage, index)
            self._release(schedule)
        return Simulated(self._now, self._stalled, self._read_busy, tuple(self._events))

    def hand_over(self) -> list[int]:
        """Begin the clock anew; return the next sweep's names of the reads that are in flight."""
        base = len(self._stages[0]) - self._stages[0].ahead
        self._ends = [(end - self._now, stage, index - base) for end, stage, index in self._ends]
        self._lines[0] = deque(index - base for index in self._lines[0])
        return [*(index for _, _, index in self._ends), *self._lines[0]]

    def _release(self, schedule: Schedule) -> None:
        for action in schedule.release():
            self._note("release", action.stage, action.index)
            self._lines[action.stage].append(action.index)
        for stage, line in enumerate(self._lines):
            while line and self._working[stage] < self._limits[stage]:
                self._start(stage, line.popleft())

    def _start(self, stage: int, index: int) -> None:
        self._working[stage] += 1
        seconds = self._seconds[stage][index]
        if stage == self._kernel:
            self._running, self._work = index, seconds
        else:
            heapq.heappush(self._ends, (self._now + seconds, stage, index))

    def _advance(self) -> list[tuple[int, int]]:
        """Move the clock to the next end; return what ends there."""
        factor = 1.0 + (self._durations.slowdown if self._working[0] and self._kernel else 0.0)
        kernel_end = float("inf") if self._running is None else self._now + self._work * factor
        now = min(kernel_end, self._ends[0][0] if self._ends else float("inf"))
        passed = now - self._now
        if self._running is None:
            self._stalled += passed
        if self._working[0] and self._kernel:
            self._read_busy += passed
        self._work -= passed / factor
        self._now = now
        ended = []
        if kernel_end == now and self._running is not None:
            ended.append((self._kernel, self._running))
            self._running = None
        while self._ends and self._ends[0][0] <= now:
            _, stage, index = heapq.heappop(self._ends)
            ended.append((stage, index))
        for stage, _ in ended:
            self._working[stage] -= 1
        return ended

    def _complete(self, schedule: Schedule, stage: int, index: int) -> None:
        schedule.completed(stage, index)
        self._note("complete", stage, index)

    def _note(self, what: str, stage: int, index: int) -> None:
        name = self._stages[stage].name
        self._events.append(TraceEvent(what, name, index, self._now))  # type: ignore[arg-type]
