"""Threads as greenlets, of which one runs at a time, and time that passes only where all of them wait.

What happens is decided by choices: at each point where another thread could go on, and wherever several are
ready. The default choice is that the running thread goes on, and that of those ready the one that waited
longest does. ``Choices`` takes others, and notes them, so that a run can be repeated with all or with some.

Policies: random turns find what happens often; a thread that is held up for long finds what priorities of
PCT find (Burckhardt et al., ASPLOS 2010: few preemptions at drawn points).
"""

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import greenlet

#: When a simulation begins, on its monotonic clock.
START = 1000.0


class DeadlockError(AssertionError):
    """All threads wait, and no time limit ends a wait."""


class Choices:
    """Which of several threads goes on: drawn from ``seed``, or as noted in ``fixed``.

    ``fixed``: choices other than the first option, by the number of the choice; None: they are drawn.
    """

    def __init__(self, seed: int, fixed: Mapping[int, int] | None = None) -> None:
        self._rng = random.Random(seed)
        self._fixed = fixed
        #: The choices that were not the first option, by number.
        self.drawn: dict[int, int] = {}
        self._count = 0
        # Each run has a pace of its own: how likely another thread goes on at a point.
        self._switching = self._rng.choice((0.02, 0.1, 0.3, 0.6))
        self._mixing = self._rng.choice((0.0, 0.2, 1.0))

    def preempt(self) -> bool:
        """Choose whether another thread goes on instead of the one that runs."""
        return self._chosen(lambda: int(self._rng.random() < self._switching)) == 1

    def among(self, count: int) -> int:
        """Choose which of ``count`` threads goes on; they are in the order in which they became ready."""
        if count == 1:
            return 0

        def draw() -> int:
            return self._rng.randrange(count) if self._rng.random() < self._mixing else 0

        return min(self._chosen(draw), count - 1)

    def _chosen(self, draw: Callable[[], int]) -> int:
        index = self._count
        self._count += 1
        choice = draw() if self._fixed is None else self._fixed.get(index, 0)
        if choice:
            self.drawn[index] = choice
        return choice


class Simulation:
    """One run. ``draws``: of durations and other values, apart from the choices of threads."""

    def __init__(self, seed: int, fixed: Mapping[int, int] | None = None) -> None:
        self.draws = random.Random(seed ^ 0x5EED)
        self.choices = Choices(seed, fixed)
        self.now = START
        self.current: Any = None
        self.threads: list[Any] = []
        self.ready: list[Any] = []
        self.switches: Counter[str] = Counter()
        #: Called before a thread goes on; an error of it ends the run.
        self.check: Callable[[], None] | None = None
        # Of all turns: when, of which thread, of what kind.
        self._trace = hashlib.blake2b(digest_size=16)
        self._hub: greenlet.greenlet | None = None
        self._timers: list[tuple[float, int, Any, int]] = []
        self._order = itertools.count()
        self._is_over = False

    def switch(self, kind: str) -> None:
        """Let another thread go on here, if that is chosen."""
        thread = self.current
        if thread is None:  # while modules are imported, before threads run
            return
        self._note(kind)
        if self.ready and self.choices.preempt():
            self.ready.append(thread)
            self._to_hub()

    def block(self, until: float | None, kind: str) -> bool:
        """Wait to be woken; return False where the time ``until`` came first."""
        thread = self.current
        if thread is None:
            raise DeadlockError(f"the main thread waits for ever: {kind}")
        self._note(kind)
        thread.token += 1
        thread.is_late = False
        if until is not None:
            heapq.heappush(self._timers, (until, next(self._order), thread, thread.token))
        self._to_hub()
        return not thread.is_late

    def wake(self, thread: Any) -> None:
        """Make ``thread``, which is blocked, ready."""
        thread.token += 1
        self.ready.append(thread)

    def sleep(self, seconds: float) -> None:
        """Let so much time pass for the thread that runs."""
        if self.current is not None:
            self.block(self.now + max(seconds, 0.0), "sleep")

    def run(self, main: Any) -> None:
        """Run ``main``, a thread that has not started, until it ends; errors of threads are raised.

        Raises:
            DeadlockError: all threads wait.
        """
        self._hub = greenlet.getcurrent()
        main.start()
        while not main.is_over:
            thread = self._next()
            if self.check is not None:
                self.check()
            self.current = thread
            thread.greenlet.switch()
            self.current = None
            if thread.error is not None:
                raise thread.error

    def _next(self) -> Any:
        if self.ready:
            return self.ready.pop(self.choices.among(len(self.ready)))
        while self._timers:
            when, _, thread, token = heapq.heappop(self._timers)
            if thread.token == token:
                thread.token += 1
                thread.is_late = True
                self.now = max(self.now, when)
                return thread
        names = ", ".join(thread.name for thread in self.threads)
        raise DeadlockError(f"all threads wait: {names}")

    def trace(self) -> str:
        """Return a hash of all turns so far, in their order."""
        return self._trace.hexdigest()

    def _to_hub(self) -> None:
        assert self._hub is not None
        self._hub.switch()

    def _note(self, kind: str) -> None:
        self.switches[kind] += 1
        self._trace.update(f"{self.now:.9f} {self.current.name} {kind}\n".encode())


_running: list[Simulation] = []


def simulation() -> Simulation:
    """Return the one that runs, or one in which nothing does, for what is made before."""
    return _running[-1] if _running else _NONE


def begin(run: Simulation) -> None:
    """Have ``simulation`` return ``run``."""
    _running[:] = [run]


_NONE = Simulation(0)
