"""The CPU device: ONNX Runtime computes, on memory that is ours, bound by pointer."""

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loader.cores import hasten, spread
from loader.errors import LoaderError
from models.runtime.heap import kept_for_kernels
from models.runtime.joined_graphs import JoinError, can_join, join_graphs
from models.runtime.sessions import (
    SessionError,
    launching_cores,
    open_joined,
    open_piece,
    reason,
    run_options,
    threads_of_device,
)
from models.runtime.wire import WireError
from pipeline.devices.base import (
    CachingDevice,
    Cell,
    DeviceError,
    Done,
    Kernel,
    KernelError,
    KernelStoppedError,
    KernelValueError,
    Launch,
    StoppableLaunch,
)
from pipeline.devices.device_memory import HostMemory, Memory, Use
from pipeline.devices.elementwise.attention import native_attention
from pipeline.devices.elementwise.library import Library, find_library
from pipeline.devices.elementwise.one_pass import OnePass
from pipeline.devices.elementwise.operator_node import holds_chain, why_not_shared
from pipeline.devices.expansion import Expansion
from pipeline.devices.integers.native_layers import QuantisedLayers
from pipeline.program.prepare import Abilities

if TYPE_CHECKING:
    import onnxruntime as ort

# What devices that compute in the host's memory share: a copy stage, which expands stored weights.
#
# It is a thread of its own, which does one copy at a time, in order: on a CPU this makes the three-stage
# architectures of seed 003 real; a GPU's copy engine takes its place.

_log = logging.getLogger(__name__)

_Job = tuple[memoryview, memoryview, Expansion | None, Done]


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
        expansion: Expansion | None = None,
    ) -> None:
        length = source.nbytes if expansion is None else expansion.target_bytes
        job = source, target.host(offset, length), expansion, done
        with self._lock:
            if self._copier is None:  # a device that copies nothing needs none
                try:
                    self._copier = _Copier(self._cores)
                except (RuntimeError, MemoryError) as exc:
                    raise LoaderError(f"copy failed: {exc}") from exc
                # Of a device that was not closed: its thread ends with it.
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
        except Exception as exc:  # noqa: BLE001  the thread serves others, too; MemoryError has no text
            error = LoaderError(f"copy failed: {str(exc) or type(exc).__name__}")
        _tell(done, error, time.perf_counter() - started)
        # Kept while waiting, they would keep a model's buffers.
        del job, source, target, expansion, done


def _tell(done: Done, error: LoaderError | None, seconds: float) -> None:
    try:
        done(error, seconds)
    except Exception:  # noqa: BLE001  a thread that ends would strand the copies of all models
        _log.exception("a callback failed; the copier goes on")


# ONNX Runtime's kernels, and the device that has them.


class _Bound:
    """A launcher: a model has hundreds, and a function takes five times as much with what it holds.

    The kernel lives as long as this does. ONNX Runtime's own binding and session lie inside Python's, which
    take 600 bytes and half a microsecond more.
    """

    __slots__ = ("_binding", "_kernel")

    def __init__(self, kernel: "_CpuKernel", binding: "ort.IOBinding") -> None:
        self._kernel = kernel
        self._binding = binding._iobinding

    def __call__(self) -> None:
        try:
            self._kernel.run(self._binding, None)
        except Exception as exc:  # ONNX Runtime's errors share no base class of their own.
            raise _failure(exc)(reason(exc)) from exc


