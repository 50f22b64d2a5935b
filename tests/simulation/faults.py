"""What disk, system and kernels do in a run: they take time, and some calls of the service meet a fault."""

import contextlib
import errno
import logging
import math
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from loader.errors import ReadError
from tests.simulation import threads
from tests.simulation.plan import Fault
from tests.simulation.simulator import BrokenError, Simulation

#: Of a kernel, and of a read, seconds.
KERNEL_SECONDS = (20e-6, 600e-6)
_READ_SECONDS = (20e-6, 3e-3)
_READS = frozenset(("error", "late", "short", "wrong", "stale", "misdirected"))
#: Kinds of faults by the calls that meet them.
_CALLS = {
    "read": _READS,
    "write": frozenset(("full", "frozen")),
    "allocation": frozenset(("no memory",)),
    "thread": frozenset(("no thread",)),
    "kernel": frozenset(("slow kernel",)),
}


class Calls:
    """Counts calls by kind, from when faults strike on, and knows which meets which fault."""

    def __init__(self, faults: Sequence[Fault], reached: Counter[str]) -> None:
        self._reached = reached
        self._faults = {
            call: {fault.call: fault for fault in faults if fault.kind in kinds}
            for call, kinds in _CALLS.items()
        }
        self._counts: Counter[str] = Counter()
        #: Whether calls count, and faults strike.
        self.is_struck = False

    def next(self, call: str) -> Fault | None:
        """Return the fault of one more ``call``; None: it has none."""
        if not self.is_struck:
            return None
        fault = self._faults[call].get(self._counts[call])
        self._counts[call] += 1
        if fault is not None:
            self._reached[f"fault: {fault.kind}"] += 1
        return fault


