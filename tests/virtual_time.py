"""Threads on a clock of their own: one runs at a time, and time passes only while all of them wait.

For what waits with a ``clock`` and conditions (``threading.Condition``) that it is made with. The test
drives: whatever it calls runs before any thread goes on, and ``run_to`` lets threads go on in an order that
it chooses, each until it waits again.
"""

import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

#: At one time.
_MAX_STEPS = 1000


class _Over(BaseException):
    """Ends a thread that still waits when the test is over."""


class _Wait:
    """Of one thread; ``ends_at``: infinity until it is notified, where it has no timeout."""

    def __init__(self, ends_at: float) -> None:
        self.ends_at = ends_at
        self.is_notified = False
        self.finished = threading.Semaphore(0)


class VirtualTime:
    """The clock. Call it for the time, in seconds; as a context it ends the threads that still wait.

    ``choose``: one of so many threads that may go on; default: the first that waited.
    """

    def __init__(self, choose: Callable[[int], int] = lambda count: 0) -> None:
        self.now = 0.0
        self._choose = choose
        self._waits: list[_Wait] = []
        self._all_wait = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._later: list[Callable[[], None]] = []
        self._is_over = False
        self._errors: list[Exception] = []

    def __call__(self) -> float:
        return self.now

    def condition(self, lock: threading.RLock) -> threading.Condition:
        """Return a condition of ``lock``, whose waits end by this clock."""
        return cast(threading.Condition, _Condition(self, lock))

    def start(self, work: Callable[[], None]) -> None:
        """Run ``work`` on a thread until it waits."""

        def run() -> None:
            try:
                work()
            except _Over:
                pass
            except Exception as exc:  # noqa: BLE001  raised where the test waits
                self._errors.append(exc)
            finally:
                self._all_wait.release()

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()
        self._until_all_wait()

    def start_later(self, work: Callable[[], None]) -> threading.Thread:
        """Have the next ``run_to`` start a thread for ``work``, where its caller holds a lock."""
        self._later.append(work)
        return threading.Thread()

    def sleep(self, seconds: float) -> None:
        """Let the thread that calls this wait so long."""
        self.wait(_Wait(self.now + seconds))

    def wait(self, wait: _Wait) -> None:
        """Let the thread that calls this wait until ``wait`` ends."""
        self._waits.append(wait)
        self._all_wait.release()
        wait.finished.acquire()
        if self._is_over:
            raise _Over

    def next_end(self) -> float:
        """Return when the next wait ends; infinity: none does before it is notified."""
        return min((wait.ends_at for wait in self._waits), default=math.inf)

    def run_to(self, until: float) -> None:
        """Let threads go on, and time pass, until nothing is left to do before or at ``until``."""
        steps = 0
        self._start_those()
        while (end := self.next_end()) <= until and end < math.inf:
            steps = 0 if end > self.now else steps + 1
            assert steps < _MAX_STEPS, "threads keep waking each other"
            self.now = max(self.now, end)
            due = [wait for wait in self._waits if wait.ends_at <= self.now]
            self._end(due[self._choose(len(due))])
            self._start_those()
        if until < math.inf:
            self.now = max(self.now, until)

    def _start_those(self) -> None:
        while self._later:
            self.start(self._later.pop(0))

    def _end(self, wait: _Wait) -> None:
        self._waits.remove(wait)
        wait.finished.release()
        self._until_all_wait()

    def _until_all_wait(self) -> None:
        assert self._all_wait.acquire(timeout=60.0), "a thread waits for something else"
        if self._errors:
            raise self._errors.pop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        while self._waits:
            self._waits.pop().finished.release()
        for thread in self._threads:
            thread.join()


class _Condition:
    """As threading.Condition; the lock is held once when a thread waits."""

    def __init__(self, time: VirtualTime, lock: threading.RLock) -> None:
        self._time, self._lock = time, lock
        self._waits: list[_Wait] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> None:
        if timeout is not None and timeout > threading.TIMEOUT_MAX:
            raise OverflowError("timeout value is too large")
        wait = _Wait(math.inf if timeout is None else self._time.now + timeout)
        self._waits.append(wait)
        self._lock.release()
        try:
            self._time.wait(wait)
        finally:
            self._lock.acquire()
            self._waits.remove(wait)

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        end = self._time.now + timeout
        while not predicate() and self._time.now < end:
            self.wait(end - self._time.now)
        return predicate()

    def notify(self, n: int | None = 1) -> None:
        # As the real one may, it notifies a thread whose time is over, and which has not gone on yet.
        for wait in [wait for wait in self._waits if not wait.is_notified][:n]:
            wait.ends_at, wait.is_notified = self._time.now, True

    def notify_all(self) -> None:
        self.notify(None)