class _CpuKernel(Kernel):
    def __init__(self, session: "ort.InferenceSession") -> None:
        self.session = session
        self.run = session._sess.run_with_iobinding
        self.inputs = [port.name for port in session.get_inputs()]
        self.outputs = [port.name for port in session.get_outputs()]

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        self._check(inputs, outputs)
        binding = self.session.io_binding()
        for name, array in zip(self.inputs, inputs, strict=True):
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for name, array in zip(self.outputs, outputs, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

        return _Bound(self, binding)

    def attach(
        self, inputs: Sequence[NDArray[Any] | Cell], outputs: Sequence[NDArray[Any] | Cell]
    ) -> Launch:
        self._check(inputs, outputs)
        return _Attached(self, inputs, outputs)

    def _check(
        self, inputs: Sequence[NDArray[Any] | Cell], outputs: Sequence[NDArray[Any] | Cell]
    ) -> None:
        if (len(inputs), len(outputs)) != (len(self.inputs), len(self.outputs)):
            raise DeviceError(
                f"a piece has {len(self.inputs)} inputs and {len(self.outputs)} outputs; "
                f"the manifest gives {len(inputs)} and {len(outputs)}"
            )


class _Attached(StoppableLaunch):
    """A launcher of a resident piece. ONNX Runtime looks between two nodes whether it was stopped."""

    def __init__(
        self,
        kernel: _CpuKernel,
        inputs: Sequence[NDArray[Any] | Cell],
        outputs: Sequence[NDArray[Any] | Cell],
    ) -> None:
        self._kernel = kernel
        self._inputs = inputs
        self._outputs = outputs
        self._options = run_options()

    def __call__(self) -> None:
        kernel = self._kernel
        feeds = {
            name: tensor.array if isinstance(tensor, Cell) else tensor
            for name, tensor in zip(kernel.inputs, self._inputs, strict=True)
        }
        try:
            results = kernel.session.run(kernel.outputs, feeds, self._options)
        except Exception as exc:  # ONNX Runtime's errors share no base class of their own.
            error = KernelStoppedError if self._options.terminate else _failure(exc)
            raise error(reason(exc)) from exc
        for name, result, target in zip(kernel.outputs, results, self._outputs, strict=True):
            _put(name, np.asarray(result), target)

    def stop(self, stopped: bool) -> None:
        self._options.terminate = stopped


# How ONNX Runtime says that a kernel ended with an error. Shapes are checked when a session is bound; what
# is left beside values is memory. Of a bound run its exception is a RuntimeError, whatever the error is.
_REFUSED, _MEMORY = "Non-zero status code returned while running", "alloc"
# A C++ exception of a kernel, which is not what one refuses by a status.
_FAULT = "RuntimeException"


def _failure(exc: Exception) -> type[KernelError]:
    """Return which error ``exc`` of a kernel of ONNX Runtime is."""
    text, is_fault = str(exc), type(exc).__name__ == _FAULT
    is_refused = _REFUSED in text and _MEMORY not in text and not is_fault
    return KernelValueError if is_refused else KernelError


def _put(name: str, result: NDArray[Any], target: NDArray[Any] | Cell) -> None:
    if isinstance(target, Cell):
        target.array = result
    elif (result.shape, result.dtype) != (target.shape, target.dtype):
        raise KernelError(
            f"output {name!r} is {result.dtype}{list(result.shape)}, "
            f"not {target.dtype}{list(target.shape)}"
        )
    else:
        target[...] = result


class _Sequential(Kernel):
    """Kernels that run one after the other, bound as one: to the inputs of the first, and so on."""

    def __init__(self, kernels: Sequence[_CpuKernel]) -> None:
        self._kernels = kernels

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        read, written = iter(inputs), iter(outputs)
        launches = [
            kernel.bind(
                [*islice(read, len(kernel.inputs))], [*islice(written, len(kernel.outputs))]
            )
            for kernel in self._kernels
        ]

        def launch() -> None:
            for bound in launches:
                bound()

        return launch


class _KernelHeap(HostMemory):
    """Scratch of kernels that allocate it themselves: the heap keeps so much for them."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(0)
        self._kept = ExitStack()
        self._kept.enter_context(kept_for_kernels(n_bytes))

    def close(self) -> None:
        self._kept.close()
        super().close()


class CpuDevice(HostDevice):
    """Runs pieces with ``threads`` threads (models/runtime/sessions.py: whose they are).

    ``native``: what the native library computes, where there is one: operators on elements in one pass,
    attention, and quantised layers. Several threads are those of a session that does its jobs; where ONNX
    Runtime does not take our operator, quantised layers have one thread, and others stay ONNX Runtime's.
    """

    name = "cpu"
    joins = True

    def __init__(self, threads: int | None = None, *, native: bool = True) -> None:
        super().__init__()
        self.threads = threads_of_device(threads)
        library = find_library()
        self._operators = library.path if isinstance(library, Library) else None
        self._has_attention = False
        if isinstance(library, Library) and native:
            self._has_attention = why_not_shared(library.path) is None
            shares = self.threads > 1 and self._has_attention
            bind = self._bind_chain if shares else None
            if shares or self.threads == 1:
                self.one_pass = OnePass(library, bind)
            self.quantised = QuantisedLayers(library, self.threads if shares else 1, bind)

    def allocate(self, use: Use, n_bytes: int, slots: int = 1) -> Memory:
        if use == "scratch":
            return _KernelHeap(n_bytes)
        return super().allocate(use, n_bytes, slots)

    @property
    def computes_on_caller(self) -> bool:
        return self.threads == 1

    @property
    def launching_cores(self) -> tuple[int, ...]:
        return launching_cores()

    def abilities(self) -> Abilities:
        return Abilities(
            threads=self.threads,
            integers=None if self.quantised is None else self.quantised.tasks,
            chains=None if self.one_pass is None else self.one_pass.kernel,
            joins=can_join if self.joins else lambda graph: False,
            scratch_bytes=self._scratch_bytes,
            reads_rows=True,
        )

    def _scratch_bytes(self, graph: bytes) -> int | None:
        attention = native_attention(graph) if self._has_attention else None
        return None if attention is None else self.threads * attention.thread_bytes

    def _loaded(self, graph: bytes) -> bytes:
        """Return a pack's ``graph`` as it is loaded: with operators of ours where they compute the same."""
        attention = native_attention(graph) if self._has_attention else None
        return graph if attention is None else attention.graph

    def _bind_chain(self, graph: bytes, inputs: Sequence[Any], outputs: Sequence[Any]) -> Launch:
        return self.kept(graph, self._make_chain).bind(inputs, outputs)

    def _make_chain(self, graph: bytes) -> Kernel:
        return _opened(lambda: open_piece(graph, self.threads, self._operators))

    def make(self, graph: bytes) -> Kernel:  # a pack's: it has no operators of ours
        loaded = self._loaded(graph)
        operators = None if loaded is graph else self._operators
        return _opened(lambda: open_piece(loaded, self.threads, operators))

    def join(self, graphs: Sequence[bytes]) -> Kernel:
        graphs = list(map(self._loaded, graphs))
        try:
            joined = join_graphs(graphs)
        except (JoinError, WireError) as exc:
            raise DeviceError(str(exc)) from exc
        return self.kept(joined, partial(self._make_joined, graphs))

    def _make_joined(self, graphs: Sequence[bytes], fused: bytes) -> Kernel:
        """Return ``fused`` as one session, or ``graphs`` as one each where that is in no known order."""
        try:
            return _CpuKernel(open_joined(fused, self.threads, self._operators_of(fused)))
        except SessionError as exc:
            _log.info("%d pieces run one by one: %s", len(graphs), exc)
            kernels = {graph: self._make_part(graph) for graph in graphs}
            return _Sequential([kernels[graph] for graph in graphs])

    def _make_part(self, graph: bytes) -> _CpuKernel:
        return _opened(lambda: open_piece(graph, self.threads, self._operators_of(graph)))

    def _operators_of(self, graph: bytes) -> Path | None:
        return self._operators if holds_chain(graph) else None


def _opened(opening: "Callable[[], ort.InferenceSession]") -> _CpuKernel:
    try:
        return _CpuKernel(opening())
    except SessionError as exc:
        raise DeviceError(str(exc)) from exc
