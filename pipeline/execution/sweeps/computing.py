"""Sweeps in which nothing is read or copied: kernels one after the other, as any schedule comes to then."""

import time
from collections.abc import Callable, Sequence

from pipeline.devices.base import Launch, nothing
from pipeline.execution.errors import CancelledError, DeadlineError
from pipeline.execution.interleaving.baton import ComputeClaim
from pipeline.execution.statistics import SweepStatistics
from pipeline.schedule.schedule import Schedule, Stage
from pipeline.schedule.trace import Recorder, TraceEvent


class ComputingSweeper:
    """Runs ``kernels``, the last of ``stages``; all before have no operations."""

    def __init__(self, stages: Sequence[Stage], kernels: Sequence[Launch]) -> None:
        self._stages = tuple(stages)
        self._kernels = kernels
        self._launched = [kernel for kernel in kernels if kernel is not nothing]

    def run(
        self,
        deadline: float | None,
        cancelled: Callable[[], bool],
        claim: ComputeClaim,
        record: Recorder | None,
    ) -> SweepStatistics:
        """Run one sweep; arguments and what is raised are those of ``Sweeper.run``.

        ``record`` is told afterwards: to tell takes as long as a small kernel.
        """
        if record is None:
            return self._run(self._launched, deadline, cancelled, claim)
        ends: list[float] = []
        try:
            return self._run(self._kernels, deadline, cancelled, claim, ends.append)
        finally:
            self._tell(ends, record)

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


def check_limits(deadline: float | None, cancelled: Callable[[], bool]) -> None:
    """Raise what a sweep ends with where it was cancelled, or its deadline has passed.

    Raises:
        CancelledError, DeadlineError: so it is.
    """
    if cancelled():
        raise CancelledError("cancelled")
    if deadline is not None and time.monotonic() > deadline:
        raise DeadlineError("the deadline passed")
