"""Reading for all models by the library in C: lines, and threads that stay in it while they read.

Python does the rest on the same threads: jobs, with their calls when they have ended, checksums, readers
that have no file, and what C could not read, once more, since a reader's error says what and where.

Invariant: as of the pool in Python. The pool's memory in C goes with the last thread that is in it.
"""

import ctypes
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from loader.cores import hasten, spread
from loader.errors import ClosedError, LoaderError
from loader.native.library import (
    ARRIVED,
    DONE,
    HAS_FAILED,
    IN_FLIGHT,
    IS_CLOSED,
    TIMED_OUT,
    ClientStruct,
    Counts,
    FiguresStruct,
    FlightStruct,
    JobStruct,
    NativeClient,
    ReaderLibrary,
    ReadStruct,
    SegmentStruct,
)
from loader.pool.jobs import (
    ClientStatistics,
    PoolStatistics,
    ReadFigures,
    ReadJob,
    ReadOutcome,
    perform,
)
from loader.pool.order import PATIENCE_BYTES, QUEUE_LIMIT, REPLACEMENTS
from loader.readers.interface import Range, Reader

_log = logging.getLogger(__name__)

#: A thread that waits in C sees signals, such as Ctrl-C, as often as this, in seconds.
_SIGNAL_SECONDS = 0.5
#: What the start of a thread raises where the system gives none.
_NO_THREAD = (RuntimeError, MemoryError)


