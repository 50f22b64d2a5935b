"""One dispatcher over all models: the run queue's decisions, for threads and on a real clock.

Each model has a line (line.py) from which its thread takes batches. Models that compute with all cores
share a run queue and a compute lock; one on cores of its own has its own run queue, and needs no lock.

Invariant: a run queue is called only with the lock held, and after everything that may let a batch begin: a
request came or left, a batch ended, a thread is free, or a batch has waited long enough for more requests.
For the last there is no event, so ``_dispatch`` sets when the threads of that line look again.
"""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.execution.baton import FREE, Baton, ComputeClaim
from server.scheduling.agenda import Agenda
from server.scheduling.costs import Costs
from server.scheduling.line import Desk, Line
from server.scheduling.sweeps import Batching

C = TypeVar("C")


class Dispatcher:
    """Lines of all models. ``places``: batches that compute at once. Thread-safe.

    ``condition``: of a lock, whose waits end by ``clock``.
    """

    def __init__(
        self,
        places: int = 1,
        clock: Callable[[], float] = time.monotonic,
        condition: Callable[[threading.RLock], threading.Condition] = threading.Condition,
    ) -> None:
        self.costs = Costs()
        self.baton = Baton(places, clock, condition)
        self._lock = threading.RLock()
        self._clock, self._condition = clock, condition
        self._numbers = itertools.count()
        self._lines: dict[str, Line[Any]] = {}
        #: One for all lines that share the cores, and those of lines with cores of their own by their keys.
        self._agendas: dict[str, Agenda] = {}
        self._shared = self._desk("", places)

    def line(self, name: str, limit: int, threads: int = 1) -> Line[Any]:
        """Return the line of model ``name``, before which at most ``limit`` requests wait.

        ``threads`` take from it: one, which computes with all cores, or several on cores of their own.
        """
        with self._lock:
            # A model may come back while its last requests are still being answered.
            key = f"{name}#{next(self._numbers)}"
            desk = self._shared if threads == 1 else self._desk(key, threads - 1)
            self._lines[key] = Line(desk, name, key, limit, threads)
            return self._lines[key]

    def claim(self, threads: int, stalls: float) -> ComputeClaim:
        """Return the claim to compute of a batch that begins now, of a model with so many threads.

        ``stalls``: as Baton.claim.
        """
        return FREE if threads > 1 else self.baton.claim(stalls)

    def expect(self, key: str, predicted: float | None, bound: float | None) -> None:
        """Begin anew with what is known of batches of a model, in seconds."""
        with self._lock:
            self.costs.expect(key, predicted, bound)
            self._dispatch()

    def forget(self, key: str) -> None:
        """Drop a line that is closed, and from which no thread takes any more."""
        with self._lock:
            self._lines.pop(key, None)
            self._agendas.pop(key, None)
            self.costs.forget(key)

    def _desk(self, key: str, places: int) -> Desk:
        queue = Agenda(self.costs.sweep_seconds, self._batching, places, self._is_away)
        self._agendas[key] = queue
        return Desk(self._lock, self._clock, self.costs, queue, self._dispatch, self._condition)

    def _dispatch(self) -> None:
        """Hand out the batches that begin now, and set when threads look for those that wait for requests.

        Of all run queues, since a batch may end the turn with an arena for a line of another one.
        """
        now = self._clock()
        for queue in self._agendas.values():
            while (batch := queue.start(now, self._can_begin)) is not None:
                self._lines[batch.model].grant(batch)
            for model, ready in queue.waits(now).items():
                self._lines[model].check_at(ready)

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
