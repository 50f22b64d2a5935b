"""What devices that compute in the host's memory share: a copy stage, which expands stored weights.

It is a thread of its own, which does one copy at a time, in order: on a CPU this makes the three-stage
architectures of seed 003 real; a GPU's copy engine takes its place.
"""

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Collection

import numpy as np

from loader.cores import hasten, spread
from loader.errors import LoaderError
from pipeline.devices.base import CachingDevice, Done, Expands
from pipeline.devices.memory import Memory

_log = logging.getLogger(__name__)

_Job = tuple[memoryview, memoryview, Expands | None, Done]


class HostDevice(CachingDevice):
    """Copies by a thread that the first copy starts."""

    def __init__(self) -> None:
        super().__init__()
        self._cores = os.sched_getaffinity(0)
        self._copier: _Copier | None = None
        self._lock = threading.Lock()  # engines of several models share the device

    def copy(
        self,
        source: memoryview,
        target: Memory,
        offset: int,
        done: Done,
        expansion: Expands | None = None,
    ) -> None:
        length = source.nbytes if expansion is None else expansion.target_bytes
        job = source, target.host(offset, length), expansion, done
        with self._lock:
            if self._copier is None:  # a device that copies nothing needs none
                self._copier = _Copier(self._cores)
                # Of a device that nobody closed: its thread ends with it.
                weakref.finalize(self, self._copier.copies.put, None)
            self._copier.copies.put(job)

    def close(self) -> None:
        """Finish the copies accepted and end the thread; a later copy would start another."""
        with self._lock:
            copier, self._copier = self._copier, None
        if copier is not None:
            copier.copies.put(None)
            copier.thread.join()


class _Copier:
    """A thread and its copies, which end with None; a later thread has a queue of its own."""

    def __init__(self, cores: Collection[int]) -> None:
        self.copies: queue.SimpleQueue[_Job | None] = (
            queue.SimpleQueue()  # bounded by the reads that rings hold
        )
        self.thread = threading.Thread(
            target=_work, args=(self.copies, cores), name="copier", daemon=True
        )
        self.thread.start()


def _work(copies: queue.SimpleQueue[_Job | None], cores: Collection[int]) -> None:
    """Copy until there is None."""
    spread(cores)
    hasten()
    while (job := copies.get()) is not None:
        source, target, expansion, done = job
        started = time.perf_counter()
        error: LoaderError | None = None
        try:
            if expansion is not None:
                expansion.run(source, target)
            else:
                # NumPy lets other threads run meanwhile; a memoryview does not.
                np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
        except Exception as exc:  # noqa: BLE001  the thread is everyone's; MemoryError has no text
            error = LoaderError(f"copy failed: {str(exc) or type(exc).__name__}")
        _tell(done, error, time.perf_counter() - started)
        # Kept while waiting, they would keep a model's buffers.
        del job, source, target, expansion, done


def _tell(done: Done, error: LoaderError | None, seconds: float) -> None:
    try:
        done(error, seconds)
    except Exception:  # noqa: BLE001  a thread that ends would strand the copies of all models
        _log.exception("a callback failed; the copier goes on")
