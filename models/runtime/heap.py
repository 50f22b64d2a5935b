"""The C heap and Python's collector of this process: measured anywhere, managed where the process is ours.

In a process of another program, which did not call ``bound_heap``, nothing here changes either of them.
"""

import contextlib
import ctypes
import functools
import gc
import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

# What malloc_info says of all arenas comes behind the last of them.
_END_OF_ARENA = b"</heap>"
_SIZE = re.compile(rb'<(?:total|system) type="(\w+)"[^>]* size="(\d+)"')


def heap_bytes() -> int | None:
    """Return bytes in use in malloc's arenas and mapped chunks (glibc 2.26 or later), measured in 20 us.

    None: unknown. By ``malloc_info``: ``mallinfo`` has 32 bits, and glibc 2.31 has no other.
    """
    told = _malloc_info()
    if told is None:
        return None
    sizes = dict(_SIZE.findall(told.rpartition(_END_OF_ARENA)[2]))
    taken, free = (b"current", b"mmap"), (b"fast", b"rest")
    return sum(int(sizes[each]) for each in taken) - sum(int(sizes[each]) for each in free)


def _malloc_info() -> bytes | None:
    """Return what the C library writes of its heap, while a stream of 9 KB lies there."""
    try:
        libc = _libc()
        tell, open_stream = libc.malloc_info, libc.open_memstream
    except (AttributeError, OSError):
        return None
    open_stream.restype = ctypes.c_void_p
    text, length = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(open_stream(ctypes.byref(text), ctypes.byref(length)))
    if stream.value is None:
        return None
    tell(0, stream)
    libc.fclose(stream)
    told = ctypes.string_at(text, length.value)
    libc.free(text)
    return told


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def is_claimed() -> bool:
    """Return whether ``bound_heap`` was called: this process is there for us alone."""
    return _Kept.bounded


def trim_heap() -> None:
    """Give free heap pages back to the kernel, where the process is ours and the C library can."""
    if not is_claimed():
        return
    try:
        _libc().malloc_trim(0)
    except (AttributeError, OSError):
        return


def collect() -> None:
    """Free what refers to itself in circles, in any process: what that maps takes disk and memory."""
    gc.collect()
    trim_heap()


def give_back() -> None:
    """Give all memory back that nothing uses any more, also circles, where the process is ours."""
    if is_claimed():
        collect()


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Look for no garbage meanwhile, where the process is ours.

    Where much is created that stays, Python looks at it again and again: opening a pack of 1,100 pieces
    spent half of its time so. What is freed meanwhile has no references left.
    """
    if not is_claimed():
        yield
        return
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:  # otherwise an outer block turned it off, and turns it on at its end
            gc.enable()


@contextlib.contextmanager
def kept_imports() -> Iterator[None]:
    """Import what stays as long as the process lives: no search for garbage looks at it, then or later."""
    with no_collections():
        yield
        gc.freeze()


# From malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Blocks from this size on are mapped on their own, where no kernels need more of the heap.
LARGE_BYTES = 256 << 10
#: The largest threshold that glibc takes.
_LARGEST_BYTES = 32 << 20
#: What threads leave free stays within reach of all; a second one left 1 to 2 MiB of holes beside it.
_ARENAS = 1
# What ONNX Runtime and malloc add to a block, which else would be as large as those that are mapped.
_ALIGNED_BYTES = 4096
# Free beside the largest block: at the heap's end they are one, and without room for both all is given
# back. A kernel that needs all of its scratch got fresh pages each time (1.3 ms instead of 0.2).
_BESIDE_BYTES = 256 << 10


def bound_heap() -> None:
    """Make the C heap give memory back: one arena, large blocks mapped and unmapped on their own.

    By default every thread may have an arena, and the first large block that is freed raises the
    threshold above which blocks go back to the kernel, up to 32 MiB. ``kept_for_kernels`` raises it.
    """
    _Kept.bounded = True
    _mallopt(_M_ARENA_MAX, _ARENAS)
    _set_thresholds(LARGE_BYTES)


class _Kept:
    """What is reserved for kernels, by size, in a process whose heap is bounded."""

    lock = threading.Lock()
    bounded = False
    sizes: ClassVar[Counter[int]] = Counter()


@contextlib.contextmanager
def kept_for_kernels(n_bytes: int) -> Iterator[None]:
    """Keep up to ``n_bytes`` of free heap, which a plan counts as scratch, for what kernels allocate.

    Where the heap is bounded, a kernel would get fresh pages for each large block otherwise, and touching
    those can take longer than computing: quantised ResNet-50 30 ms instead of 13.
    """
    with _Kept.lock:
        _Kept.sizes[n_bytes] += 1
        _keep_largest()
    try:
        yield
    finally:
        with _Kept.lock:
            _Kept.sizes[n_bytes] -= 1
            _Kept.sizes = +_Kept.sizes
            _keep_largest()


def _keep_largest() -> None:
    largest = max(_Kept.sizes, default=0)
    if _Kept.bounded:
        _set_thresholds(min(max(largest + _ALIGNED_BYTES, LARGE_BYTES), _LARGEST_BYTES))


def _set_thresholds(n_bytes: int) -> None:
    _mallopt(_M_MMAP_THRESHOLD, n_bytes)
    _mallopt(_M_TRIM_THRESHOLD, n_bytes + _BESIDE_BYTES)


def _mallopt(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        _libc().mallopt(option, value)
