"""A driver without a GPU: streams are queues whose operations run late and in any order that CUDA allows.

What is enqueued runs when something waits for it, or by chance before; which stream goes first is drawn.
So a buffer that is used before its event gives wrong results here, sooner or later. Kernels run by
``compute``; without it they do nothing.
"""

import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.cuda.call import Arguments, KernelLaunch
from pipeline.devices.cuda.driver import CudaLostError, Driver, Properties, Stretches, error_of

#: Runs a launch on addresses of this process.
Compute = Callable[[KernelLaunch, Arguments], None]
#: Bytes [start, end) of the process.
Extent = tuple[int, int]

XAVIER = Properties(
    name="fake",
    capability=(7, 2),
    multiprocessors=8,
    integrated=True,
    concurrent_managed=False,
    can_map=True,
    can_register=True,
    has_managed=True,
    driver_version=11040,
    runtime_version=11040,
)

_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Operation:
    """What was enqueued: kind (copy, launch, record, wait), name, memory touched, event and its count."""

    kind: str
    name: str = ""
    stream: int = 0
    reads: tuple[Extent, ...] = ()
    writes: tuple[Extent, ...] = ()
    event: int = 0
    count: int = 0
    run: Callable[[], None] = field(default=lambda: None, compare=False)


@dataclass
class _Event:
    recorded: int = 0
    done: int = 0


