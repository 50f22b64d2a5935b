"""Passes whose reads a stream counts: the kernel thread compares two numbers at each launch.

The schedule of two stages is two counts: how many reads a launch waits for, and how many launches a read
waits for. The pool's threads follow the second by themselves (loader/native/reads.c). The kernel thread
calls them only where a read waits for the launch that has ended, and sleeps only where its own are missing.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from loader.pool.native import Stream
from pipeline.devices.base import Launch, nothing
from pipeline.execution import deadlines
from pipeline.execution.baton import FREE, ComputeClaim
from pipeline.execution.deadlines import check_limits
from pipeline.execution.errors import DeadlineError, DrainError
from pipeline.execution.statistics import SweepStatistics
from pipeline.schedule.schedule import Schedule, Stage
from pipeline.schedule.trace import Recorder, TraceEvent

#: A launch, the reads that it waits for, and how many of the pass have ended after it.
_Launch = tuple[Launch, int, int]
_ARRIVED, _LAUNCHED, _AWAITED = range(3)


class PassStream(NamedTuple):
    """``begin`` starts the reads of a pass, and returns how many of them the one before has started."""

    stream: Stream
    begin: Callable[[], int]


class StreamRunner:
    """Runs one pass after the other over ``stages`` of reads and kernels; launches end when they return."""

    def __init__(
        self,
        stages: Sequence[Stage],
        stream: PassStream,
        kernels: Sequence[Launch],
        source: str,
    ) -> None:
        self._stages = tuple(stages)
        self._stream, self._begin = stream
        self._kernels = kernels
        #: In columns: there may be thousands.
        self._launches = tuple(zip(*_fused(kernels, self._needs), strict=True))
        self._count = len(stages[0]) - stages[0].ahead
        self._source = source

    def run(
        self,
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
        claim: ComputeClaim = FREE,
    ) -> SweepStatistics:
        """Run one pass; arguments and errors are those of passes that a schedule counts.

        ``record`` is called afterwards: a call takes as long as a small kernel.
        """
        started = time.perf_counter()
        carried = self._begin()
        if record is None:
            launches = zip(*self._launches, strict=True)
            return self._run(launches, started, deadline, cancelled, claim)
        ends: list[float] = []
        separate = zip(self._kernels, self._needs, itertools.count(1))
        try:
            return self._run(separate, started, deadline, cancelled, claim, ends)
        finally:
            self._report(carried, started, ends, record)

    @property
    def _needs(self) -> Sequence[int]:
        """Return for each kernel how many reads it waits for."""
        return [after[0] for after in self._stages[1].after]

    def drain(self) -> None:
        """Wait until nothing is in flight.

        Raises:
            DrainError: a read never ended; its memory cannot be used again.
        """
        left = self._stream.drain(time.monotonic() + deadlines.DRAIN_SECONDS)
        if left:
            raise DrainError(
                f"{self._source}: {left} reads have not ended after {deadlines.DRAIN_SECONDS:.0f} s"
            )

    def _run(
        self,
        launches: Iterable[_Launch],
        started: float,
        deadline: float | None,
        cancelled: Callable[[], bool],
        claim: ComputeClaim,
        ends: list[float] | None = None,
    ) -> SweepStatistics:
        """Run ``launches``; ``ends`` gets the time at which each ended."""
        stream, stalled = self._stream, 0.0
        counts, read_seconds = stream.counts, stream.read_seconds
        try:
            for kernel, needed, completed in launches:
                check_limits(deadline, cancelled)
                if counts[_ARRIVED] < needed:
                    stalled += self._wait(needed, deadline, claim)
                claim.hold(deadline, cancelled)
                kernel()
                if ends is not None:
                    ends.append(time.perf_counter())
                counts[_LAUNCHED] = completed
                if completed >= counts[_AWAITED]:
                    stream.launched()
            if counts[_ARRIVED] < self._count:
                stalled += self._wait(self._count, deadline, claim)
        except BaseException:
            stream.stop()
            self.drain()
            raise
        finally:
            claim.give()
        took = time.perf_counter() - started - claim.waited_seconds
        return SweepStatistics(
            delay_seconds=took,
            kernel_seconds=took - stalled,
            stall_seconds=stalled,
            read_seconds=stream.read_seconds - read_seconds,
            copy_seconds=0.0,
            turn_seconds=claim.waited_seconds,
        )

    def _wait(self, needed: int, deadline: float | None, claim: ComputeClaim) -> float:
        """Wait for the first ``needed`` reads; return how many seconds that took.

        Raises:
            LoaderError: a read failed. DeadlineError: the deadline passed. DrainError: nothing came for as
                long as a disk may take.
        """
        claim.give()
        before = time.perf_counter()
        until = math.inf if deadline is None else deadline
        drained = time.monotonic() + deadlines.DRAIN_SECONDS
        if not self._stream.wait(needed, min(until, drained)):
            if until <= drained:
                raise DeadlineError(
                    f"{self._source}: the deadline passed while waiting for weights"
                )
            raise DrainError(f"{self._source}: no weights came in {deadlines.DRAIN_SECONDS:.0f} s")
        return time.perf_counter() - before

    def _report(
        self, carried: int, started: float, ends: Sequence[float], record: Recorder
    ) -> None:
        """Report what happened in the order in which it did, released as the schedule says."""
        schedule = Schedule(self._stages, carried)
        names = [stage.name for stage in self._stages]
        events = [(max(end, started), 0, index) for index, end in self._stream.ends()]
        events += [(end, 1, index) for index, end in enumerate(ends)]

        def release(seconds: float) -> None:
            for action in schedule.release():
                record(TraceEvent("release", names[action.stage], action.index, seconds))

        for index in range(carried):
            record(TraceEvent("release", names[0], index, 0.0))
        release(0.0)
        for end, stage, index in sorted(events):
            schedule.completed(stage, index)
            record(TraceEvent("complete", names[stage], index, end - started))
            release(end - started)


def _fused(kernels: Sequence[Launch], needs: Sequence[int]) -> Iterator[_Launch]:
    """Yield the kernels that do something, each with those behind it whose work it has done.

    One of these that waits for more reads ends when they are there: its place is used until then.
    """
    starts: list[int] = []
    max_need = 0
    for index, (kernel, need) in enumerate(zip(kernels, needs, strict=True)):
        if not index or kernel is not nothing or need > max_need:
            starts.append(index)
        max_need = max(max_need, need)
    for first, end in itertools.pairwise([*starts, len(kernels)]):
        yield kernels[first], needs[first], end
