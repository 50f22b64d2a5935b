"""One read that somebody asked for, and what became of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from loader.errors import ChecksumError, LoaderError
from loader.pool.order import ReadClient, Urgency
from loader.readers.reader import Range, Reader


@dataclass(slots=True, eq=False)  # frozen ones take four times as long to make
class ReadJob:
    """Read ``ranges`` one behind the other into ``target``; verify if asked to.

    Those that follow each other in the file come as one.

    Nobody changes one that was made.

    ``done(error, seconds)`` is called on a pool thread: error None when the bytes are there.
    ``client``: whose line of reads it joins (``ReadPool.client``); None: the line that all share who have
    none of their own. ``deadline``: on time.monotonic's clock.
    """

    reader: Reader
    ranges: tuple[Range, ...]
    target: memoryview
    verify: bool
    done: Callable[[LoaderError | None, float], None]
    client: "ReadClient[ReadJob] | None" = None
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


class Outcome(NamedTuple):
    """``seconds`` from start to verified bytes; ``cpu_seconds`` of reading alone, where they were run."""

    error: LoaderError | None
    seconds: float
    cpu_seconds: float


def perform(job: ReadJob) -> Outcome:
    """Read and verify ``job`` on the calling thread; a fault of ours must not strand who waits."""
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
    return Outcome(error, time.perf_counter() - started, cpu_seconds)
