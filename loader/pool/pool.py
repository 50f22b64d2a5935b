"""Reading for all models: the lock, the lines of clients, and who is told when a read has ended.

Invariant: every job accepted is called back exactly once, also while the pool closes; of a read that hangs,
once it ends. What comes next is decided by ``order`` and ``flights``, reading is done by ``threads``. All
of them sleep while there is nothing to read.
"""

import logging
import threading
import time

from loader.errors import ClosedError
from loader.pool.flights import Flights
from loader.pool.job import Outcome, ReadJob
from loader.pool.order import DEFAULT_DEPTH, Order, ReadClient
from loader.pool.statistics import ClientStatistics, PoolStatistics, ReadTally
from loader.pool.threads import ReaderThreads, ReadFlight

__all__ = ["PoolClient", "ReadJob", "ReadPool"]

_log = logging.getLogger(__name__)

PoolClient = ReadClient[ReadJob]

_CLOSE_SECONDS = 30.0
_HUNG_SECONDS = 10.0
# So many reads may hang before they hold up the models whose disk still answers.
_REPLACEMENTS = 8


class ReadPool:
    """At most ``depth`` reads at once for all models, beside those that hang.

    A read hangs after ``hung_seconds``: its client is stuck until it ends, the others go on.
    """

    def __init__(
        self,
        depth: int = 2,
        hung_seconds: float = _HUNG_SECONDS,
        close_seconds: float = _CLOSE_SECONDS,
    ) -> None:
        self._lock = threading.Lock()
        self._watched = threading.Condition(self._lock)  # something flies, or the pool is closed
        self._quiet = threading.Condition(self._lock)  # perhaps nothing flies
        self._order: Order[ReadJob] = Order()
        self._shared = self._order.register("shared", depth)
        self._flights = Flights(self._order, depth, hung_seconds, _REPLACEMENTS)
        self._hung_seconds = hung_seconds
        self._close_seconds = close_seconds
        self._closed = self._ended = self._watching = False
        self._wake_ups = 0
        self._total = ReadTally()
        self._tallies: dict[PoolClient, ReadTally] = {self._shared: ReadTally()}
        self._reads = ReaderThreads(depth, self._ended_read)
        self._watcher = threading.Thread(target=self._watch, name="reader-watch", daemon=True)
        self._watcher.start()

    def client(self, name: str, depth: int = DEFAULT_DEPTH) -> PoolClient:
        """Return a line of its own for one engine, with at most ``depth`` reads in flight."""
        with self._lock:
            client = self._order.register(name, depth)
            self._tallies[client] = ReadTally()
            return client

    def forget(self, client: PoolClient) -> None:
        """Remove a client whose reads have all ended.

        Raises:
            LoaderError: some have not.
        """
        with self._lock:
            self._order.forget(client)
            self._tallies.pop(client, None)

    def submit(self, job: ReadJob) -> None:
        """Put ``job`` at the end of its client's line; its ``done`` is called once. Does not wait.

        Raises:
            ClosedError: the pool is closed. LoaderError: the line is full.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("read pool closed")
            self._order.add(self._shared if job.client is None else job.client, job)
            self._launch()

    def hurry(self, client: PoolClient) -> None:
        """A kernel waits now for what the client has in line."""
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
        """Finish the reads accepted, then end the threads; reads that hang are left behind."""
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
        for job in refused:
            self._tell(job, Outcome(ClosedError("read pool closed"), 0.0, 0.0))
        self._watcher.join()
        self._reads.close(give_up)

    def _launch(self) -> None:
        """Start what may start; the lock is held."""
        launched = self._flights.launch(time.monotonic())
        for flight in launched:
            self._reads.start(flight)
        if launched and not self._watching:
            self._watching = True
            self._watched.notify()

    def _ended_read(self, flight: ReadFlight, outcome: Outcome) -> None:
        job = flight.request
        with self._lock:
            self._flights.land(flight)
            self._total.add(job.n_bytes, outcome)
            tally = self._tallies.get(flight.client)
            if tally is not None:
                tally.add(job.n_bytes, outcome)
            self._launch()
            if self._closed:
                self._quiet.notify()
        self._tell(job, outcome)

    def _tell(self, job: ReadJob, outcome: Outcome) -> None:
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
        with self._lock:
            pause: float | None = None
            while not self._ended:
                expiry = self._flights.expiry()
                left = pause if expiry is None else max(expiry - time.monotonic(), 0.0)
                self._watching = left is not None
                self._watched.wait(left)
                self._wake_ups += 1
                self._set_aside()
                # Woken for a read that has ended already, it must not be woken for the next one too.
                pause = self._hung_seconds if left is None else None

    def _set_aside(self) -> None:
        hung = self._flights.check(time.monotonic())
        for flight in hung:
            name, seconds = flight.client.name, time.monotonic() - flight.started
            _log.error("client %s: a read has not ended for %.0f s", name, seconds)
            if flight.replaced:
                self._reads.replace(flight)
        if hung:
            self._launch()
            self._quiet.notify()
