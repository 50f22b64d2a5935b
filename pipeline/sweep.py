"""One sweep for real: drives the schedule with a read pool and bound kernels.

The thread that calls ``run`` is the kernel stage: it launches kernels in order, and sleeps on the queue
of completions when the next kernel has no weights yet. Nothing polls.
"""

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence

from loader.errors import LoaderError
from pipeline.devices.base import Launch
from pipeline.errors import CancelledError, DeadlineError, DrainError
from pipeline.schedule import Schedule
from pipeline.statistics import SweepStatistics
from pipeline.validator import TraceEvent

READ, KERNEL = 0, 1

#: Reports the end of a read: index, error or None, seconds.
ReadDone = Callable[[int, LoaderError | None, float], None]
#: Starts read ``index``; must call the ReadDone exactly once, from any thread.
StartRead = Callable[[int, ReadDone], None]
Recorder = Callable[[TraceEvent], None]

# A disk that has not answered for this long will not: its buffers can never be reused safely.
DRAIN_SECONDS = 60.0


class Sweep:
    """Runs once. ``deadline`` is on time.monotonic's clock; ``cancelled`` is asked between kernels."""

    def __init__(
        self,
        schedule: Schedule,
        start_read: StartRead,
        kernels: Sequence[Launch],
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
    ) -> None:
        self._schedule = schedule
        self._start_read = start_read
        self._kernels = kernels
        self._deadline = deadline
        self._cancelled = cancelled
        self._record = record
        self._ended: queue.SimpleQueue[tuple[int, LoaderError | None, float]] = queue.SimpleQueue()
        self._ready: deque[int] = deque()
        self._reading = 0
        self._kernel_seconds = self._stall_seconds = self._read_seconds = 0.0

    def run(self, read_bytes: int, verified: bool) -> SweepStatistics:
        """Run to the end; whatever happens, no read is in flight afterwards.

        Raises:
            LoaderError: a read failed. KernelError: a kernel failed.
            CancelledError, DeadlineError: as asked. DrainError: a read never ended.
        """
        started = time.perf_counter()
        try:
            while not self._schedule.finished:
                self._release()
                if self._ready:
                    self._run_kernel(self._ready.popleft())
                else:
                    self._await_read()
        except BaseException:
            self._schedule.stop()
            self._drain()
            raise
        return SweepStatistics(
            delay_seconds=time.perf_counter() - started,
            kernel_seconds=self._kernel_seconds,
            stall_seconds=self._stall_seconds,
            read_seconds=self._read_seconds,
            read_bytes=read_bytes,
            verified=verified,
        )

    def _release(self) -> None:
        for action in self._schedule.release():
            self._note("release", action.stage, action.index)
            if action.stage == KERNEL:
                self._ready.append(action.index)
                continue
            self._reading += 1
            try:
                self._start_read(action.index, self._read_ended)
            except BaseException:
                self._reading -= 1
                raise

    def _read_ended(self, index: int, error: LoaderError | None, seconds: float) -> None:
        self._ended.put((index, error, seconds))

    def _run_kernel(self, index: int) -> None:
        self._check()
        before = time.perf_counter()
        self._kernels[index]()
        self._kernel_seconds += time.perf_counter() - before
        self._complete(KERNEL, index)
        while not self._ended.empty():
            self._finish_read(*self._ended.get())

    def _await_read(self) -> None:
        self._check()
        timeout = None if self._deadline is None else self._deadline - time.monotonic()
        before = time.perf_counter()
        try:
            ended = self._ended.get(timeout=timeout if timeout is None else max(timeout, 0.0))
        except queue.Empty:
            raise DeadlineError("the deadline passed while waiting for weights") from None
        self._stall_seconds += time.perf_counter() - before
        self._finish_read(*ended)

    def _finish_read(self, index: int, error: LoaderError | None, seconds: float) -> None:
        self._reading -= 1
        self._read_seconds += seconds
        if error is not None:
            raise error
        self._complete(READ, index)

    def _complete(self, stage: int, index: int) -> None:
        self._schedule.completed(stage, index)
        self._note("complete", stage, index)

    def _check(self) -> None:
        if self._cancelled():
            raise CancelledError("cancelled")
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise DeadlineError("the deadline passed")

    def _drain(self) -> None:
        """Wait for the reads in flight: the disk still writes to their buffers."""
        give_up = time.monotonic() + DRAIN_SECONDS
        while self._reading:
            try:
                self._ended.get(timeout=max(give_up - time.monotonic(), 0.0))
            except queue.Empty:
                raise DrainError(
                    f"{self._reading} reads have not ended after {DRAIN_SECONDS:.0f} s"
                ) from None
            self._reading -= 1

    def _note(self, what: str, stage: int, index: int) -> None:
        if self._record is not None:
            name = self._schedule.stages[stage].name
            self._record(TraceEvent(what, name, index))  # type: ignore[arg-type]
