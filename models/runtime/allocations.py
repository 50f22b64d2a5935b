"""What ONNX Runtime allocates while a graph runs, measured in a process of its own that changes malloc.

Blocks of a page and more are mapped there, and glibc counts the most bytes that were ever mapped at once.
Where as many are held before a run, the run moves that mark by exactly what it allocates at its peak. How
many bytes are in smaller blocks is looked at again and again meanwhile.

The process reads from stdin a ``Run`` as a line of JSON, then its graph, and answers with a line, again and
again (models/compiler/cutting/meter.py).
"""

import contextlib
import ctypes
import json
import mmap
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from models.network.fields import STRINGS, UNKNOWN
from models.processes import end_with
from models.runtime.sessions import SessionError, open_piece, reason

if TYPE_CHECKING:
    import onnxruntime as ort
    from numpy.typing import NDArray

#: Standard normal numbers and integers of 0 and 1; or 0, 1, or 0.5 and integers of 2 everywhere. Nearly
#: every graph takes one: they may be indices, counts, scales, conditions.
Kind = Literal["random", "ones", "zeros", "halves"]
KINDS: tuple[Kind, ...] = ("random", "ones", "halves", "zeros")

#: dtype and shape of a tensor that a graph reads or makes.
Tensor = tuple[str, Sequence[int]]

# From malloc.h.
_M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -2, -3, -8
_MAPPED_FROM_BYTES = 4096
# Less than what is mapped.
_FILLING_BYTES = 3072
_MAX_MAPPED = re.compile(rb"max mmap bytes\s*=\s*(\d+)")
_MAPPED = re.compile(rb'<total type="mmap"[^>]* size="(\d+)"')
_SYSTEM = re.compile(rb'<system type="current" size="(\d+)"')
_FREE = re.compile(rb'<total type="(?:fast|rest)"[^>]* size="(\d+)"')
# Small blocks are counted above so many bytes: Python takes some meanwhile, measured up to 120 KiB.
_PYTHON_BYTES = 256 << 10
# Of small blocks, what looks may miss: one part in so many.
_MISSED = 8
_RUNS = 2
# Of what is written, the end is read, in a block that is not mapped.
_TEXT_BYTES = 2048
_IOFBF, _BUFFER_BYTES = 0, 64 << 10
_SAMPLE_SECONDS = 0.5e-3


class MeasureError(Exception):
    """The C library does not say what is allocated."""


@dataclass(frozen=True)
class Run:
    """A graph of ``n_bytes``, run on inputs of a ``kind`` with each number of ``threads``.

    ``inputs``: of the session, in its order; ``outputs``: in its order, whose memory is there before as
    an engine has it, or None: ONNX Runtime allocates them.
    """

    n_bytes: int
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor] | None
    threads: Sequence[int]
    kind: Kind = "random"


# How much the heap holds at most.


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    if not all(hasattr(libc, name) for name in ("mallopt", "malloc_info", "malloc_stats")):
        raise MeasureError("the C library does not say what is allocated")
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    libc.malloc.restype, libc.malloc.argtypes = pointer, (size,)
    libc.fdopen.restype, libc.ftell.restype = pointer, ctypes.c_long
    libc.setvbuf.argtypes = (pointer, pointer, ctypes.c_int, size)
    libc.malloc_info.argtypes = (ctypes.c_int, pointer)
    for function in (libc.free, libc.rewind, libc.fflush, libc.ftell, libc.fclose):
        function.argtypes = (pointer,)
    return libc


class _Heap:
    """Reads what malloc writes of itself, through a buffer that is no part of the heap; for one thread."""

    def __init__(self) -> None:
        self._libc = _libc()
        self._file = os.memfd_create("heap")
        self._buffer = (ctypes.c_char * _BUFFER_BYTES).from_buffer(mmap.mmap(-1, _BUFFER_BYTES))
        self._stream = self._libc.fdopen(self._file, b"w")
        self._libc.setvbuf(self._stream, ctypes.addressof(self._buffer), _IOFBF, _BUFFER_BYTES)

    def close(self) -> None:
        self._libc.fclose(self._stream)

    def mapped(self) -> tuple[int, int]:
        """Return the bytes of blocks that are mapped, and the most that ever were."""
        now, max_bytes = _MAPPED.search(self._totals()), _MAX_MAPPED.search(self._statistics())
        if now is None or max_bytes is None:
            raise MeasureError("the C library does not say what is allocated")
        return int(now[1]), int(max_bytes[1])

    def free(self) -> int:
        """Return the bytes that are free between smaller blocks."""
        return sum(int(size) for size in _FREE.findall(self._totals()))

    def in_use(self) -> int:
        """Return the bytes of smaller blocks."""
        totals = self._totals()
        free = sum(int(size) for size in _FREE.findall(totals))
        system = _SYSTEM.search(totals)
        return int(system[1]) - free if system is not None else 0

    def _totals(self) -> bytes:
        self._libc.rewind(self._stream)
        self._libc.malloc_info(0, self._stream)
        self._libc.fflush(self._stream)
        return self._end(self._libc.ftell(self._stream)).rpartition(b"</heap>")[2]

    def _statistics(self) -> bytes:
        """Return what ``malloc_stats`` writes to stderr, whose text has no other way out."""
        os.lseek(self._file, 0, os.SEEK_SET)
        saved = os.dup(2)
        os.dup2(self._file, 2)
        self._libc.malloc_stats()
        os.dup2(saved, 2)
        os.close(saved)
        return self._end(os.lseek(self._file, 0, os.SEEK_CUR))

    def _end(self, size: int) -> bytes:
        return os.pread(self._file, min(size, _TEXT_BYTES), max(size - _TEXT_BYTES, 0))


