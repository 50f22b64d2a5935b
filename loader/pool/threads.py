"""Reads by preadv on a few threads, which sleep until there is something to read."""

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
#: Called when the read of a flight has ended: its place is free.
Landed = Callable[[ReadFlight], None]
#: Called after that, once, with what became of it.
Report = Callable[[ReadFlight, Outcome], None]


class ReaderThreads:
    """``count`` threads, started with the first read, that take flights first come first served."""

    kind = "preadv"

    def __init__(self, count: int, landed: Landed, report: Report) -> None:
        self.wake_ups = 0
        self._count = count
        self._cores = os.sched_getaffinity(0)
        self._landed = landed
        self._report = report
        self._line: queue.SimpleQueue[ReadFlight | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, flight: ReadFlight) -> None:
        """Read ``flight`` as soon as a thread is free; there are as many as can be in flight."""
        while len(self._threads) < self._count:
            self._add()
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
        while (flight := self._line.get()) is not None:
            with self._lock:
                self.wake_ups += 1
            outcome = perform(flight.request)
            self._landed(flight)
            self._report(flight, outcome)
            if flight.replaced:
                return
            # A reference kept while waiting would keep the model's buffer alive.
            del flight, outcome
