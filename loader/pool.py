"""A few threads that read for all models; they sleep until there is something to read.

Invariant: every job accepted is called back exactly once, also while the pool closes.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from loader.errors import ChecksumError, ClosedError, LoaderError
from loader.reader import Range, Reader

_log = logging.getLogger(__name__)

# More than the reads that all rings together can hold in flight; beyond it ``submit`` waits.
_QUEUE_LIMIT = 1024
_CLOSE_SECONDS = 30.0


@dataclass(frozen=True)
class ReadJob:
    """Read ``ranges``, which follow each other in the file, into ``target``; verify if asked to.

    ``done(error, seconds)`` is called on a pool thread: error None when the bytes are there.
    """

    reader: Reader
    ranges: tuple[Range, ...]
    target: memoryview
    verify: bool
    done: Callable[[LoaderError | None, float], None]

    def run(self) -> None:
        """Read and verify.

        Raises:
            ReadError: the bytes did not come; ChecksumError: they are not those written.
        """
        self.reader.read_into(self.ranges[0].offset, self.target)
        if not self.verify:
            return
        start = 0
        for part in self.ranges:
            data = self.target[start : start + part.length]
            if xxhash.xxh3_64_hexdigest(data) != part.checksum:
                raise ChecksumError(
                    f"weights.bin: bytes [{part.offset}, {part.offset + part.length}) are damaged: "
                    "their checksum is not the manifest's"
                )
            start += part.length


class ReadPool:
    """``threads`` readers over one queue, first come first served."""

    def __init__(self, threads: int = 2) -> None:
        self._queue: queue.Queue[ReadJob | None] = queue.Queue(_QUEUE_LIMIT)
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"reader-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: ReadJob) -> None:
        """Queue ``job``; its ``done`` is called once.

        Raises:
            ClosedError: the pool is closed.
        """
        with self._lock:  # no job may come behind those that end the threads
            if self._closed:
                raise ClosedError("read pool closed")
            self._queue.put(job)

    def close(self) -> None:
        """Finish the reads accepted, then end the threads; a read that never ends is left behind."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        give_up = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(give_up - time.monotonic(), 0.0))
            if thread.is_alive():
                _log.error("%s: its read has not ended; closing without it", thread.name)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            started = time.perf_counter()
            error: LoaderError | None = None
            try:
                job.run()
            except LoaderError as exc:
                error = exc
            except Exception as exc:  # noqa: BLE001  a fault of ours must not strand the sweep that waits
                error = LoaderError(f"read failed: {exc!r}")
            try:
                job.done(error, time.perf_counter() - started)
            except Exception:  # noqa: BLE001  a thread that ends would strand the jobs of all models
                _log.exception("a callback failed; the reader goes on")
            # A reference kept while waiting would keep the model's buffer alive.
            del job, error