class Machine:
    """Replaces what the service calls of the system; once in a process.

    ``live``: bytes of array memory that the device gave and that was not closed, by id; ``live_bytes``: of
    all of it. ``busy_loop``: from when to when the event loop ran a kernel that met a fault.
    ``idle_since``: when the last read, kernel or planning ended; infinity while one goes on.
    """

    def __init__(self, run: Simulation, faults: Sequence[Fault], reached: Counter[str]) -> None:
        self._run = run
        self.calls = Calls(faults, reached)
        self.live: dict[int, int] = {}
        self.live_bytes = 0
        self.idle_since = run.now
        self._works = 0
        self.busy_loop: list[tuple[float, float]] = []

    def install(self) -> None:
        """Have reads, writes, kernels, memory and threads be the simulation's."""
        from loader.pool import pool
        from loader.readers.files import ReplaceableReader
        from models import whole_files
        from pipeline.devices import cpu, device_memory

        self._replace_reads(pool, ReplaceableReader)
        self._replace_writes(whole_files)
        self._replace_memory(device_memory)
        self._replace_kernels(cpu)
        start, calls = threads.Thread.start, self.calls

        def start_thread(thread: threads.Thread) -> None:
            # asyncio's own pool is not told apart from a fault of ours: status 500 (internal).
            may_fail = not thread.name.startswith(("loop", "asyncio"))
            if may_fail and calls.next("thread") is not None:
                raise RuntimeError("can't start new thread")
            start(thread)

        _replace(threads.Thread, "start", start_thread)

    @contextlib.contextmanager
    def works(self) -> Iterator[None]:
        """Count what happens inside as work."""
        self._works += 1
        self.idle_since = math.inf
        try:
            yield
        finally:
            self._works -= 1
            if not self._works:
                self.idle_since = self._run.now

    def _replace_reads(self, pool: Any, reader_type: Any) -> None:
        _replace(pool, "find_reader", lambda: None)
        read_into, start = reader_type.read_into, pool._ReaderThreads.start

        def read(reader: Any, offset: int, target: memoryview) -> None:
            with self.works():
                self._read(reader, read_into, offset, target)

        def start_job(flights: Any, flight: Any) -> None:
            # Nothing needs any more what lies there: a kernel that uses it computes no error.
            np.frombuffer(flight.request.target, np.uint8)[:] = 255
            start(flights, flight)

        _replace(pool._ReaderThreads, "start", start_job)
        _replace(reader_type, "read_into", read)

    def _read(self, reader: Any, read_into: Any, offset: int, target: memoryview) -> None:
        run = self._run
        run.sleep(run.draws.uniform(*_READ_SECONDS))
        fault = self.calls.next("read")
        kind = "" if fault is None else fault.kind
        if fault is not None and kind == "late":
            run.sleep(fault.seconds)
        if kind in ("error", "short"):
            what = "I/O error" if kind == "error" else "the file ends short"
            raise ReadError(f"{reader.name}: {what} at {offset}")
        if kind == "misdirected":
            offset = 0 if offset else reader.alignment
        if kind != "stale":
            read_into(reader, offset, target)
        if kind == "wrong":
            target[len(target) // 2] ^= 1

    def _replace_writes(self, module: Any) -> None:
        sync, calls = module.sync, self.calls

        def synced(file: Any) -> None:
            fault = calls.next("write")
            if fault is not None:
                error = errno.ENOSPC if fault.kind == "full" else errno.EROFS
                raise OSError(error, os.strerror(error))
            sync(file)

        _replace(module, "sync", synced)

    def _replace_memory(self, device_memory: Any) -> None:
        host, live, calls = device_memory.HostMemory, self.live, self.calls
        init, close = host.__init__, host.close

        def initialised(memory: Any, n_bytes: int) -> None:
            if n_bytes and calls.next("allocation") is not None:
                raise MemoryError(f"no memory for {n_bytes} bytes")
            init(memory, n_bytes)
            live[id(memory)] = n_bytes
            self.live_bytes += n_bytes

        def closed(memory: Any) -> None:
            self.live_bytes -= live.pop(id(memory), 0)
            close(memory)

        _replace(host, "__init__", initialised)
        _replace(host, "close", closed)

    def _replace_kernels(self, cpu: Any) -> None:
        bind = cpu._CpuKernel.bind

        def bound(kernel: Any, inputs: Any, outputs: Any, scratch: Any = None) -> Any:
            launch = bind(kernel, inputs, outputs, scratch)
            return _Launch(launch, self._spend_time, inputs, outputs)

        _replace(cpu._CpuKernel, "bind", bound)

    def _spend_time(self) -> None:
        run = self._run
        with self.works():
            run.sleep(run.draws.uniform(*KERNEL_SECONDS))
            fault = self.calls.next("kernel")
            if fault is not None:
                self._slow_down(run, fault)

    def _slow_down(self, run: Simulation, fault: Fault) -> None:
        started_at = run.now
        run.sleep(fault.seconds)
        if run.current.name == "loop":
            self.busy_loop.append((started_at, run.now))


class _Launch:
    """A kernel that takes a drawn time, and whose inputs do not change meanwhile."""

    def __init__(
        self,
        launch: Callable[[], None],
        spend_time: Callable[[], None],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> None:
        self._launch, self._spend_time = launch, spend_time
        self._inputs = [
            array for array in inputs if not any(np.may_share_memory(array, out) for out in outputs)
        ]

    def __call__(self) -> None:
        before = [array.copy() for array in self._inputs]
        self._spend_time()
        self._launch()
        for now, then in zip(self._inputs, before, strict=True):
            if not np.array_equal(now.view(np.uint8), then.view(np.uint8)):
                raise BrokenError("the inputs of a kernel changed while it ran")


class Logged(logging.Handler):
    """Keeps what is logged with a traceback: those are faults of ours."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep ``record``, if it has a traceback."""
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(traceback.format_exception(*record.exc_info)[-4:])
            self.lines.append(f"{record.getMessage()}: {lines}")


def _replace(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)
