"""Reads through io_uring: one thread has all of them in flight and sleeps until one ends."""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

from loader.errors import LoaderError
from loader.pool.job import Outcome, attempt
from loader.pool.threads import Landed, ReaderThreads, ReadFlight, Report
from loader.pool.uring import Ring
from loader.priority import hasten
from loader.readers.filling import Filling

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Read:
    """A flight in the ring; ``filling`` is how far it has come, ``error`` why it goes no further."""

    flight: ReadFlight
    filling: Filling
    started: float
    error: LoaderError | None = None


class UringReads:
    """One thread that owns a ring; ``others`` read what has no file descriptor."""

    kind = "io_uring"

    def __init__(self, entries: int, landed: Landed, report: Report, others: ReaderThreads) -> None:
        self._landed = landed
        self._report = report
        self._others = others
        self._ring = Ring(entries)
        self._line: deque[ReadFlight] = deque()
        self._flying: dict[int, _Read] = {}
        self._number = 0
        self._wakes = 0
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="reader-uring", daemon=True)
        self._thread.start()

    @property
    def wake_ups(self) -> int:
        return self._wakes + self._others.wake_ups

    def start(self, flight: ReadFlight) -> None:
        """Read ``flight``: through the ring where its reader has a file descriptor."""
        if flight.request.reader.descriptor is None:
            self._others.start(flight)
            return
        self._line.append(flight)
        if threading.current_thread() is not self._thread:  # it looks at the line by itself
            self._ring.wake()

    def replace(self, flight: ReadFlight) -> None:
        """Add a thread where ``flight`` holds one; in the ring it holds none."""
        if flight.request.reader.descriptor is None:
            self._others.replace(flight)

    def close(self, give_up: float) -> None:
        """End the threads; at ``give_up`` (time.monotonic) one that still reads is left behind."""
        self._closing = True
        self._ring.wake()
        self._others.close(give_up)
        self._thread.join(max(give_up - time.monotonic(), 0.0))
        if self._thread.is_alive():
            _log.error("%s: a read has not ended; closing without it", self._thread.name)
        else:
            self._ring.close()

    def _work(self) -> None:
        hasten()
        cpu_seconds = 0.0
        while self._flying or self._line or not self._closing:
            self._ring.wait()
            self._wakes += 1
            before = time.thread_time()
            ended = self._reap()
            self._land(ended)
            self._submit()
            cpu_seconds += time.thread_time() - before
            if ended:  # the disk has its next reads: there is time to verify and call back
                self._answer(ended, cpu_seconds / len(ended))
                cpu_seconds = 0.0

    def _reap(self) -> list[_Read]:
        """Return the reads that are over; those that came short go on."""
        over: list[_Read] = []
        for number, count in self._ring.ended():
            read = self._flying.pop(number)
            try:
                if isinstance(count, OSError):
                    raise read.filling.failure(count) from count
                complete = read.filling.add(count)
            except LoaderError as exc:
                read.error, complete = exc, True
            if complete:
                over.append(read)
            else:
                self._prepare(read)
        return over

    def _land(self, ended: list[_Read]) -> None:
        """Give the places of ``ended`` back; what comes next joins the line."""
        for read in ended:
            self._landed(read.flight)

    def _submit(self) -> None:
        while self._line:
            flight = self._line.popleft()
            job = flight.request
            filling = Filling(job.reader.name, job.reader.alignment, job.offset, job.target)
            self._prepare(_Read(flight, filling, time.perf_counter()))
        try:
            self._ring.submit()
        except OSError as exc:  # they stay prepared, and go with the next
            _log.error("io_uring takes no reads: %s", exc)

    def _prepare(self, read: _Read) -> None:
        descriptor = read.flight.request.reader.descriptor
        if descriptor is None:  # closed by its owner meanwhile: the threads know the error
            self._others.start(read.flight)
            return
        self._number += 1
        self._flying[self._number] = read
        self._ring.read(self._number, descriptor, read.filling.rest, read.filling.position)

    def _answer(self, ended: list[_Read], cpu_seconds: float) -> None:
        """Verify and report; leave nothing in ``ended`` that would keep a model's buffer alive."""
        while ended:
            read = ended.pop(0)
            error = read.error or attempt(read.flight.request.check)
            seconds = time.perf_counter() - read.started
            self._report(read.flight, Outcome(error, seconds, cpu_seconds))
