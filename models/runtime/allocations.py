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
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from models.network.fields import STRINGS, UNKNOWN
from models.runtime.heap import malloc_info
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
_MOST_MAPPED = re.compile(rb"max mmap bytes\s*=\s*(\d+)")
_MAPPED = re.compile(rb'<total type="mmap"[^>]* size="(\d+)"')
_SYSTEM = re.compile(rb'<system type="current" size="(\d+)"')
_FREE = re.compile(rb'<total type="(?:fast|rest)"[^>]* size="(\d+)"')
# Small blocks are counted above so many bytes: Python takes some meanwhile, measured up to 120 KiB.
_OWN_BYTES = 256 << 10
# Of small blocks, what looks may miss: one part in so many.
_MISSED = 8
_RUNS = 2
# Of what is written, the end is read, in a block that is not mapped.
_TEXT_BYTES = 2048
_LOOK_SECONDS = 0.5e-3
_MOST_FILE_BYTES = 16 << 20
_PR_SET_PDEATHSIG = 1


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


def _mapped() -> tuple[int, int]:
    """Return the bytes of blocks that are mapped, and the most that ever were."""
    now, most = _MAPPED.search(_totals()), _MOST_MAPPED.search(_statistics())
    if now is None or most is None:
        raise MeasureError("the C library does not say what is allocated")
    return int(now[1]), int(most[1])


def _totals() -> bytes:
    return (malloc_info() or b"").rpartition(b"</heap>")[2]


def _statistics() -> bytes:
    """Return what ``malloc_stats`` writes to stderr, whose text has no other way out."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_stats"):
        return b""
    file, kept = os.memfd_create("statistics"), os.dup(2)
    try:
        os.dup2(file, 2)
        libc.malloc_stats()
        os.dup2(kept, 2)
        return os.pread(file, _TEXT_BYTES, max(os.fstat(file).st_size - _TEXT_BYTES, 0))
    finally:
        os.close(kept)
        os.close(file)


def change_malloc() -> None:
    """Map all blocks of a page and more, and keep one heap for all others."""
    libc = ctypes.CDLL(None)
    for option, value in (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES),
        (_M_TOP_PAD, 0),
    ):
        if hasattr(libc, "mallopt"):
            libc.mallopt(option, value)


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most that the heap grows by while ``work`` runs, once ``change_malloc`` was called.

    Raises:
        MeasureError: the C library does not say.
    """
    with _filled() as before, _SmallBlocks() as small:
        work()
    return max(_mapped()[1] - before, 0) + small.grown_bytes


@contextlib.contextmanager
def _filled() -> Iterator[int]:
    """Hold as much mapped as ever was; yield what that is.

    What is free in the heap below is held, too: malloc takes a large block from there where it fits.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.malloc_trim(0)
    held = [libc.malloc(_FILLING_BYTES) for _ in range(_free_bytes() // _FILLING_BYTES)]
    now, most = _mapped()
    held.append(libc.malloc(max(most - now, _MAPPED_FROM_BYTES)))
    try:
        yield _mapped()[0]
    finally:
        for block in held:
            libc.free(block)


class _SmallBlocks:
    """Looks again and again how much of the heap below is in use."""

    def __init__(self) -> None:
        self.grown_bytes = 0
        self._before = self._most = _in_use()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._before = self._most = _in_use()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        grown = self._most - self._before
        self.grown_bytes = grown + grown // _MISSED if grown > _OWN_BYTES else 0

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._most = max(self._most, _in_use())


def _in_use() -> int:
    totals = _totals()
    system = _SYSTEM.search(totals)
    return int(system[1]) - _free_bytes(totals) if system is not None else 0


def _free_bytes(totals: bytes | None = None) -> int:
    return sum(int(size) for size in _FREE.findall(_totals() if totals is None else totals))


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
    # Once only may be what a thread of the pool, or Python, allocates.
    return min(peak_bytes(launch) for _ in range(_RUNS))


def _array(
    dtype: str, shape: Sequence[int], kind: Kind, generator: np.random.Generator
) -> "NDArray[Any]":
    sizes = [1 if length == UNKNOWN else length for length in shape]
    if kind == "random":
        floats = is_float(dtype)
        array = generator.standard_normal(sizes) if floats else generator.integers(0, 2, sizes)
    else:
        number = {"zeros": 0, "halves": 0.5 if is_float(dtype) else 2, "ones": 1}[kind]
        array = np.full(sizes, number)
    array = np.asarray(array)
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
    made = [np.empty(shape, dtype) for dtype, shape in outputs]
    results = [port.name for port in session.get_outputs()]
    for name, array in zip(names, inputs, strict=True):
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in zip(results, made, strict=True):
        binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    held = inputs, made  # the binding has their addresses

    def launch() -> object:
        session.run_with_iobinding(binding)
        return held

    return launch


# The process.


def _limit(parent: int) -> None:
    """End this process when ``parent`` does; it leaves nothing on the disk."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the compiler is gone")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE_BYTES, _MOST_FILE_BYTES))


def _answered(graph: bytes, run: Run) -> dict[str, Any]:
    try:
        return {"bytes": allocated_bytes(graph, run)}
    except (SessionError, MeasureError, MemoryError) as exc:
        return {"error": str(exc) or type(exc).__name__}


def main(parent: int) -> None:
    """Answer what is read from stdin until that ends."""
    _limit(parent)
    change_malloc()
    while line := sys.stdin.buffer.readline():
        run = Run(**json.loads(line))
        answer = _answered(sys.stdin.buffer.read(run.n_bytes), run)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
