"""One dispatcher over all models: the run queue's decisions, for threads and on a real clock.

Each model has a line (line.py), from which batches go to the threads of all models (threads.py). Models
that compute with all cores share a run queue and a compute lock; one on cores of its own has its own run
queue, and needs no lock.

Invariant: a run queue is called only with the lock held, and after everything that may let a batch begin: a
request came or left, a batch ended, or a batch has waited long enough for more requests. For the last there
is no event, so ``_dispatch`` says when to check again.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.execution.baton import FREE, Baton, ComputeClaim
from server.scheduling.agenda import Agenda
from server.scheduling.costs import Costs
from server.scheduling.line import Desk, Line
from server.scheduling.sweeps import Batching, Sweep
from server.scheduling.threads import Start, Threads, start_thread

C = TypeVar("C")


class Dispatcher:
    """Lines of all models. ``places``: batches that compute at once. Thread-safe.

    ``condition``: of a lock, whose waits end by ``clock``. ``start``: starts a thread.
    """

    def __init__(
        self,
        places: int = 1,
        clock: Callable[[], float] = time.monotonic,
        condition: Callable[[threading.RLock], threading.Condition] = threading.Condition,
        start: Start = start_thread,
    ) -> None:
        self.costs = Costs()
        self.baton = Baton(places, clock, condition)
        self._lock = threading.RLock()
        self._clock, self._condition, self._start = clock, condition, start
        #: New ones with the first line, until the last one is forgotten.
        self.threads = self._new_threads()
        self._finished = condition(self._lock)
        self._numbers = itertools.count()
        self._lines: dict[str, Line[Any]] = {}
        #: One for all lines that share the cores, and those of lines with cores of their own by their keys.
        self._agendas: dict[str, Agenda] = {}
        self._shared = self._desk("", places)

    def _new_threads(self) -> Threads:
        return Threads(self._lock, self._clock, self._condition, self._dispatch, self._start)

    def line(
        self, name: str, limit: int, run: Callable[[Sweep | C], None], concurrency: int = 1
    ) -> Line[C]:
        """Return the line of model ``name``, before which at most ``limit`` requests wait.

        ``run``: as of Line. ``concurrency``: one batch at a time, which computes with all cores, or several
        on cores of their own.

        Raises:
            RuntimeError: the system gives no thread.
        """
        with self._lock:
            self.threads.begin()
            # A model may come back while its last requests are still being answered.
            key = f"{name}#{next(self._numbers)}"
            desk = self._shared if concurrency == 1 else self._desk(key, concurrency - 1)
            line: Line[C] = Line(desk, name, key, limit, concurrency, run)
            self._lines[key] = line
            return line

    def claim(self, concurrency: int, stalls: float) -> ComputeClaim:
        """Return the claim to compute of a batch that begins now; ``concurrency``: as of its line.

        ``stalls``: as Baton.claim.
        """
        return FREE if concurrency > 1 else self.baton.claim(stalls)

    def expect(self, key: str, predicted: float | None, bound: float | None) -> None:
        """Begin anew with what is known of batches of a model, in seconds."""
        with self._lock:
            self.costs.expect(key, predicted, bound)
            self._dispatch()

    def forget(self, key: str) -> None:
        """Drop a line that is over; with the last one the threads end. Blocks."""
        with self._lock:
            self._lines.pop(key, None)
            self._agendas.pop(key, None)
            self.costs.forget(key)
            if self._lines:
                return
            threads, self.threads = self.threads, self._new_threads()
        threads.close()

    def _desk(self, key: str, places: int) -> Desk:
        queue = Agenda(self.costs.sweep_seconds, self._batching, places, self._is_away)
        self._agendas[key] = queue
        return Desk(
            self._lock,
            self._clock,
            self.costs,
            queue,
            self._dispatch,
            self._hand_out,
            self._finished,
        )

    def _hand_out(self, line: Line[Any], what: object) -> None:
        self.threads.hand_out(line, what)

    def _dispatch(self) -> None:
        """Hand out the batches that begin now, and say when to check those that wait for requests.

        Of all run queues, since a batch may end the turn with an arena for a line of another one.
        """
        now, ready = self._clock(), math.inf
        for queue in self._agendas.values():
            while (batch := queue.start(now, self._can_begin)) is not None:
                self._lines[batch.model].grant(batch)
            ready = min(ready, *queue.waits(now).values(), math.inf)
        self.threads.check_at(ready)

    def _can_begin(self, key: str) -> bool:
        line = self._lines[key]
        if not line.can_begin:
            return False
        # A second model of those that share an arena would only wait for it.
        return not line.takes_turns or not any(
            each.takes_turns and each.runs for each in self._lines.values()
        )

    def _is_away(self, key: str) -> bool:
        return self._lines[key].changing

    def _batching(self, key: str) -> Batching:
        return self._lines[key].batching
