"""The threads of all models: they run the batches and changes that lines hand out.

There are as many as ever ran something at once: two batches a slot of the run queue, a change of a plan,
and what is stuck. So many models take no more threads than a few. A thread that has ended a batch takes
what follows by itself; an idle one is woken only where none is on its way.

Invariant: while something waits to be run, or has to be checked later, a thread is on its way or sleeps
no longer than until then; if the system gives no more threads, that is the first one that is free again.
"""

import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from server.scheduling.line import Line

_log = logging.getLogger(__name__)

_INDICES = itertools.count()

#: Starts a thread that runs the function; the thread. Raises RuntimeError: the system gives none.
Start = Callable[[Callable[[], None]], threading.Thread]


def start_thread(work: Callable[[], None]) -> threading.Thread:
    """Run ``work`` on a thread for which the end of the process does not wait."""
    thread = threading.Thread(target=work, name=f"engine-{next(_INDICES)}", daemon=True)
    thread.start()
    return thread


class _Sleeper:
    """An idle thread, which sleeps until it is woken, or ``until``."""

    def __init__(self, condition: threading.Condition) -> None:
        self.condition = condition
        self.until = math.inf


class Threads:
    """Threads that run what is handed out, under ``lock``, whose waits end by ``clock``.

    ``check``: hands out what may begin by now; it is called when a moment has come at which to check again.
    """

    def __init__(
        self,
        lock: threading.RLock,
        clock: Callable[[], float],
        condition: Callable[[threading.RLock], threading.Condition],
        check: Callable[[], None],
        start: Start = start_thread,
    ) -> None:
        self._lock, self._clock, self._condition = lock, clock, condition
        self._check, self._start = check, start
        self._ready: deque[tuple[Line[Any], Any]] = deque()
        self._check_at = math.inf
        self._is_over = False
        #: Threads that run nothing: they sleep, or are on their way from their start or from what they ran.
        self._free = 0
        self._asleep: list[_Sleeper] = []
        self._threads: list[threading.Thread] = []
        #: How often a thread has woken.
        self.wake_ups = 0

    def __len__(self) -> int:
        """How much has been handed out that no thread has."""
        return len(self._ready)

    @property
    def count(self) -> int:
        """How many threads there are."""
        return len(self._threads)

    def begin(self) -> None:
        """Have at least one thread, so that whatever is handed out is run.

        Raises:
            RuntimeError: the system gives none.
        """
        if not self._threads:
            self._add()

    def hand_out(self, line: Line[Any], what: object) -> None:
        """Have a thread run ``what`` of ``line``; the lock is held."""
        self._ready.append((line, what))
        self._call()

    def check_at(self, moment: float) -> None:
        """Check again at ``moment``, and not before, unless something is handed out; the lock is held."""
        self._check_at = moment
        self._call()

    def _call(self) -> None:
        """Wake as many threads as are needed and not on their way, or start them."""
        needed = len(self._ready)
        while self._free - len(self._asleep) < needed and self._asleep:
            self._wake()
        watched = (
            min((sleeper.until for sleeper in self._asleep), default=math.inf) <= self._check_at
        )
        if not watched and self._free - len(self._asleep) <= needed:
            needed += 1
            if self._asleep:
                self._wake()
        while self._free < needed:
            try:
                self._add()
            except RuntimeError:
                return  # one that runs something now is free in a while

    def _wake(self) -> None:
        self._asleep.pop().condition.notify()  # the last one: its stack may still be in a cache

    def _add(self) -> None:
        self._free += 1
        try:
            self._threads.append(self._start(self._work))
        except RuntimeError:
            self._free -= 1
            raise

    def _work(self) -> None:
        me = _Sleeper(self._condition(self._lock))
        while (taken := self.take(me)) is not None:
            self.run(*taken)
            del taken  # else its memory would be kept while the thread sleeps

    def take(self, me: _Sleeper | None = None) -> tuple[Line[Any], Any] | None:
        """Wait for what is to be run, and return it with its line; None: these threads end."""
        with self._lock:
            while not self._ready:
                if self._is_over:
                    return None
                self._sleep(me or _Sleeper(self._condition(self._lock)))
            self._free -= 1
            taken = self._ready.popleft()
            self._call()  # another one keeps the time
            return taken

    def _sleep(self, me: _Sleeper) -> None:
        me.until = self._check_at
        self._asleep.append(me)
        if me.until == math.inf:
            me.condition.wait()
        else:
            left = max(me.until - self._clock(), 0.0)
            me.condition.wait(min(left, threading.TIMEOUT_MAX))
        self.wake_ups += 1
        if me in self._asleep:
            self._asleep.remove(me)
        self._check()

    def run(self, line: Line[Any], what: object) -> None:
        """Run ``what`` of ``line``; its error, which it should have handled, is logged."""
        try:
            line.run(what)
        except Exception:  # noqa: BLE001  the thread serves other models, too
            _log.exception("model %s: a thread failed", line.key)
        finally:
            with self._lock:
                self._free += 1
                line.returned()

    def close(self) -> None:
        """End the threads, of which none runs anything any more; blocks."""
        with self._lock:
            self._is_over = True
            while self._asleep:
                self._wake()
        for thread in self._threads:
            thread.join()
