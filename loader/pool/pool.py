"""Reading for all models: the lock, the lines of clients, and the calls when a read has ended.

Invariant: every job accepted is called back exactly once, also while the pool closes; of a read that hangs,
once it ends. ``ReadPool`` has the library in C do it (loader/pool/native.py), or ``PythonReads``, where
loader/pool/order.py decides what comes next, and ``_ReaderThreads`` read. All of them sleep while there is
nothing to read.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from loader.cores import hasten, spread
from loader.errors import ClosedError, LoaderError
from loader.native.library import NativeClient, ReaderLibrary, find_reader
from loader.pool.jobs import (
    ClientStatistics,
    PoolClient,
    PoolStatistics,
    ReadJob,
    ReadOutcome,
    ReadTally,
    perform,
)
from loader.pool.native import NativeReads, Stream, StreamRead
from loader.pool.order import DEFAULT_DEPTH, REPLACEMENTS, Flight, Flights, Order, ReadClient
from loader.readers.interface import Reader

# Reads by preadv on a few threads, which sleep until there is something to read.
#
# The thread that ends a read goes on with the next one that this lets start: to wake another thread, which
# needs the interpreter's lock while this one has it, takes as long as a small read.

_log = logging.getLogger(__name__)

#: What the start of a thread raises where the system gives none.
_NO_THREAD = (RuntimeError, MemoryError)

ReadFlight = Flight[ReadJob]
#: Called once when the read of a flight has ended, with what became of it; may start others.
Ended = Callable[[ReadFlight, ReadOutcome], None]


class _ReaderThreads:
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
        """Read ``flight`` as soon as a thread is free; there are as many as can be in flight.

        Where the system gives fewer threads, those that there are read one flight after the other.

        Raises:
            RuntimeError, MemoryError: it gives none at all.
        """
        try:
            while len(self._threads) < self._count:
                self._add()
        except _NO_THREAD:
            if not any(thread.is_alive() for thread in self._threads):
                raise
        if self._own.is_free:
            self._own.keep(flight)
        else:
            self._line.put(flight)

    def replace(self, flight: ReadFlight) -> None:
        """Add a thread in place of the one that ``flight`` holds, which ends with its read.

        Raises:
            RuntimeError, MemoryError: the system gives none.
        """
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
    """What a reader's thread has kept for itself: ``is_free`` while it calls back for an ended read."""

    is_free = False
    _kept: ReadFlight | None = None

    def keep(self, flight: ReadFlight) -> None:
        self.is_free = False
        self._kept = flight

    def following(self) -> ReadFlight | None:
        """Return what was kept, once."""
        kept, self._kept = self._kept, None
        return kept


# The pool: lines of clients, and the lock over all of them.

#: A job that is not read, and why.
_Refused = tuple[ReadJob, LoaderError]

_CLOSE_SECONDS = 30.0
_HUNG_SECONDS = 10.0


