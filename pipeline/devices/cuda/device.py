"""The CUDA device: a copy stream, a kernel stream, and the memory that both use.

Kernels run in the order of their launches, so engines of several models share the streams. What no kernel
covers runs on the CPU between copies.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from models.packs.target import Target, cuda_target
from pipeline.devices.base import (
    Block,
    CachingDevice,
    Device,
    DeviceError,
    DeviceLostError,
    Done,
    Kernel,
    Launch,
    Tuning,
)
from pipeline.devices.cuda.driver import CudaMemoryError, Driver, Stretches
from pipeline.devices.cuda.kernel import CpuBetweenCopies, CudaKernel, CudaRows
from pipeline.devices.cuda.lowering import NotCoveredError, Shapes, is_sized, lower
from pipeline.devices.cuda.memory_kinds import DeviceMemory, ManagedMemory, PinnedMemory, stretches
from pipeline.devices.cuda.scope import ConvolutionSettings
from pipeline.devices.cuda.trials import fastest_algorithms, probe_kinds
from pipeline.devices.device_memory import Memory, Use, address
from pipeline.devices.expansion import Expansion
from pipeline.devices.names import Kind, Precision
from pipeline.program.prepare import Abilities
from pipeline.schedule.architectures import COPIED_AUTO, Architecture

# Callbacks at the ends of copies and kernels: a thread that sleeps in the driver, one for each stream.


@dataclass(frozen=True)
class _Wait:
    start: int
    end: int
    done: Done


class Waiter:
    """Enqueues work on ``stream`` and calls back when it has ended, in order.

    Events are used again. The queue is bounded by what the schedule has in flight.
    """

    def __init__(self, driver: Driver, stream: int, name: str) -> None:
        self._driver = driver
        self._stream = stream
        self._name = name
        self._free: list[int] = []
        self._waits: queue.SimpleQueue[_Wait | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def after(self, enqueue: Callable[[], None], done: Done) -> None:
        """Run ``enqueue`` and call ``done`` when all that is in the stream by then has ended.

        ``done`` gets the seconds between the beginning and the end of what was enqueued.

        Raises:
            DeviceError: a call failed at once; ``done`` is not called.
        """
        with self._lock:  # events are waited for in the order in which they are recorded
            self._have_thread()  # first: it may fail, and what is in the stream cannot be taken back
            start, end = self._event(), self._event()
            try:
                self._driver.record(start, self._stream)
                enqueue()
                self._driver.record(end, self._stream)
            except BaseException:
                self._free += (start, end)
                raise
            self._waits.put(_Wait(start, end, done))

    def close(self) -> None:
        """End the thread; everything it waits for has ended."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._waits.put(None)
            thread.join()
        while self._free:
            self._driver.destroy_event(self._free.pop())

    def _have_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def _event(self) -> int:
        return self._free.pop() if self._free else self._driver.create_event()

    def _work(self) -> None:
        while (wait := self._waits.get()) is not None:
            error: Exception | None = None
            seconds = 0.0
            try:
                self._driver.synchronize(wait.end)
                seconds = self._driver.elapsed(wait.start, wait.end)
            except Exception as exc:  # noqa: BLE001  the sweep that waits raises it
                error = exc
            self._free += (wait.start, wait.end)
            wait.done(error, seconds)
            del wait  # kept while waiting, it would keep a model's buffers


# The device.

_MANAGED_SLOTS = 2


