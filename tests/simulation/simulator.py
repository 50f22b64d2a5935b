"""Threads as greenlets, of which one runs at a time, and time that passes only where all of them wait.

What happens is decided by choices: at each point where another thread could go on, and wherever several are
ready. The default choice is that the running thread goes on, and that of those ready the one that waited
longest does. ``Choices`` takes others, and notes them, so that a run can be repeated with all or with some.

Each seed draws a policy of its own. Random turns find what happens often. Priorities (PCT: Burckhardt et
al., "A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010) find what needs a
few preemptions at certain points: the ready thread of the highest priority runs, and at drawn points that
of the running one falls below all others. Pauses hold up one thread for a drawn time.
"""

import array
import hashlib
import heapq
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import greenlet

#: When a simulation begins, on its monotonic clock.
START = 1000.0
#: A choice at a point: the thread goes on, another one does, or it pauses for PAUSES[choice - _PAUSES].
_GOES_ON, _YIELDS, _PAUSES = range(3)
#: Seconds.
PAUSES = (1e-5, 1e-4, 1e-3, 1e-2, 0.1)
#: What other threads do after the end of the main one takes so long at most.
_LEFT_SECONDS = 5.0
#: A thread that runs so often in a row while others are ready loses its priority.
_FAIR = 500
#: So long the event loop may wait for a lock: no thread has one while it reads or computes.
_LOCK_SECONDS = 0.01


class DeadlockError(AssertionError):
    """All threads wait, and no time limit ends a wait."""


class BrokenError(AssertionError):
    """Something that must hold did not."""


class Choices:
    """Which of several threads goes on: drawn from ``seed``, or as noted in ``fixed``.

    ``fixed``: choices other than the default, by the index of the choice, from 0; those between two lines
    of a thread have numbers from -1 downwards. None: they are drawn.
    """

    def __init__(self, seed: int, fixed: Mapping[int, int] | None = None) -> None:
        rng = self._rng = random.Random(seed)
        self._fixed = fixed
        #: The choices that were not the default, by index.
        self.drawn: dict[int, int] = {}
        self._count = 0
        # Each run has a pace of its own: how likely another thread goes on at a point.
        self._switching = rng.choice((0.0, 0.02, 0.1, 0.3, 0.6))
        self._mixing = rng.choice((0.0, 0.2, 1.0))
        self._has_priorities = rng.random() < 0.4
        # How many points there are from one pause of a thread to the next, in the mean.
        self._pausing = 1 / rng.choice((math.inf, math.inf, 2000.0, 200.0))
        self._priorities: dict[str, float] = {}
        self._falls = self._drawn_falls() if self._has_priorities else set()
        self._last, self._repeated = "", 0
        # Lines from one choice between lines to the next, in the mean.
        self._line_gap = rng.choice((math.inf, 50.0, 500.0, 5000.0))
        self._line_fixed = sorted(-1 - index for index in fixed or () if index < 0)[::-1]
        self._lines = -1
        #: How many lines there are before the next choice between two of them.
        self.lines_left = 0.0
        self._next_line()

    def _drawn_falls(self) -> set[int]:
        """Return the numbers of choices at which the running thread loses its priority."""
        reach = self._rng.choice((300, 3000, 30000))
        return {self._rng.randrange(reach) for _ in range(self._rng.randint(1, 12))}

    def choose(self, thread: Any, ready: Sequence[Any]) -> int:
        """Choose what becomes of ``thread``, which runs; others may be ``ready``."""
        index = self._count
        self._count += 1
        if self._fixed is None:
            choice = self._drawn_at(index, thread, ready)
        else:
            choice = self._fixed.get(index, _GOES_ON)
        return self._noted(index, choice)

    def _drawn_at(self, index: int, thread: Any, ready: Sequence[Any]) -> int:
        rng = self._rng
        if self._pausing and rng.random() < self._pausing:
            return _PAUSES + rng.randrange(len(PAUSES))
        if not ready:
            return _GOES_ON
        if self._has_priorities:
            if index in self._falls or self._is_unfair(thread):
                self._lower(thread)
            mine = self._priority(thread)
            return int(any(self._priority(other) > mine for other in ready))
        return int(rng.random() < self._switching)

    def between_lines(self) -> int:
        """Choose as ``choose``, where ``lines_left`` is over."""
        index = -1 - self._lines
        rng = self._rng
        if self._fixed is not None:
            choice = self._fixed.get(index, _GOES_ON)
        elif rng.random() < 0.3:
            choice = _PAUSES + rng.randrange(len(PAUSES))
        else:
            choice = _YIELDS
        self._next_line()
        return self._noted(index, choice)

    def _next_line(self) -> None:
        if self._fixed is not None:
            next_line: float = self._line_fixed.pop() if self._line_fixed else math.inf
        elif self._line_gap == math.inf:
            next_line = math.inf
        else:
            next_line = self._lines + 1 + int(self._rng.expovariate(1 / self._line_gap))
        self.lines_left = next_line - self._lines - 1
        self._lines = int(next_line) if next_line < math.inf else 0

    def among(self, ready: Sequence[Any]) -> int:
        """Choose which of the ``ready`` threads goes on; they are in the order in which they became so."""
        if len(ready) == 1:
            return 0
        index = self._count
        self._count += 1
        if self._fixed is not None:
            choice = self._fixed.get(index, 0)
        elif self._has_priorities:
            choice = max(range(len(ready)), key=lambda index: self._priority(ready[index]))
        else:
            choice = self._rng.randrange(len(ready)) if self._rng.random() < self._mixing else 0
        return self._noted(index, min(choice, len(ready) - 1))

    def _noted(self, index: int, choice: int) -> int:
        if choice:
            self.drawn[index] = choice
        return choice

    def _priority(self, thread: Any) -> float:
        priority = self._priorities.get(thread.name)
        if priority is None:
            priority = self._priorities[thread.name] = self._rng.random()
        return priority

    def _lower(self, thread: Any) -> None:
        self._priorities[thread.name] = min(self._priorities.values(), default=0.0) - 1.0

    def _is_unfair(self, thread: Any) -> bool:
        self._repeated = self._repeated + 1 if thread.name == self._last else 0
        self._last = thread.name
        return self._repeated % _FAIR == _FAIR - 1


