"""A device whose kernels use memory of their own: every weight is copied there, by a thread of its own.

On a CPU this makes the three-stage architectures of seed 003 real; a GPU's copy engine takes its place.
"""

import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from loader.errors import LoaderError
from loader.priority import hasten, spread
from models.packs.pack import Pack
from models.packs.target import Target
from pipeline.devices.base import Device, Done, Kernel
from pipeline.devices.memory import Memory


@contextmanager
def copying(device: Device) -> Iterator[Device]:
    """Yield ``device`` with a copy stage: its own, or one that lasts as long as this."""
    if device.copies:
        yield device
        return
    staged = StagedDevice(device)
    try:
        yield staged
    finally:
        staged.close()


class StagedDevice(Device):
    """Computes as ``device`` does, on copies. The copy stage does one copy at a time, in order."""

    name = "staged"
    copies = True

    def __init__(self, device: Device) -> None:
        self._device = device
        self.threads = device.threads
        self.one_pass = device.one_pass
        self.gpu = device.gpu
        self._cores = os.sched_getaffinity(0)
        self._copies: queue.SimpleQueue[tuple[memoryview, memoryview, Done] | None] = (
            queue.SimpleQueue()  # bounded by the reads that rings hold
        )
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # engines of several models share the device

    @property
    def target(self) -> Target:
        return self._device.target

    @property
    def computes_on_caller(self) -> bool:
        return self._device.computes_on_caller

    def memory_info(self) -> tuple[int, int] | None:
        return self._device.memory_info()

    def fitted(self, pack: Pack) -> Pack:
        return self._device.fitted(pack)

    def load(self, graph: bytes) -> Kernel:
        return self._device.load(graph)

    def joins(self, graph: bytes) -> bool:
        return self._device.joins(graph)

    def join(self, graphs: Sequence[bytes]) -> Kernel:
        return self._device.join(graphs)

    def copy(self, source: memoryview, target: Memory, offset: int, done: Done) -> None:
        with self._lock:
            if self._thread is None:  # a device that copies nothing needs none
                self._thread = threading.Thread(target=self._work, name="copier", daemon=True)
                self._thread.start()
        self._copies.put((source, target.host(offset, source.nbytes), done))

    def close(self) -> None:
        """Finish the copies accepted and end the thread; a later copy would start another."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._copies.put(None)
            thread.join()

    def _work(self) -> None:
        spread(self._cores)
        hasten()
        while (job := self._copies.get()) is not None:
            source, target, done = job
            started = time.perf_counter()
            error: LoaderError | None = None
            try:
                # NumPy lets other threads run meanwhile; a memoryview does not.
                np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
            except ValueError as exc:
                error = LoaderError(f"copy failed: {exc}")
            done(error, time.perf_counter() - started)
            del job, source, target, done  # kept while waiting, they would keep a model's buffers