class CudaDevice(CachingDevice):
    """Computes on the device of ``driver``; ``cpu`` runs the pieces that have no kernel here.

    ``kind``: None: copied where the device has memory of its own, else mapped; a profile may set another.
    """

    name = "cuda"
    asynchronous = True

    def __init__(
        self, driver: Driver, cpu: Device, kind: Kind | None = None, precision: Precision = "fp32"
    ) -> None:
        super().__init__()
        self.driver = driver
        self.properties = driver.properties()
        self.threads = cpu.threads
        self.gpu = self.properties.description
        self._asked_kind = kind
        self.kind: Kind = kind or ("mapped" if self.properties.integrated else "copied")
        self.settings = ConvolutionSettings(self.properties.multiprocessors, precision)
        self._cpu = cpu
        self._copy_stream = driver.create_stream()
        self.kernel_stream = driver.create_stream()
        self._copied = Waiter(driver, self._copy_stream, "cuda-copies")
        self._computed = Waiter(driver, self.kernel_stream, "cuda-kernels")

    def adapt(self, architecture: Architecture) -> Architecture:
        if architecture.copies or architecture.resident:
            return architecture
        if architecture.tuned == "auto" and self.kind == "copied":
            return COPIED_AUTO
        if self.kind == "managed" and not self.properties.concurrent_managed:
            # Only whole allocations can be lent to the disk: a few equal places leave nothing to search.
            slots = _MANAGED_SLOTS if architecture.tuned else 1
            return replace(architecture, slots=slots, tuned="")
        return architecture

    def tunings(self, graphs: Sequence[bytes], file: Path) -> Sequence[Tuning]:
        algorithms = fastest_algorithms(self, graphs)
        works = [kind for kind, reason in probe_kinds(self, file).items() if not reason]
        kinds = [self._asked_kind] if self._asked_kind else works
        return [
            Tuning(memory_kind=kind, precision=self.settings.precision, algorithms=algorithms)
            for kind in kinds or [self.kind]
        ]

    def abilities(self) -> Abilities:
        # What a GPU does not run has sessions.
        return replace(
            self._cpu.abilities(), integers=None, chains=None, scratch_bytes=self._scratch_bytes
        )

    def _scratch_bytes(self, graph: bytes) -> int | None:
        """Return the scratch of a piece; None: it runs on the CPU."""
        try:
            return lower(graph, self.settings).inner_bytes
        except NotCoveredError:
            return None

    def tune(self, tuning: Tuning) -> None:
        if tuning.memory_kind and self._asked_kind is None:
            self.kind = cast("Kind", tuning.memory_kind)
        if tuning.algorithms and tuning.precision == self.settings.precision:
            known = {**self.settings.algorithms, **tuning.algorithms}
            self.settings = replace(self.settings, algorithms=known)
            self._kernels.clear()  # those in use stay as they are

    @property
    def target(self) -> Target:
        return cuda_target(10 * self.properties.capability[0] + self.properties.capability[1])

    def make(self, graph: bytes) -> Kernel:
        if not is_sized(graph):
            return CudaRows(lambda shapes: self._on_rows(graph, shapes))
        try:
            program = lower(graph, self.settings)
        except NotCoveredError:
            return CpuBetweenCopies(self.driver, self.kernel_stream, self._cpu.load(graph))
        return CudaKernel(self.driver, self.kernel_stream, program)

    def _on_rows(self, graph: bytes, shapes: Shapes) -> Kernel:
        """Return what runs a row operator on inputs of ``shapes``, which takes no scratch."""

        def make(_: bytes) -> Kernel:
            try:
                program = lower(graph, replace(self.settings, scratch=False), shapes)
            except NotCoveredError as exc:
                raise DeviceError(f"no kernel for rows: {exc}") from exc
            return CudaKernel(self.driver, self.kernel_stream, program)

        return self.kept(graph + repr(shapes).encode(), make)

    def copier(self, source: Block, target: Block) -> Launch:
        there, here = stretches(target), stretches(source)
        return partial(self.driver.copy_rows, there, here, self.kernel_stream)

    def putter(self, target: Block, put: Callable[[NDArray[Any]], None]) -> Launch:
        there, shape = stretches(target), tuple(map(len, target[1:]))

        def launch() -> None:
            rows = np.empty(shape, target.array.dtype)
            put(rows)
            here = Stretches(int(rows.ctypes.data), there.n_bytes, there.n_bytes, there.number)
            self.driver.copy_rows(there, here, self.kernel_stream, from_host=True)
            # Whether the driver has read them by then depends on the machine.
            self.driver.synchronize_stream(self.kernel_stream)

        return launch

    def filler(self, target: Block, number: float) -> Launch:
        bits = int(np.float32(number).view(np.uint32))
        return partial(self.driver.fill_rows, stretches(target), bits, self.kernel_stream)

    def allocate(self, use: Use, n_bytes: int, slots: int = 1) -> Memory:
        make: Mapping[Use, Callable[[], Memory]] = {
            "staging": lambda: PinnedMemory(self.driver, n_bytes),
            "shared": lambda: self.shared(self.kind, n_bytes, slots),
            "own": lambda: DeviceMemory(self.driver, self.kernel_stream, n_bytes),
            "scratch": lambda: DeviceMemory(self.driver, self.kernel_stream, n_bytes),
        }
        try:
            return make[use]()
        except CudaMemoryError as exc:
            free, total = self.driver.memory_info()
            raise CudaMemoryError(
                f"{n_bytes} bytes of {use} memory: {free} of the device's {total} bytes are free"
            ) from exc

    def reserve(self, capacity_bytes: int) -> None:
        """Device memory has no pages that come as they are touched: each model has its own."""

    def memory_info(self) -> tuple[int, int]:
        return self.driver.memory_info()

    def check(self, sizes: Mapping[Use, int]) -> None:
        needed = sizes["own"] + sizes["scratch"]
        if self.properties.integrated:  # one memory for both
            needed = sum(sizes.values())
        free, total = self.driver.memory_info()
        if needed > free:
            raise CudaMemoryError(
                f"needs {needed} bytes of device memory, {free} of {total} bytes are free; with a "
                "smaller budget it streams more"
            )

    def shared(self, kind: Kind, n_bytes: int, slots: int = 1) -> Memory:
        """Return memory of ``kind`` to which the disk writes and that kernels read.

        Raises:
            DeviceError: there is not enough of it, or the device has no such kind.
        """
        if kind != "managed":
            return PinnedMemory(self.driver, n_bytes)
        if not self.properties.integrated:
            # The driver moves blocks of pages between memories, perhaps while the disk writes there.
            raise DeviceError("managed memory is for devices that share the memory of the CPU")
        attaches = not self.properties.concurrent_managed
        return ManagedMemory(self.driver, self.kernel_stream, n_bytes, slots, attaches)

    def copy(
        self,
        source: memoryview,
        target: Memory,
        offset: int,
        done: Done,
        expansion: Expansion | None = None,
    ) -> None:
        if expansion is not None:
            raise DeviceError("a GPU's copies expand nothing: it runs weights stored as they are")
        start = target.array(offset, "uint8", (source.nbytes,)).address
        self._copied.after(
            lambda: self.driver.copy(start, address(source), source.nbytes, self._copy_stream), done
        )

    def finish(self, done: Done) -> None:
        self._computed.after(lambda: None, done)

    def close(self) -> None:
        """End the waiting threads; a lost device gives nothing back before the process ends."""
        for waiter in (self._copied, self._computed):
            with contextlib.suppress(DeviceLostError):
                waiter.close()
        for stream in (self._copy_stream, self.kernel_stream):
            with contextlib.suppress(DeviceLostError):
                self.driver.synchronize_stream(stream)
                self.driver.destroy_stream(stream)