class PythonReads:
    """Lines and threads of a ``ReadPool`` in Python; arguments are those of it."""

    def __init__(self, depth: int, hung_seconds: float, close_seconds: float) -> None:
        self._lock = threading.Lock()
        self._watched = threading.Condition(self._lock)  # something flies, or the pool is closed
        self._quiet = threading.Condition(self._lock)  # perhaps nothing flies
        self._order: Order[ReadJob] = Order()
        self._shared = self._order.register("shared", depth)
        self._flights = Flights(self._order, depth, hung_seconds, REPLACEMENTS)
        self._hung_seconds = hung_seconds
        self._close_seconds = close_seconds
        self._closed = self._ended = self._watching = False
        self._wake_ups = 0
        self._total = ReadTally()
        self._tallies: dict[ReadClient[ReadJob], ReadTally] = {self._shared: ReadTally()}
        self._reads = _ReaderThreads(depth, self._ended_read)
        self._watcher = threading.Thread(target=self._watch, name="reader-watch", daemon=True)
        self._watcher.start()

    def client(self, name: str, depth: int) -> ReadClient[ReadJob]:
        with self._lock:
            client = self._order.register(name, depth)
            self._tallies[client] = ReadTally()
            return client

    def forget(self, client: ReadClient[ReadJob]) -> None:
        with self._lock:
            self._order.forget(client)
            self._tallies.pop(client, None)

    def submit(self, job: ReadJob) -> None:
        assert not isinstance(job.client, NativeClient)
        with self._lock:
            if self._closed:
                raise ClosedError("read pool closed")
            self._order.add(self._shared if job.client is None else job.client, job)
            refused = self._launch()  # from here on the job is accepted: errors go to its ``done``
        self._refuse(refused)

    def raise_priority(self, client: ReadClient[ReadJob]) -> None:
        with self._lock:
            self._order.hurry(client)

    def statistics(self) -> PoolStatistics:
        with self._lock:
            clients = tuple(
                ClientStatistics(
                    client.name,
                    self._tallies[client].figures(),
                    len(client.waiting),
                    client.in_flight,
                    client.stuck,
                )
                for client in self._order.clients
            )
            return PoolStatistics(
                kind=self._reads.kind,
                figures=self._total.figures(),
                clients=clients,
                in_flight=len(self._flights),
                hung=self._flights.hung,
                wake_ups=self._reads.wake_ups + self._wake_ups,
            )

    def close(self) -> None:
        give_up = time.monotonic() + self._close_seconds
        with self._lock:
            if self._closed:
                return
            self._closed = True
            while self._unfinished() and (left := give_up - time.monotonic()) > 0:
                self._quiet.wait(left)
            refused = self._order.clear()
            self._ended = True
            self._watched.notify()
        self._refuse((job, ClosedError("read pool closed")) for job in refused)
        self._watcher.join()
        self._reads.close(give_up)

    def _launch(self) -> list[_Refused]:
        """Start what may start, with the lock held; return the jobs to call back without it."""
        refused: list[_Refused] = []
        has_started = False
        while launched := self._flights.launch(time.monotonic()):
            for flight in launched:
                try:
                    self._reads.start(flight)
                    has_started = True
                except _NO_THREAD as exc:  # no thread reads: all in line would wait for ever
                    self._flights.land(flight)
                    refused.append((flight.request, LoaderError(f"no thread to read: {exc}")))
        if has_started and not self._watching:
            self._watching = True
            self._watched.notify()
        return refused

    def _ended_read(self, flight: ReadFlight, outcome: ReadOutcome) -> None:
        job = flight.request
        with self._lock:
            self._flights.land(flight)
            self._total.add(job.n_bytes, outcome)
            tally = self._tallies.get(flight.client)
            if tally is not None:
                tally.add(job.n_bytes, outcome)
            refused = self._launch()
            if self._closed:
                self._quiet.notify()
        self._tell(job, outcome)
        self._refuse(refused)

    def _refuse(self, refused: Iterable[_Refused]) -> None:
        """Call back for jobs that are not read."""
        for job, error in refused:
            self._tell(job, ReadOutcome(error, 0.0, 0.0))

    def _tell(self, job: ReadJob, outcome: ReadOutcome) -> None:
        try:
            job.done(outcome.error, outcome.seconds)
        except Exception:  # noqa: BLE001  a thread that ends would strand the jobs of all models
            _log.exception("a callback failed; the reader goes on")

    def _unfinished(self) -> bool:
        """Something flies that does not hang, or waits for a place that it will get."""
        waiting = any(client.waiting and not client.stuck for client in self._order.clients)
        return len(self._flights) > self._flights.hung or waiting

    def _watch(self) -> None:
        """Find reads that hang. Once nothing has flown for a while it sleeps without a limit."""
        pause: float | None = None
        while True:
            with self._lock:
                if self._ended:
                    return
                expiry = self._flights.expiry()
                left = pause if expiry is None else max(expiry - time.monotonic(), 0.0)
                self._watching = left is not None
                self._watched.wait(left)
                self._wake_ups += 1
                refused = self._set_aside()
            self._refuse(refused)
            # Woken for a read that has ended already, it must not be woken for the next one too.
            pause = self._hung_seconds if left is None else None

    def _set_aside(self) -> list[_Refused]:
        """Note reads that hang, with the lock held; return as ``_launch``."""
        hung = self._flights.check(time.monotonic())
        for flight in hung:
            name, seconds = flight.client.name, time.monotonic() - flight.started
            _log.error("client %s: a read has not ended for %.0f s", name, seconds)
            if flight.replaced:
                self._replace(flight)
        if not hung:
            return []
        self._quiet.notify()
        return self._launch()

    def _replace(self, flight: ReadFlight) -> None:
        """Replace the thread that ``flight`` blocks, if the system gives another one."""
        try:
            self._reads.replace(flight)
        except _NO_THREAD as exc:
            self._flights.cancel_replacement(flight)
            _log.error(
                "client %s: no thread replaces the one that hangs: %s", flight.client.name, exc
            )


# The pool, whichever reads.


class ReadPool:
    """At most ``depth`` reads at once for all models, beside those that hang.

    A read hangs after ``hung_seconds``: its client is stuck until it ends, the others go on.
    ``native``: by the library in C where there is one that can be used.
    """

    def __init__(
        self,
        depth: int = DEFAULT_DEPTH,
        hung_seconds: float = _HUNG_SECONDS,
        close_seconds: float = _CLOSE_SECONDS,
        *,
        native: bool = True,
    ) -> None:
        library = find_reader() if native else None
        self._reads: Any = (
            NativeReads(library, depth, hung_seconds, close_seconds)
            if isinstance(library, ReaderLibrary)
            else PythonReads(depth, hung_seconds, close_seconds)
        )

    def client(self, name: str, depth: int = DEFAULT_DEPTH) -> PoolClient:
        """Return a line of its own for one engine, with at most ``depth`` reads in flight."""
        client: PoolClient = self._reads.client(name, depth)
        return client

    def forget(self, client: PoolClient) -> None:
        """Remove a client whose reads have all ended.

        Raises:
            LoaderError: some have not.
        """
        self._reads.forget(client)

    def submit(self, job: ReadJob) -> None:
        """Put ``job`` at the end of its client's line; its ``done`` is called once. Does not wait.

        Raises:
            ClosedError: the pool is closed. LoaderError: the line is full.
        """
        self._reads.submit(job)

    def raise_priority(self, client: PoolClient) -> None:
        """A kernel waits now for what the client has in line."""
        self._reads.raise_priority(client)

    def stream(
        self, client: PoolClient, reader: Reader, reads: Sequence[StreamRead], count: int
    ) -> Stream | None:
        """Return the reads of a plan as one stream, which the library counts; None: without it.

        Arguments are those of ``Stream``; it goes with its client, which has one at most.
        """
        if not isinstance(client, NativeClient):
            return None
        stream: Stream = self._reads.stream(client, reader, reads, count)
        return stream

    def statistics(self) -> PoolStatistics:
        """Return what has been read, waits and is in flight."""
        statistics: PoolStatistics = self._reads.statistics()
        return statistics

    def close(self) -> None:
        """Finish the reads accepted, then end the threads; reads that hang are left behind."""
        self._reads.close()