class NativeReads:
    """Lines and threads of a ``ReadPool`` in C; arguments are those of it.

    ``address``: of the pool in C.
    """

    kind = "preadv"

    def __init__(
        self, library: ReaderLibrary, depth: int, hung_seconds: float, close_seconds: float
    ) -> None:
        self.library = library
        self._close_seconds = close_seconds
        self.address: int = library.pool_open(
            depth, hung_seconds, REPLACEMENTS, QUEUE_LIMIT, PATIENCE_BYTES
        )
        if not self.address:
            raise MemoryError("no memory for a read pool")
        weakref.finalize(self, library.pool_free, self.address).atexit = False
        self._lock = threading.Lock()
        self._depth = depth
        self._cores = os.sched_getaffinity(0)
        self._thread = _ThreadState()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._jobs: dict[int, ReadJob] = {}
        self._ids = iter(range(1 << 62))
        self._clients: dict[int, NativeClient] = {}
        self._streams: dict[int, Stream] = {}
        self._shared = self.client("shared", depth)
        self._watcher = threading.Thread(target=self._watch, name="reader-watch", daemon=True)
        self._watcher.start()

    def client(self, name: str, depth: int) -> NativeClient:
        if depth < 1:
            raise ValueError(f"client {name!r}: depth {depth}, but at least one read is in flight")
        address = self.library.pool_client(self.address, depth)
        if not address:
            raise MemoryError("no memory for a client of the read pool")
        client = self._clients[address] = NativeClient(name, address)
        return client

    def forget(self, client: NativeClient) -> None:
        if not client.address:
            return
        if self.library.pool_forget(self.address, client.address):
            struct = client.struct
            raise LoaderError(
                f"client {client.name!r}: {struct.waiting} reads wait and "
                f"{struct.in_flight} are in flight; it cannot go yet"
            )
        self._streams.pop(client.address, None)
        del self._clients[client.address]
        client.address = 0

    def submit(self, job: ReadJob) -> None:
        client = self._shared if job.client is None else job.client
        assert isinstance(client, NativeClient)
        if not client.address:
            raise LoaderError(f"client {client.name!r}: not registered with this pool")
        if self._closed:
            raise ClosedError("read pool closed")
        try:
            self.start_threads()
        except _NO_THREAD as exc:
            self._notify(job, ReadOutcome(LoaderError(f"no thread to read: {exc}"), 0.0, 0.0))
            return
        job_id = next(self._ids)
        self._jobs[job_id] = job
        deadline = math.inf if job.deadline is None else job.deadline
        struct = JobStruct(job_id, job.n_bytes, deadline, job.urgency)
        refused = self.library.pool_submit(
            self.address, client.address, ctypes.addressof(struct), self._thread.comes_back()
        )
        if refused:
            del self._jobs[job_id]
        if refused == 1:
            raise LoaderError(
                f"client {client.name!r}: {QUEUE_LIMIT} reads wait already; the line is full"
            )
        if refused:
            raise ClosedError("read pool closed")

    def raise_priority(self, client: NativeClient) -> None:
        if client.address:
            self.library.pool_hurry(self.address, client.address)

    def stream(
        self, client: NativeClient, reader: Reader, reads: Sequence["StreamRead"], count: int
    ) -> "Stream":
        stream = Stream(self, client, reader, reads, count)
        self._streams[client.address] = stream
        return stream

    def statistics(self) -> PoolStatistics:
        figures, counts = FiguresStruct(), Counts()
        self.library.pool_count(self.address, ctypes.addressof(figures), ctypes.addressof(counts))
        clients = []
        # A client may go meanwhile; its memory stays with the pool.
        for address, client in tuple(self._clients.items()):
            struct = ClientStruct.from_address(address)
            clients.append(
                ClientStatistics(
                    client.name,
                    _figures(struct.figures),
                    struct.waiting,
                    struct.in_flight,
                    struct.hung > 0,
                )
            )
        return PoolStatistics(self.kind, _figures(figures), tuple(clients), *counts)

    def close(self) -> None:
        give_up = time.monotonic() + self._close_seconds
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.library.pool_close(self.address, give_up)
        while (job_id := self.library.pool_take_back(self.address)) >= 0:
            closed = ClosedError("read pool closed")
            self._notify(self._jobs.pop(job_id), ReadOutcome(closed, 0.0, 0.0))
        self.library.pool_end(self.address)
        self._watcher.join()
        for thread in self._threads:
            thread.join(max(give_up - time.monotonic(), 0.0))
            if thread.is_alive():
                _log.error("%s: its read has not ended; closing without it", thread.name)

    def start_threads(self) -> None:
        """Have as many threads as can read at once, or as the system gives.

        Raises:
            RuntimeError, MemoryError: it gives none at all.
        """
        if len(self._threads) >= self._depth:
            return
        with self._lock:
            try:
                while len(self._threads) < self._depth and not self._closed:
                    self._add()
            except _NO_THREAD:
                if not any(thread.is_alive() for thread in self._threads):
                    raise

    def _add(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        flight = self.library.pool_thread(self.address)
        if not flight:
            raise MemoryError("no memory for a thread that reads")
        name = f"reader-{len(self._threads)}"
        thread = threading.Thread(target=self._work, args=(flight,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self, address: int) -> None:
        spread(self._cores)
        hasten()
        flight = FlightStruct.from_address(address)
        while self.library.pool_work(self.address, address):
            if flight.job >= 0:
                self._perform(address, self._jobs.pop(flight.job))
            else:
                outcome = self._streams[flight.client].perform(flight)
                self._finish(address, outcome)

    def _perform(self, address: int, job: ReadJob) -> None:
        outcome = perform(job)
        self._finish(address, outcome)
        with self._thread:
            self._notify(job, outcome)

    def _finish(self, address: int, outcome: ReadOutcome) -> None:
        failed = outcome.error is not None
        self.library.pool_ended(self.address, address, failed, outcome.cpu_seconds)

    def _notify(self, job: ReadJob, outcome: ReadOutcome) -> None:
        try:
            job.done(outcome.error, outcome.seconds)
        except Exception:  # noqa: BLE001  a thread that ends would strand the jobs of all models
            _log.exception("a callback failed; the reader goes on")

    def _watch(self) -> None:
        """Find reads that hang, and replace their threads."""
        while address := self.library.pool_watch(self.address):
            flight = FlightStruct.from_address(address)
            client = self._clients.get(flight.client)
            name = "gone" if client is None else client.name
            seconds = time.monotonic() - flight.started
            _log.error("client %s: a read has not ended for %.0f s", name, seconds)
            if not self.library.pool_may_replace(self.address):
                continue
            try:
                with self._lock:
                    self._add()
            except _NO_THREAD as exc:
                _log.error("client %s: no thread replaces the one that hangs: %s", name, exc)
            else:
                self.library.pool_replace(self.address, address)


def _figures(struct: FiguresStruct) -> ReadFigures:
    return ReadFigures(
        struct.n_bytes, struct.reads, struct.failures, struct.seconds, struct.cpu_seconds
    )


class _ThreadState(threading.local):
    """Whether this thread of the pool calls back for a job that has ended, and reads what that submits."""

    _is_free = False

    def __enter__(self) -> None:
        self._is_free = True

    def __exit__(self, *_: object) -> None:
        self._is_free = False

    def comes_back(self) -> bool:
        """Return whether this thread comes for the job that it submits; for one alone."""
        free, self._is_free = self._is_free, False
        return free


# The reads of one plan.


class StreamRead(NamedTuple):
    """``ranges`` of the file go to ``target``, one behind the other, when so many launches have ended."""

    ranges: tuple[Range, ...]
    target: memoryview
    free_after: int


class Stream:
    """The reads of a plan, pass after pass: ``count`` of each, and those behind them ahead for the next.

    They are numbered across passes, as those of a schedule in Python are, and may fail and be read again in
    the same way. One thread calls.
    """

    def __init__(
        self,
        pool: NativeReads,
        client: NativeClient,
        reader: Reader,
        reads: Sequence[StreamRead],
        count: int,
    ) -> None:
        self._pool = pool
        self._library, self._address = pool.library, pool.address
        self._client = client
        self._reader = reader
        self._reads = tuple(reads)
        self._count = count
        self._first = -count
        #: Of reads by their numbers.
        self._errors: dict[int, LoaderError] = {}
        rows, segments = _rows(self._reads)
        self._structs = rows, segments
        access = reader.access
        refused = self._library.stream_open(
            self._address,
            client.address,
            ctypes.addressof(rows),
            ctypes.addressof(segments),
            count,
            len(reads),
            -1 if access is None else access.descriptor,
            access is not None and access.drops_pages,
        )
        if refused:
            raise MemoryError("no memory for the reads of a plan")
        #: Of the pass that runs: reads that are done from the first on, launches that have ended, and how
        #: many of these the next read waits for.
        self.counts = _view(client.address, 3)
        self._states = (ctypes.c_ubyte * len(reads)).from_address(
            self._library.stream_states(client.address)
        )
        self._ends = (ctypes.c_double * len(reads)).from_address(
            self._library.stream_ends(client.address)
        )

    def begin(self, deadline: float | None, verify: bool) -> int:
        """Start the next pass; return how many of its reads the one before has started.

        Raises:
            LoaderError: there is no thread to read. ClosedError: the pool is closed.
        """
        try:
            self._pool.start_threads()
        except _NO_THREAD as exc:
            raise LoaderError(f"no thread to read: {exc}") from exc
        latest = math.inf if deadline is None else deadline
        started = int(
            self._library.stream_begin(self._address, self._client.address, latest, verify)
        )
        if started < 0:
            raise LoaderError("a pass starts while reads of the one before are in flight")
        self._first += self._count
        for read in [read for read in self._errors if read < self._first]:
            del self._errors[read]
        return started

    def launched(self) -> None:
        """Start reads: as many launches have ended as the next one waits for."""
        self._library.stream_launched(self._address)

    def wait(self, needed: int, until: float) -> bool:
        """Wait for the first ``needed`` reads; return whether they were done by ``until`` (time.monotonic).

        Raises:
            LoaderError: a read of this pass failed. ClosedError: the pool was closed.
        """
        result = TIMED_OUT
        for moment in _moments(until):
            result = self._library.stream_wait(self._address, self._client.address, needed, moment)
            if result != TIMED_OUT:
                break
        if result == HAS_FAILED:
            raise self._errors[self._client.struct.failed_read]
        if result == IS_CLOSED:
            raise ClosedError("read pool closed")
        return bool(result == ARRIVED)

    def stop(self) -> None:
        """Start no more reads of this pass."""
        self._library.stream_stop(self._address, self._client.address)

    def drain(self, until: float) -> int:
        """Wait until nothing is in flight or in line; return how many reads are at ``until``."""
        left = 0
        for moment in _moments(until):
            left = self._library.stream_settle(self._address, self._client.address, moment)
            if not left:
                break
        return left

    def in_flight(self) -> Iterator[int]:
        """Return which reads are in flight."""
        return (index for index, state in enumerate(self._states) if state == IN_FLIGHT)

    def ends(self) -> Iterator[tuple[int, float]]:
        """Return the reads that are done, and when each was, on time.monotonic's clock."""
        states = enumerate(self._states)
        return ((index, self._ends[index]) for index, state in states if state == DONE)

    @property
    def read_seconds(self) -> float:
        """Return what its reads took since it was opened, those at once each."""
        return float(self._client.struct.figures.seconds)

    def perform(self, flight: FlightStruct) -> ReadOutcome:
        """Read what ``flight`` says on a thread of the pool, through the reader."""
        read = self._reads[flight.index]
        outcome = perform(
            ReadJob(self._reader, read.ranges, read.target, bool(flight.verify), _ignore)
        )
        if outcome.error is not None:
            self._errors[flight.read] = outcome.error
        return outcome


def _ignore(_error: LoaderError | None, _seconds: float) -> None:
    """Do nothing: the stream counts for itself."""


def _moments(until: float) -> Iterator[float]:
    """Yield the ends of waits that follow each other until then; there is one at least."""
    while (moment := time.monotonic() + _SIGNAL_SECONDS) < until:
        yield moment
    yield until


def _view(address: int, count: int) -> "memoryview[int]":
    """Return ``count`` numbers of 64 bits at ``address``."""
    counts = (ctypes.c_int64 * count).from_address(address)
    return memoryview(counts).cast("B").cast("q")


def _rows(
    reads: Sequence[StreamRead],
) -> tuple["ctypes.Array[ReadStruct]", "ctypes.Array[SegmentStruct]"]:
    """Return ``reads`` as C has them, and their segments: ranges that follow each other are one."""
    rows: list[ReadStruct] = []
    segments: list[SegmentStruct] = []
    for read in reads:
        first, target = len(segments), np.frombuffer(read.target, np.uint8).ctypes.data
        for segment in read.ranges:
            last = segments[-1] if len(segments) > first else None
            if last is not None and last.offset + last.length == segment.offset:
                last.length += segment.length
            else:
                segments.append(SegmentStruct(segment.offset, segment.length, target))
            target += segment.length
        rows.append(ReadStruct(read.target.nbytes, read.free_after, first, len(segments)))
    return (ReadStruct * len(rows))(*rows), (SegmentStruct * len(segments))(*segments)