def change_malloc() -> None:
    """Map all blocks of a page and more, and keep one heap for all others."""
    libc = _libc()
    for option, value in (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES),
        (_M_TOP_PAD, 0),
    ):
        libc.mallopt(option, value)


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most that the heap grows by while ``work`` runs, once ``change_malloc`` was called.

    Raises:
        MeasureError: the C library does not say.
    """
    with contextlib.closing(_Heap()) as heap, _filled(heap) as before:
        with _SmallBlocks() as small:
            work()
        max_bytes = heap.mapped()[1]
    return max(max_bytes - before, 0) + small.grown_bytes


@contextlib.contextmanager
def _filled(heap: _Heap) -> Iterator[int]:
    """Hold as much mapped as ever was; yield what that is.

    What is free in the heap below is held, too: malloc takes a large block from there where it fits.
    """
    libc = _libc()
    libc.malloc_trim(0)
    blocks = [libc.malloc(_FILLING_BYTES) for _ in range(heap.free() // _FILLING_BYTES)]
    now, max_bytes = heap.mapped()
    blocks.append(libc.malloc(max(max_bytes - now, _MAPPED_FROM_BYTES)))
    try:
        yield heap.mapped()[0]
    finally:
        for block in blocks:
            libc.free(block)


class _SmallBlocks:
    """Looks again and again how much of the heap below is in use."""

    def __init__(self) -> None:
        self.grown_bytes = 0
        self._heap = _Heap()
        self._before = self._max_bytes = 0
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._before = self._max_bytes = self._heap.in_use()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._thread.join()
        self._heap.close()
        grown = self._max_bytes - self._before
        self.grown_bytes = grown + grown // _MISSED if grown > _PYTHON_BYTES else 0

    def _sample(self) -> None:
        while not self._finished.wait(_SAMPLE_SECONDS):
            self._max_bytes = max(self._max_bytes, self._heap.in_use())


# What a graph allocates on drawn inputs.


def allocated_bytes(graph: bytes, run: Run) -> list[int]:
    """Return the most that ``graph`` allocates with each number of threads.

    Raises:
        SessionError: ONNX Runtime refuses the graph, or the inputs.
        MeasureError: the C library does not say what is allocated.
    """
    generator = np.random.default_rng(0)
    inputs = [_array(dtype, shape, run.kind, generator) for dtype, shape in run.inputs]
    return [_of_threads(open_piece(graph, threads), inputs, run) for threads in run.threads]


def _of_threads(session: "ort.InferenceSession", inputs: Sequence["NDArray[Any]"], run: Run) -> int:
    launch = _launch(session, inputs, run.outputs)
    try:
        launch()
    except Exception as exc:  # ONNX Runtime's errors share no base class of their own
        raise SessionError(reason(exc)) from exc
    # Once only may be what Python allocates, or a thread of the pool that runs for the first time.
    return min(peak_bytes(launch) for _ in range(_RUNS))


def _array(
    dtype: str, shape: Sequence[int], kind: Kind, generator: np.random.Generator
) -> "NDArray[Any]":
    sizes = [1 if length == UNKNOWN else length for length in shape]
    array: NDArray[Any]
    if kind != "random":
        value = {"zeros": 0, "halves": 0.5 if is_float(dtype) else 2, "ones": 1}[kind]
        array = np.full(sizes, value)
    elif is_float(dtype):
        array = np.asarray(generator.standard_normal(sizes))
    else:
        array = np.asarray(generator.integers(0, 2, sizes))
    return array.astype(str).astype(object) if dtype == STRINGS else array.astype(dtype)


def is_float(dtype: str) -> bool:
    """Return whether numbers of ``dtype`` are neither indices nor counts nor conditions."""
    return dtype != STRINGS and np.dtype(dtype).kind == "f"


def _launch(
    session: "ort.InferenceSession",
    inputs: Sequence["NDArray[Any]"],
    outputs: Sequence[Tensor] | None,
) -> Callable[[], object]:
    names = [port.name for port in session.get_inputs()]
    if outputs is None:
        feeds = dict(zip(names, inputs, strict=True))
        return lambda: session.run(None, feeds)
    binding = session.io_binding()
    arrays = [np.empty(shape, dtype) for dtype, shape in outputs]
    results = [port.name for port in session.get_outputs()]
    for name, array in zip(names, inputs, strict=True):
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in zip(results, arrays, strict=True):
        binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    referenced = inputs, arrays  # the binding has their addresses

    def launch() -> object:
        session.run_with_iobinding(binding)
        return referenced

    return launch


# The process.


def _answered(graph: bytes, run: Run) -> dict[str, Any]:
    try:
        return {"bytes": allocated_bytes(graph, run)}
    except (SessionError, MeasureError, MemoryError) as exc:
        return {"error": str(exc) or type(exc).__name__}


def main(parent: int) -> None:
    """Answer what is read from stdin until that ends."""
    end_with(parent)
    change_malloc()
    while line := sys.stdin.buffer.readline():
        run = Run(**json.loads(line))
        answer = _answered(sys.stdin.buffer.read(run.n_bytes), run)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
