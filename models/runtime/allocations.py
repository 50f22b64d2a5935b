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
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from models.network.fields import STRINGS, UNKNOWN
from models.runtime.heap import malloc_info
from models.runtime.sessions import SessionError, open_piece, reason

if TYPE_CHECKING:
    import onnxruntime as ort
    from numpy.typing import NDArray

#: dtype and shape of a tensor that a graph reads or makes.
Tensor = tuple[str, Sequence[int]]

# From malloc.h.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_MAPPED_FROM_BYTES = 4096
_MOST_MAPPED = re.compile(rb"max mmap bytes\s*=\s*(\d+)")
_MAPPED = re.compile(rb'<total type="mmap"[^>]* size="(\d+)"')
_SYSTEM = re.compile(rb'<system type="current" size="(\d+)"')
_FREE = re.compile(rb'<total type="(?:fast|rest)"[^>]* size="(\d+)"')
# Small blocks that Python takes meanwhile.
_OWN_BYTES = 32 << 10
# Of what is written, the end is read, in a block that is not mapped.
_TEXT_BYTES = 2048
_LOOK_SECONDS = 0.5e-3
_MOST_FILE_BYTES = 16 << 20
_PR_SET_PDEATHSIG = 1


class MeasureError(Exception):
    """The C library does not say what is allocated."""


@dataclass(frozen=True)
class Run:
    """A graph of ``n_bytes``, run with each number of ``threads``.

    ``inputs``: of the session, in its order; ``outputs``: in its order, whose memory is there before as
    an engine has it, or None: ONNX Runtime allocates them.
    """

    n_bytes: int
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor] | None
    threads: Sequence[int]


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
    """Hold as much mapped as ever was; yield what that is."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    now, most = _mapped()
    held = libc.malloc(max(most - now, _MAPPED_FROM_BYTES))
    try:
        yield _mapped()[0]
    finally:
        libc.free(held)


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
        self.grown_bytes = grown if grown > _OWN_BYTES else 0

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._most = max(self._most, _in_use())


def _in_use() -> int:
    totals = _totals()
    free = sum(int(size) for size in _FREE.findall(totals))
    system = _SYSTEM.search(totals)
    return int(system[1]) - free if system is not None else 0


# What a graph allocates on drawn inputs.


def allocated_bytes(graph: bytes, run: Run) -> list[int]:
    """Return the most that ``graph`` allocates with each number of threads, over the inputs that it takes.

    Raises:
        SessionError: ONNX Runtime refuses the graph, or all inputs that were drawn.
        MeasureError: the C library does not say what is allocated.
    """
    return [_of_threads(graph, run, threads) for threads in run.threads]


def _of_threads(graph: bytes, run: Run, threads: int) -> int:
    session = open_piece(graph, threads)
    peaks, refusal = [], ""
    for inputs in _drawn(run.inputs):
        launch = _launch(session, inputs, run.outputs)
        try:
            launch()  # a thread's own buffers, which stay
        except Exception as exc:  # noqa: BLE001  ONNX Runtime's errors share no base class of their own
            refusal = reason(exc)
            continue
        peaks.append(peak_bytes(launch))
    if not peaks:
        raise SessionError(refusal)
    return max(peaks)


def _drawn(tensors: Sequence[Tensor]) -> Iterator[list["NDArray[Any]"]]:
    """Yield inputs that nearly every graph takes: indices, counts and conditions may be any of them."""
    only_floats = all(_kind(dtype) == "f" for dtype, _ in tensors)
    for number in (None,) if only_floats else (None, 0, 1, 2):
        generator = np.random.default_rng(0)
        yield [_array(dtype, shape, number, generator) for dtype, shape in tensors]


def _array(
    dtype: str, shape: Sequence[int], number: int | None, generator: np.random.Generator
) -> "NDArray[Any]":
    """Return standard normal numbers, and integers that are ``number``; None: 0 and 1."""
    sizes = [1 if length == UNKNOWN else length for length in shape]
    if _kind(dtype) == "f":
        return np.asarray(generator.standard_normal(sizes)).astype(dtype)
    numbers = generator.integers(0, 2, sizes) if number is None else np.full(sizes, number)
    return (
        np.asarray(numbers).astype(str).astype(object)
        if dtype == STRINGS
        else numbers.astype(dtype)
    )


def _kind(dtype: str) -> str:
    return "O" if dtype == STRINGS else np.dtype(dtype).kind


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
