"""Sweeps for real: drives the schedule with reads, copies and bound kernels.

The thread that calls ``run`` is the kernel stage: it launches kernels in order, and sleeps when the next
one has no weights yet. The thread that completes an operation, a reader's or the copier's or this one,
asks the schedule what may start then and starts it; the kernel stage does so only where something waits for
its kernels, since a small one takes no longer than to ask. Nothing polls.

On an asynchronous device a launch only enqueues. Its end matters where something waits for it, a place in
the ring or the end of the sweep: only there the device is asked to report it (one event per release).
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence

from pipeline.devices.base import Done, Launch, nothing
from pipeline.execution import deadlines
from pipeline.execution.baton import FREE, ComputeClaim
from pipeline.execution.computing import ComputingSweeper, SweepState
from pipeline.execution.deadlines import check_limits, seconds_left
from pipeline.execution.errors import DeadlineError, DrainError
from pipeline.execution.reads import Reads
from pipeline.execution.statistics import SweepStatistics
from pipeline.execution.streaming import PassStream, StreamRunner
from pipeline.schedule.schedule import Action, Schedule, Stage, awaited
from pipeline.schedule.trace import Recorder

#: Starts operation ``index``; must call Done exactly once, from any thread.
Start = Callable[[int, Done], None]


class Sweeper:
    """Runs one sweep after the other. Between them only reads for the next sweep are in flight.

    ``starts[t]`` starts operations of stage t; the last stage is ``kernels``. ``hurry`` is called when
    the kernel stage begins to wait. ``finish``, of an asynchronous device, calls back when all kernels
    launched so far have ended; None: they have when their launch returns. ``source``: what is read, as
    errors name it.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        starts: Sequence[Start],
        kernels: Sequence[Launch],
        hurry: Callable[[], None] = lambda: None,
        finish: Callable[[Done], None] | None = None,
        source: str = "the disk",
    ) -> None:
        self._stages = tuple(stages)
        self._starts = starts
        self._kernels = kernels
        self._following = _following(kernels)
        self._hurry = hurry
        self._finish = finish
        self._source = source
        self._last = len(self._stages) - 1
        self._awaited = awaited(self._stages)
        self._lock = threading.RLock()
        self._landed = threading.Condition(self._lock)
        self._flying = 0
        ahead = self._stages[0].ahead
        self._reads = Reads(len(self._stages[0]) - ahead, ahead)
        self._state = SweepState(Schedule(self._stages), None)
        self._state.over = True

    def run(
        self,
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
        claim: ComputeClaim = FREE,
    ) -> SweepStatistics:
        """Run one sweep to its end; if it fails, nothing is in flight afterwards.

        Args:
            deadline: on time.monotonic's clock; checked between kernels and while waiting.
            cancelled: asked between kernels.
            record: receives every event of the schedule, from several threads but one at a time.
            claim: to compute, which others do while this sweep waits for weights.

        Raises:
            LoaderError: a read failed. DeviceError: a copy or kernel failed.
            CancelledError, DeadlineError: as asked. DrainError: an operation never ended.
        """
        state = self._begin(record)
        try:
            self._advance(state)
            while not state.schedule.finished:
                self._check(state, deadline, cancelled)
                end = self._wait_for_kernels(state, deadline, claim)
                if end is not None:
                    self._run_kernels(state, end, deadline, cancelled, claim)
            self._check_error(state)
        except BaseException:
            with self._lock:
                state.schedule.stop()
            self._finish_launched(state)
            self.drain()
            raise
        finally:
            claim.give()
            with self._lock:
                state.over = True
        return _without(claim, state.statistics())

    def drain(self) -> None:
        """Wait until nothing is in flight.

        Raises:
            DrainError: an operation never ended; its memory cannot be used again.
        """
        with self._landed:
            if not self._landed.wait_for(lambda: not self._flying, deadlines.DRAIN_SECONDS):
                raise DrainError(
                    f"{self._source}: {self._flying} reads have not ended "
                    f"after {deadlines.DRAIN_SECONDS:.0f} s"
                )

    def _begin(self, record: Recorder | None) -> SweepState:
        with self._lock:
            started = self._reads.begin()
            state = self._state = SweepState(Schedule(self._stages, len(started)), record)
            try:
                for index in range(len(started)):
                    state.note("release", 0, index)
                for index, read in enumerate(started):
                    if read == "done":
                        state.complete(0, index)
                    elif read == "failed":
                        state.waiting.append(Action(0, index))
            except Exception as exc:  # noqa: BLE001  raised once the reads in flight have ended
                state.fail(exc)
            return state

    def _advance(self, state: SweepState) -> None:
        """Start what may start. Operations start in the order of their release, whichever thread calls."""
        with self._lock:
            state.report_completed()
            kernels: int | None = None
            for action in state.schedule.release():
                if state.is_recorded:
                    state.note("release", action.stage, action.index)
                if action.stage == self._last:
                    kernels = action.index + 1
                else:
                    state.waiting.append(action)
            if kernels is not None:
                state.ready.put(kernels)
            if state.starting:
                return
            state.starting = True
            try:
                while state.waiting:
                    self._start(state, state.waiting.popleft())
            finally:
                state.starting = False

    def _start(self, state: SweepState, action: Action) -> None:
        stage = action.stage
        operation = action.index if stage else self._reads.start(action.index)
        self._flying += 1
        try:
            self._starts[stage](
                action.index, lambda error, seconds: self._ended(stage, operation, error, seconds)
            )
        except Exception as exc:  # noqa: BLE001  raised again by the thread that runs the sweep
            self._ended(stage, operation, exc, 0.0)

    def _ended(self, stage: int, operation: int, error: Exception | None, seconds: float) -> None:
        """Note the end of a read, numbered across passes, or of a copy of the pass that runs."""
        with self._lock:
            state = self._state
            try:
                index = operation
                if not stage:
                    index = self._reads.end(operation, failed=error is not None)
                if error is None:
                    state.complete(stage, index)
                    state.service_seconds[stage] += seconds
                    self._advance(state)
                elif stage or not self._reads.is_ahead(index):
                    state.fail(error)
            except Exception as exc:  # noqa: BLE001  as above: this thread is a reader's
                state.fail(exc)
            finally:
                self._land()  # last: a thread that waits for this may use the memory and see the state

    def _land(self) -> None:
        """Note that an operation is over, with the lock held."""
        self._flying -= 1
        if not self._flying:
            self._landed.notify_all()

    def _wait_for_kernels(
        self, state: SweepState, deadline: float | None, claim: ComputeClaim
    ) -> int | None:
        """Return up to which kernel all may run; None where only an error waits."""
        with contextlib.suppress(queue.Empty):
            return state.ready.get_nowait()
        self._advance(state)
        claim.give()
        left = seconds_left(deadline)
        before = time.perf_counter()
        self._hurry()
        try:
            if left is None or left > deadlines.DRAIN_SECONDS:
                return self._awaited_weights(state)
            return state.ready.get(timeout=left)
        except queue.Empty:
            raise DeadlineError(
                f"{self._source}: the deadline passed while waiting for weights"
            ) from None
        finally:
            if self._finish is None:
                state.stall_seconds += time.perf_counter() - before

    def _awaited_weights(self, state: SweepState) -> int | None:
        """Return as ``_wait_for_kernels``, after a wait that no deadline ends.

        Raises:
            DrainError: nothing came for as long as a disk may take.
        """
        try:
            return state.ready.get(timeout=deadlines.DRAIN_SECONDS)
        except queue.Empty:
            raise DrainError(
                f"{self._source}: no weights came in {deadlines.DRAIN_SECONDS:.0f} s"
            ) from None

    def _run_kernels(
        self,
        state: SweepState,
        end: int,
        deadline: float | None,
        cancelled: Callable[[], bool],
        claim: ComputeClaim,
    ) -> None:
        """Run the kernels up to ``end``."""
        run = self._run_kernel if self._finish is None else self._launch_kernel
        began, waited = time.perf_counter(), claim.waited_seconds
        while state.launched < end:
            self._check(state, deadline, cancelled)
            claim.hold(deadline, cancelled)
            run(state, end)
        if self._finish is None:
            took = time.perf_counter() - began
            state.service_seconds[-1] += took - (claim.waited_seconds - waited)

    def _run_kernel(self, state: SweepState, end: int) -> None:
        """Run the next kernel, with those up to ``end`` that it has done the work of.

        Its end is reported with those of others, once something waits for it.
        """
        index = state.launched
        self._kernels[index]()
        done = index + 1 if state.is_recorded else min(self._following[index], end)
        state.launched = state.ended = done
        # Read without the lock: a thread that changes it meanwhile may have missed this kernel, and sees it
        # with the next one or before this thread waits.
        if state.ended >= state.schedule.turn or state.is_recorded:
            self._advance(state)

    def _launch_kernel(self, state: SweepState, _end: int) -> None:
        index = state.launched
        with self._lock:
            state.begin_kernel(index, time.perf_counter())
        self._kernels[index]()
        if index in self._awaited or state.is_recorded:
            self._finish_launched(state)

    def _finish_launched(self, state: SweepState) -> None:
        """Have the device report when the kernels launched so far have ended."""
        if self._finish is None or state.asked == state.launched:
            return
        last = state.asked = state.launched
        with self._lock:
            self._flying += 1
        try:
            self._finish(lambda error, seconds: self._finished(state, last - 1, error))
        except Exception as exc:  # noqa: BLE001  raised again by the thread that runs the sweep
            self._finished(state, last - 1, exc)

    def _finished(self, state: SweepState, index: int, error: Exception | None) -> None:
        """Note that kernels up to ``index`` have ended; a sweep does not end before that."""
        with self._lock:
            try:
                if error is not None:
                    state.fail(error)
                else:
                    state.end_kernels(index, time.perf_counter())
                    self._advance(state)
                    if state.schedule.finished:
                        state.ready.put(None)  # nothing else wakes the thread that runs the sweep
            except Exception as exc:  # noqa: BLE001  raised again by the thread that runs the sweep
                state.fail(exc)
            finally:
                self._land()

    def _check(
        self, state: SweepState, deadline: float | None, cancelled: Callable[[], bool]
    ) -> None:
        self._check_error(state)
        check_limits(deadline, cancelled)

    @staticmethod
    def _check_error(state: SweepState) -> None:
        if state.error is not None:
            raise state.error