class Simulation:
    """One run. ``draws``: of durations and other values, apart from the choices of threads."""

    def __init__(self, seed: int, fixed: Mapping[int, int] | None = None) -> None:
        self.draws = random.Random(seed ^ 0x5EED)
        self.choices = Choices(seed, fixed)
        self.now = START
        self.current: Any = None
        self.threads: list[Any] = []
        self.ready: list[Any] = []
        #: Called before a thread goes on; an error of it ends the run.
        self.check: Callable[[], None] | None = None
        # Of all turns: when, of which thread, of what kind.
        self._times = array.array("d")
        self._names: list[str] = []
        self._kinds: list[str] = []
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
        self._choose(thread, self.choices.choose(thread, self.ready))

    def choose_at_line(self, choice: int) -> None:
        """Do what was chosen between two lines."""
        thread = self.current
        if thread is not None:
            self._note("line")
            self._choose(thread, choice)

    def _choose(self, thread: Any, choice: int) -> None:
        # One with a lock would hold up the loop, which has to be in time.
        if choice >= _PAUSES and thread.may_pause and not thread.locks:
            self.block(self.now + PAUSES[choice - _PAUSES], "pause")
        elif choice and self.ready:
            self.ready.append(thread)
            self._to_hub()

    def block(self, until: float | None, kind: str) -> bool:
        """Wait to be woken; return False where the time ``until`` came first.

        Raises:
            BrokenError: the event loop waited for a lock for long.
        """
        thread, started_at = self.current, self.now
        if thread is None:
            raise DeadlockError(f"the main thread waits for ever: {kind}")
        self._note(kind)
        thread.token += 1
        thread.is_late = thread.is_ready = False
        if until is not None:
            heapq.heappush(self._timers, (until, next(self._order), thread, thread.token))
        self._to_hub()
        if kind == "lock" and thread.name == "loop" and self.now - started_at > _LOCK_SECONDS:
            raise BrokenError(f"the event loop waited {self.now - started_at:.6f} s for a lock")
        return not thread.is_late

    def wake(self, thread: Any) -> None:
        """Make ``thread``, which is blocked, ready; one whose time is over has it already."""
        if not thread.is_ready:
            thread.token += 1
            thread.is_ready = True
            self.ready.append(thread)

    def sleep(self, seconds: float) -> None:
        """Let so much time pass for the thread that runs."""
        if self.current is not None:
            self.block(self.now + max(seconds, 0.0), "sleep")

    def run(self, main: Any) -> None:
        """Run ``main``, a thread that has not started, until it ends, and others a while longer.

        Errors of threads are raised.

        Raises:
            DeadlockError: all threads wait.
        """
        self._hub = greenlet.getcurrent()
        main.start()
        end = math.inf
        while self.threads and self.now < end:
            if main.is_over and end == math.inf:
                end = self.now + _LEFT_SECONDS
            thread = self._next()
            if self.check is not None:
                self.check()
            self.current = thread
            thread.greenlet.switch()
            self.current = None
            if thread.error is not None:
                raise thread.error

    def _next(self) -> Any:
        timers = self._timers
        while timers and (timers[0][0] <= self.now or not self.ready):
            when, _, thread, token = heapq.heappop(timers)
            if thread.token == token:
                thread.token += 1
                thread.is_late = thread.is_ready = True
                self.ready.append(thread)
                self.now = max(self.now, when)
        if not self.ready:
            names = ", ".join(thread.name for thread in self.threads)
            raise DeadlockError(f"all threads wait: {names}")
        return self.ready.pop(self.choices.among(self.ready))

    @property
    def switches(self) -> int:
        """At how many points another thread could go on."""
        return len(self._kinds)

    def trace(self) -> str:
        """Return a hash of all turns so far, in their order."""
        trace = hashlib.blake2b(self._times.tobytes(), digest_size=16)
        trace.update("\n".join((*self._names, *self._kinds)).encode())
        return trace.hexdigest()

    def _to_hub(self) -> None:
        assert self._hub is not None
        self._hub.switch()

    def _note(self, kind: str) -> None:
        self._times.append(self.now)
        self._names.append(self.current.name)
        self._kinds.append(kind)


_running: list[Simulation] = []
#: How many lines there are before the next choice between two of them.
_lines_left = math.inf


def simulation() -> Simulation:
    """Return the one that runs, or one in which nothing does, for what is made before."""
    return _running[-1] if _running else _NONE


def begin(run: Simulation) -> None:
    """Have ``simulation`` return ``run``."""
    global _lines_left  # noqa: PLW0603  each line of the service counts it down
    _running[:] = [run]
    _lines_left = run.choices.lines_left


_NONE = Simulation(0)


def between_lines() -> None:
    """Let another thread go on here, if that is chosen: what instrumented modules call between lines."""
    global _lines_left  # noqa: PLW0603
    _lines_left -= 1
    if _lines_left < 0:
        run = _running[0]
        choice = run.choices.between_lines()
        _lines_left = run.choices.lines_left
        run.choose_at_line(choice)
