"""Reads by preadv on a few threads, which sleep until there is something to read.

Who ends a read goes on with the next one that this lets start: to wake another thread, which wants the
interpreter's lock while this one has it, takes as long as a small read.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from loader.pool.flights import Flight
from loader.pool.job import Outcome, ReadJob, perform
from loader.priority import hasten, spread

_log = logging.getLogger(__name__)

ReadFlight = Flight[ReadJob]
#: Called once when the read of a flight has ended, with what became of it; may start others.
Ended = Callable[[ReadFlight, Outcome], None]


class ReaderThreads:
    """``count`` threads, started with the first read, that take flights first come first served."""

    kind = "preadv"

    def __init__(self, count: int, ended: Ended) -> None:
        self.wake_ups = 0
        self._count = count
        self._cores = os.sched_getaffinity(0)
        self._ended = ended
        self._own = _Own()
        self._line: queue.SimpleQueue[ReadFlight | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, flight: ReadFlight) -> None:
        """Read ``flight`` as soon as a thread is free; there are as many as can be in flight."""
        while len(self._threads) < self._count:
            self._add()
        if self._own.is_free:
            self._own.keep(flight)
        else:
            self._line.put(flight)

    def replace(self, flight: ReadFlight) -> None:
        """Add a thread in place of the one that ``flight`` holds, which ends with its read."""
        self._add()

    def close(self, give_up: float) -> None:
        """End the threads; one that still reads at ``give_up`` (time.monotonic) is left behind."""
        for _ in self._threads:
            self._line.put(None)
        for thread in self._threads:
            thread.join(max(give_up - time.monotonic(), 0.0))
            if thread.is_alive():
                _log.error("%s: its read has not ended; closing without it", thread.name)

    def _add(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        name = f"reader-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self) -> None:
        spread(self._cores)
        hasten()
        own = self._own
        while (flight := own.following() or self._next()) is not None:
            outcome = perform(flight.request)
            own.is_free = True
            self._ended(flight, outcome)
            own.is_free = False
            if flight.replaced:
                self._leave(own.following())
                return
            # A reference kept while waiting would keep the model's buffer alive.
            del flight, outcome

    def _leave(self, kept: ReadFlight | None) -> None:
        """Leave to another thread what this one, which ends, would have read next."""
        if kept is not None:
            self._line.put(kept)

    def _next(self) -> ReadFlight | None:
        """Sleep until there is a flight, and return it; None: the threads end."""
        flight = self._line.get()
        if flight is not None:
            with self._lock:
                self.wake_ups += 1
        return flight


class _Own(threading.local):
    """What a reader's thread has kept for itself: ``is_free`` while it tells of a read that has ended."""

    is_free = False
    _kept: ReadFlight | None = None

    def keep(self, flight: ReadFlight) -> None:
        self.is_free = False
        self._kept = flight

    def following(self) -> ReadFlight | None:
        """Return what was kept, once."""
        kept, self._kept = self._kept, None
        return kept
