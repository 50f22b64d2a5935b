"""Sweeps in which nothing is read or copied: kernels one after the other, as in any schedule then.

They go around the schedule, which takes 1.5 us a kernel where this takes 0.1: of 300 small ones, 0.4 ms.
"""

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence

from pipeline.devices.base import Launch, nothing
from pipeline.execution.baton import FREE, ComputeClaim
from pipeline.execution.deadlines import check_limits
from pipeline.execution.statistics import SweepStatistics
from pipeline.schedule.schedule import Action, Schedule, Stage
from pipeline.schedule.trace import Recorder, TraceEvent

# The state of one sweep while it runs: its schedule, what waits, and when its kernels were busy.


class SweepState:
    """The state of one sweep. Changed under the sweeper's lock, but for the kernel thread's figures."""

    def __init__(self, schedule: Schedule, record: Recorder | None) -> None:
        self.schedule = schedule
        self.waiting: deque[Action] = deque()
        self.starting = False
        #: Kernels up to which may run; None: there is other news.
        self.ready: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.over = False
        self.service_seconds = [0.0] * len(schedule.stages)
        self.stall_seconds = 0.0
        self.launched = 0  # kernels
        self.asked = 0  # of those, until which the device was asked to report their end
        #: Kernels that have ended. Of a synchronous device the kernel thread counts, without the lock.
        self.ended = 0
        self._told = 0  # of those, the schedule
        self._record = record
        self._began = self._since = time.perf_counter()

    @property
    def is_recorded(self) -> bool:
        return self._record is not None

    def begin_kernel(self, index: int, now: float) -> None:
        """Note an asynchronous launch; where no kernel was running, the stage stalled until now."""
        if self.ended == self.launched:
            self.stall_seconds += now - self._since
            self._since = now
        self.launched = index + 1

    def end_kernels(self, last: int, now: float) -> None:
        """Note the end of asynchronous kernels up to ``last``."""
        self.ended = last + 1
        self.report_completed()
        if self.ended == self.launched:
            self.service_seconds[-1] += now - self._since
            self._since = now

    def report_completed(self) -> None:
        """Report to the schedule the kernels that have ended."""
        stage, first, ended = len(self.schedule.stages) - 1, self._told, self.ended
        if ended > first:
            self._told = ended
            self.schedule.completed_up_to(stage, ended)
        if self._record is not None:
            for index in range(first, ended):
                self.note("complete", stage, index)

    def complete(self, stage: int, index: int) -> None:
        self.schedule.completed(stage, index)
        if self._record is not None:
            self.note("complete", stage, index)

    def fail(self, error: BaseException) -> None:
        """Keep the first error, start nothing more, and wake the kernel thread."""
        self.error = self.error or error
        self.schedule.stop()
        self.waiting.clear()
        self.ready.put(None)

    def note(self, what: str, stage: int, index: int) -> None:
        if self._record is not None and not self.over:
            name = self.schedule.stages[stage].name
            at = time.perf_counter() - self._began
            self._record(TraceEvent(what, name, index, at))  # type: ignore[arg-type]

    def statistics(self) -> SweepStatistics:
        return SweepStatistics(
            delay_seconds=time.perf_counter() - self._began,
            kernel_seconds=self.service_seconds[-1],
            stall_seconds=self.stall_seconds,
            read_seconds=self.service_seconds[0],
            copy_seconds=self.service_seconds[1] if len(self.service_seconds) == 3 else 0.0,
        )


# The sweep itself.


class ComputingSweeper:
    """Runs ``kernels``, the last of ``stages``; all before have no operations."""

    def __init__(self, stages: Sequence[Stage], kernels: Sequence[Launch]) -> None:
        self._stages = tuple(stages)
        self._kernels = kernels
        self._launched = [kernel for kernel in kernels if kernel is not nothing]

    def run(
        self,
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
        claim: ComputeClaim = FREE,
    ) -> SweepStatistics:
        """Run one sweep; arguments and what is raised are those of ``Sweeper.run``.

        ``record`` is called afterwards: a call takes as long as a small kernel.
        """
        if record is None:
            return self._run(self._launched, deadline, cancelled, claim)
        ends: list[float] = []
        try:
            return self._run(self._kernels, deadline, cancelled, claim, ends.append)
        finally:
            self._tell(ends, record)

    def drain(self) -> None:
        """Do nothing: between sweeps nothing is in flight."""

    def _run(
        self,
        kernels: Sequence[Launch],
        deadline: float | None,
        cancelled: Callable[[], bool],
        claim: ComputeClaim,
        ended: Callable[[float], None] | None = None,
    ) -> SweepStatistics:
        """Run ``kernels``; ``ended`` gets the seconds at which each did, without those that others took."""
        began = time.perf_counter()
        try:
            for kernel in kernels:
                check_limits(deadline, cancelled)
                claim.hold(deadline, cancelled)
                kernel()
                if ended is not None:
                    ended(time.perf_counter() - began - claim.waited_seconds)
        finally:
            claim.give()
        took = time.perf_counter() - began - claim.waited_seconds
        return SweepStatistics(took, took, 0.0, 0.0, 0.0, turn_seconds=claim.waited_seconds)

    def _tell(self, ends: Sequence[float], record: Recorder) -> None:
        schedule, stage, at = Schedule(self._stages), len(self._stages) - 1, 0.0
        name = self._stages[stage].name
        for index, end in enumerate(ends):
            for action in schedule.release():
                record(TraceEvent("release", name, action.index, at))
            schedule.completed(stage, index)
            record(TraceEvent("complete", name, index, end))
            at = end
