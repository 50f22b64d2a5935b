"""One read that a client asked for, what became of it, and the figures of all of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from loader.errors import ChecksumError, LoaderError
from loader.native.library import NativeClient
from loader.pool.order import ReadClient, Urgency
from loader.readers.interface import Range, Reader


@dataclass(slots=True, eq=False)  # frozen ones take four times as long to make
class ReadJob:
    """Read ``ranges`` one behind the other into ``target``; verify if asked to.

    Those that follow each other in the file come as one.

    A job is not changed after it was made.

    ``done(error, seconds)`` is called on a pool thread: error None when the bytes are there.
    ``client``: the client whose line of reads it joins (``ReadPool.client``); None: the line of all that
    have none of their own. ``deadline``: on time.monotonic's clock.
    """

    reader: Reader
    ranges: tuple[Range, ...]
    target: memoryview
    verify: bool
    done: Callable[[LoaderError | None, float], None]
    client: "PoolClient | None" = None
    urgency: Urgency = Urgency.NEEDED_LATER
    deadline: float | None = None

    @property
    def n_bytes(self) -> int:
        return self.target.nbytes

    def read(self) -> None:
        """Read them on the calling thread.

        Raises:
            ReadError, ClosedError: as the reader.
        """
        offset, start, end = self.ranges[0].offset, 0, 0
        for part in self.ranges:
            if part.offset != offset + end - start:
                self.reader.read_into(offset, self.target[start:end])
                offset, start = part.offset, end
            end += part.length
        self.reader.read_into(offset, self.target[start:] if start else self.target)

    def check(self) -> None:
        """Verify the bytes in ``target``, if asked to.

        Raises:
            ChecksumError: they are not those written.
        """
        if not self.verify:
            return
        start = 0
        for part in self.ranges:
            data = self.target[start : start + part.length]
            if xxhash.xxh3_64_hexdigest(data) != part.checksum:
                raise ChecksumError(
                    f"{self.reader.name}: bytes [{part.offset}, {part.offset + part.length}) "
                    "are damaged: their checksum is not the manifest's"
                )
            start += part.length


#: A line of reads, as the pool has it.
PoolClient = ReadClient[ReadJob] | NativeClient


class ReadOutcome(NamedTuple):
    """``seconds`` from start to verified bytes; ``cpu_seconds`` of reading alone, where they were run."""

    error: LoaderError | None
    seconds: float
    cpu_seconds: float


def perform(job: ReadJob) -> ReadOutcome:
    """Read and verify ``job`` on the calling thread; a fault of ours must not leave callers waiting."""
    started, cpu, cpu_seconds = time.perf_counter(), time.thread_time(), 0.0
    error: LoaderError | None = None
    try:
        try:
            job.read()
        finally:
            cpu_seconds = time.thread_time() - cpu
        job.check()
    except LoaderError as exc:
        error = exc
    except Exception as exc:  # noqa: BLE001
        error = LoaderError(f"read failed: {exc!r}")
    return ReadOutcome(error, time.perf_counter() - started, cpu_seconds)


# What reading took: figures of a pool and of each of its clients, since they began.


@dataclass(frozen=True)
class ReadFigures:
    """``n_bytes`` and times of the reads that ended well or not; of failed ones no bytes.

    ``seconds``: from a read's start to its verified bytes, added up, so several at once count each.
    ``cpu_seconds``: user and system time of reading, without checksums.
    """

    n_bytes: int = 0
    reads: int = 0
    failures: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def cpu_seconds_per_gb(self) -> float | None:
        """CPU seconds per 10^9 bytes; None before the first read."""
        return self.cpu_seconds / (self.n_bytes / 1e9) if self.n_bytes else None


@dataclass
class ReadTally:
    """Adds up the figures of reads; changed in place, since that costs less than a read should."""

    n_bytes: int = 0
    reads: int = 0
    failures: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, n_bytes: int, outcome: ReadOutcome) -> None:
        """Count one read of ``n_bytes``."""
        self.reads += 1
        if outcome.error is None:
            self.n_bytes += n_bytes
        else:
            self.failures += 1
        self.seconds += outcome.seconds
        self.cpu_seconds += outcome.cpu_seconds

    def figures(self) -> ReadFigures:
        return ReadFigures(self.n_bytes, self.reads, self.failures, self.seconds, self.cpu_seconds)


@dataclass(frozen=True)
class ClientStatistics:
    """``waiting`` in line and ``in_flight`` now; ``stuck``: a read has not ended for too long."""

    name: str
    figures: ReadFigures
    waiting: int
    in_flight: int
    stuck: bool


@dataclass(frozen=True)
class PoolStatistics:
    """``figures`` also of clients that have gone.

    ``kind``: how it reads, "preadv". ``hung``: reads that have not ended for too long. ``wake_ups``: how
    often a thread of the pool woke; an idle pool adds none.
    """

    kind: str
    figures: ReadFigures
    clients: tuple[ClientStatistics, ...]
    in_flight: int
    hung: int
    wake_ups: int