def _following(kernels: Sequence[Launch]) -> list[int]:
    """Return of each kernel which comes next that does something."""
    following: list[int] = []
    after = len(kernels)
    for index in range(len(kernels) - 1, -1, -1):
        following.append(after)
        if kernels[index] is not nothing:
            after = index
    return following[::-1]


def _without(claim: ComputeClaim, statistics: SweepStatistics) -> SweepStatistics:
    """Return what a sweep took without the time in which others computed."""
    waited = claim.waited_seconds
    if not waited:
        return statistics
    left = statistics.delay_seconds - waited
    return statistics._replace(delay_seconds=left, turn_seconds=waited)


def sweeper_for(
    stages: Sequence[Stage],
    starts: Sequence[Start],
    kernels: Sequence[Launch],
    hurry: Callable[[], None] = lambda: None,
    finish: Callable[[Done], None] | None = None,
    source: str = "the disk",
    *,
    stream: PassStream | None = None,
) -> Sweeper | ComputingSweeper | StreamRunner:
    """Return what runs sweeps of ``stages``; arguments are those of Sweeper.

    ``stream``: counts the reads, if it is there, instead of the schedule.
    """
    if finish is None and not any(map(len, stages[:-1])):
        return ComputingSweeper(stages, kernels)
    if stream is not None:
        return StreamRunner(stages, stream, kernels, source)
    return Sweeper(stages, starts, kernels, hurry, finish, source)