class FakeDriver(Driver):
    """``seed`` draws the order; ``eager``: the chance that something runs as soon as it is enqueued.

    ``log``: what was enqueued and waited for, in order. ``fail``: by name of a call or function, the CUDA
    status with which the next one ends.
    """

    def __init__(
        self,
        seed: int = 0,
        eager: float = 0.3,
        memory_bytes: int = 1 << 32,
        known: Properties = XAVIER,
        compute: Compute | None = None,
    ) -> None:
        self.log: list[Operation] = []
        self.fail: dict[str, int] = {}
        self._known = known
        self._random = random.Random(seed)
        self._eager = eager
        self._total = memory_bytes
        self._compute = compute
        self._blocks: dict[int, NDArray[np.uint8]] = {}
        self._registered: dict[int, int] = {}
        self._streams: dict[int, deque[Operation]] = {}
        self._events: dict[int, _Event] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._count = 0
        self._lost: CudaLostError | None = None
        self._lock = threading.RLock()

    @property
    def used_bytes(self) -> int:
        """Device memory allocated and not freed."""
        return sum(block.nbytes - _PAGE_BYTES for block in self._blocks.values())

    @property
    def held(self) -> int:
        """Streams, events and registrations not given back."""
        return len(self._streams) + len(self._events) + len(self._registered)

    def properties(self) -> Properties:
        return self._known

    def memory_info(self) -> tuple[int, int]:
        self._raise("memory_info")
        return self._total - self.used_bytes, self._total

    def allocate(self, n_bytes: int) -> int:
        with self._lock:
            self._raise("allocate")
            if self.used_bytes + n_bytes > self._total:
                raise error_of(2, f"{n_bytes} bytes: out of memory")
            block = np.full(
                n_bytes + _PAGE_BYTES, 0xFF, np.uint8
            )  # NaN: nothing may count on zeros
            address = -(-int(block.ctypes.data) // _PAGE_BYTES) * _PAGE_BYTES
            self._blocks[address] = block
            return address

    def allocate_managed(self, n_bytes: int) -> int:
        return self.allocate(n_bytes)

    def free(self, address: int) -> None:
        with self._lock:
            del self._blocks[address]

    def attach(self, address: int, stream: int | None) -> None:
        with self._lock:
            self._raise("attach")
            self.log.append(Operation("attach", stream=stream or 0, event=address))

    def register(self, address: int, n_bytes: int) -> int:
        with self._lock:
            self._raise("register")
            self._registered[address] = n_bytes
            return address

    def unregister(self, address: int) -> None:
        with self._lock:
            del self._registered[address]

    def create_stream(self) -> int:
        with self._lock:
            self._streams[self._number()] = deque()
            return self._count

    def destroy_stream(self, stream: int) -> None:
        with self._lock:
            assert self._lost or not self._streams[stream], "destroyed with work in it"
            del self._streams[stream]

    def synchronize_stream(self, stream: int) -> None:
        event = self.create_event()
        self.record(event, stream)
        self.synchronize(event)
        self.destroy_event(event)

    def create_event(self) -> int:
        with self._lock:
            self._events[self._number()] = _Event()
            return self._count

    def destroy_event(self, event: int) -> None:
        with self._lock:
            del self._events[event]

    def record(self, event: int, stream: int) -> None:
        with self._lock:
            held = self._events[event]
            held.recorded += 1
            count = held.recorded

            def run() -> None:
                held.done = max(held.done, count)

            self.enqueue(Operation("record", "record", stream, event=event, count=count, run=run))

    def synchronize(self, event: int) -> None:
        with self._lock:
            held = self._events[event]
            count = held.recorded
            while held.done < count:
                self._raise("synchronize")
                assert self._step(), f"event {event} is never set"
            self._raise("synchronize")
            self.log.append(Operation("synchronize", event=event, count=count))

    def elapsed(self, start: int, end: int) -> float:
        assert self._events[start].done
        assert self._events[end].done
        return 1e-3

    def copy(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        self.enqueue(
            Operation(
                "copy",
                "copy",
                stream,
                reads=((source, source + n_bytes),),
                writes=((target, target + n_bytes),),
                run=lambda: _move(target, source, n_bytes),
            )
        )

    def copy_rows(
        self, target: Stretches, source: Stretches, stream: int, from_host: bool = False
    ) -> None:
        assert (target.n_bytes, target.number) == (source.n_bytes, source.number)

        def run() -> None:
            for to, origin in zip(_starts(target), _starts(source), strict=True):
                _move(to, origin, target.n_bytes)

        reads, writes = () if from_host else _extents(source), _extents(target)
        self.enqueue(Operation("copy", "copy_rows", stream, reads=reads, writes=writes, run=run))

    def fill_rows(self, target: Stretches, bits: int, stream: int) -> None:
        words = np.full(target.n_bytes // 4, bits, np.uint32)

        def run() -> None:
            for start in _starts(target):
                _move(start, int(words.ctypes.data), target.n_bytes)

        self.enqueue(Operation("copy", "fill_rows", stream, writes=_extents(target), run=run))

    def function(self, module: str, name: str) -> int:
        with self._lock:
            self._raise("function")
            return self._functions.setdefault((module, name), len(self._functions) + 1)

    def launch(self, function: int, call: KernelLaunch, arguments: Arguments, stream: int) -> None:
        assert function == self._functions[call.module, call.function]

        def run() -> None:
            if self._compute is not None:
                self._compute(call, arguments)

        self.enqueue(Operation("launch", call.function, stream, run=run))

    def multiply(self, call: KernelLaunch, arguments: Arguments, stream: int) -> None:
        transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = arguments.values

        def matrix(address: int, rows: int, columns: int, stride: int) -> NDArray[np.float32]:
            held = (ctypes.c_float * (stride * columns)).from_address(address)
            flat: NDArray[np.float32] = np.ctypeslib.as_array(held)
            return flat.reshape(columns, stride)[:, :rows].T

        def run() -> None:
            left = matrix(a, k, m, lda).T if transa else matrix(a, m, k, lda)
            right = matrix(b, n, k, ldb).T if transb else matrix(b, k, n, ldb)
            result = matrix(c, m, n, ldc)
            result[...] = alpha * (left @ right) + (beta * result if beta else 0)

        self.enqueue(Operation("launch", call.function, stream, run=run))

    @property
    def has_cublas(self) -> bool:
        return True

    def enqueue(self, operation: Operation) -> None:
        """Put ``operation`` at the end of its stream."""
        with self._lock:
            self._raise(operation.name)
            self.log.append(replace(operation, run=lambda: None))
            self._streams[operation.stream].append(operation)
            while self._random.random() < self._eager and self._step():
                pass

    def drain(self) -> None:
        """Run everything that can run."""
        with self._lock:
            while self._step():
                pass

    def _step(self) -> bool:
        """Run the first operation of some stream; return whether there was one."""
        busy: Sequence[deque[Operation]] = [queue for queue in self._streams.values() if queue]
        if not busy or self._lost:
            return False
        operation = self._random.choice(busy).popleft()
        fault = self.fail.pop(f"run {operation.name}", None)
        if fault is not None:
            self._lose(fault, operation.name)
            return True
        operation.run()
        return True

    def _raise(self, name: str) -> None:
        if self._lost is not None:
            raise self._lost
        status = self.fail.pop(name, None)
        if status is not None:
            error = error_of(status, f"{name}: injected")
            self._lost = error if isinstance(error, CudaLostError) else None
            raise error

    def _lose(self, status: int, name: str) -> None:
        error = error_of(status, f"{name}: injected")
        assert isinstance(error, CudaLostError), "only sticky errors come from running kernels"
        self._lost = error

    def _number(self) -> int:
        self._count += 1
        return self._count


def _move(target: int, source: int, n_bytes: int) -> None:
    ctypes.memmove(target, source, n_bytes)


def _starts(rows: Stretches) -> range:
    return range(rows.address, rows.address + rows.pitch * rows.number, rows.pitch)


def _extents(rows: Stretches) -> tuple[Extent, ...]:
    return tuple((start, start + rows.n_bytes) for start in _starts(rows))
