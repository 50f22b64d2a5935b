"""Memory of a device as the engine uses it, and address space for activations that engines share."""

import contextlib
import math
import mmap
from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loader.buffers import HUGE_PAGE_BYTES, PAGE_BYTES, Buffer

#: What touches it. staging: the disk and the copy stage; shared: the disk and kernels; own: kernels and
#: the copy stage; scratch: kernels while they run.
Use = Literal["staging", "shared", "own", "scratch"]


class Memory(ABC):
    """``n_bytes`` of zeroed memory at fixed addresses until ``close``."""

    n_bytes: int
    #: Whether the disk can write to it: it has ``host``.
    reachable = True

    @abstractmethod
    def host(self, offset: int, length: int) -> memoryview:
        """Return the bytes [offset, offset + length) for the disk to write to, of reachable memory."""

    @abstractmethod
    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return what kernels are bound to: an array that begins ``offset`` bytes in."""

    def write(self, offset: int, array: NDArray[Any]) -> None:
        """Put ``array``, C-contiguous, at ``offset``; kernels launched later see it."""
        self._view(offset, array.dtype.name, array.shape)[...] = array

    def read(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a copy of what kernels launched so far leave at ``offset``."""
        return self._view(offset, dtype, shape).copy()

    def in_place(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
        """Return what lies at ``offset`` for the host to write and to read between sweeps, until ``close``.

        None: it does so by ``write`` and ``read``.
        """
        return None

    def _view(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        length = math.prod(shape) * np.dtype(dtype).itemsize
        return np.ndarray(shape, dtype, self.host(offset, length))

    def lend(self, offset: int, length: int) -> None:  # noqa: B027  most memory needs no lending
        """Let the disk write to [offset, offset + length); no kernel that uses it is in flight."""

    def reclaim(self, offset: int, length: int) -> None:  # noqa: B027
        """Take what was lent back: kernels launched from now on may use it."""

    def populate(self, offset: int, length: int) -> None:  # noqa: B027  a device has all of its memory
        """Take [offset, offset + length) from the system before it is used; what it holds stays."""

    def discard(self) -> bool:
        """Give what it holds back to the system, where that is possible; return whether it was.

        Addresses stay, and it is zeroed. Nothing uses it meanwhile.
        """
        return False

    def huge_page_bytes(self) -> int:
        """Return how much lies on huge pages."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Give it back; nothing uses it any more."""


class HostMemory(Memory):
    """Anonymous memory of the process; arrays are NumPy's views of it."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._buffer = Buffer(n_bytes)

    def host(self, offset: int, length: int) -> memoryview:
        return self._buffer.bytes[offset : offset + length].data

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return self._buffer.array(offset, dtype, shape)

    def in_place(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return self.array(offset, dtype, shape)

    def populate(self, offset: int, length: int) -> None:
        self._buffer.populate(offset, length)

    def discard(self) -> bool:
        self._buffer.discard()
        return True

    def huge_page_bytes(self) -> int:
        return self._buffer.pages().huge_bytes if self._buffer.huge_pages else 0

    def close(self) -> None:
        self._buffer.close()


def address(view: memoryview) -> int:
    """Return where ``view`` begins."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


# Address space that engines share for activations: what lies in it grows and shrinks, addresses stay.
#
# Kernels are bound to pointers when a model is loaded, so memory must not move when a larger model joins.
# Hence the whole range is reserved at once, which costs nothing (no page has been touched, and
# MAP_NORESERVE keeps it out of the kernel's account), and pages come and go at its end.

# Linux, on every processor that we run on; Python names it from 3.13 on.
_MAP_NORESERVE = 0x4000


class Space:
    """``capacity_bytes`` of addresses, of which the first ``n_bytes`` may be touched.

    Raises:
        OSError: the system does not give as many addresses (a limit on address space).
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.n_bytes = 0
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map = mmap.mmap(-1, max(capacity_bytes, 1) + HUGE_PAGE_BYTES, flags)
        self._skip = -np.frombuffer(self._map, np.uint8).ctypes.data % HUGE_PAGE_BYTES
        self._bytes: NDArray[np.uint8] = np.frombuffer(
            self._map, np.uint8, capacity_bytes, self._skip
        )
        # A huge page over the end would take memory behind it.
        self._advise("MADV_NOHUGEPAGE", 0, _page_end(capacity_bytes))

    def resize(self, n_bytes: int) -> None:
        """Let the first ``n_bytes`` be touched; pages behind them go back, and nothing uses these.

        Raises:
            MemoryError: that is more than was reserved.
        """
        if n_bytes > self.capacity_bytes:
            raise MemoryError(f"{n_bytes} bytes in a space of {self.capacity_bytes}")
        last, now = _page_end(self.n_bytes), _page_end(n_bytes)
        if now > last and n_bytes >= HUGE_PAGE_BYTES:
            self._advise("MADV_HUGEPAGE", 0, now)
        if now < last:
            self._advise("MADV_NOHUGEPAGE", now, last)
            self._map.madvise(mmap.MADV_DONTNEED, self._skip + now, last - now)
        self.n_bytes = n_bytes

    def first(self, n_bytes: int) -> Memory:
        """Return the first ``n_bytes``; closing it gives nothing back, since others lie there, too."""
        return _Part(self._bytes[:n_bytes])

    def _advise(self, advice: str, start: int, end: int) -> None:
        """Say whether bytes [start, end) may lie on huge pages, where there are such pages."""
        with contextlib.suppress(OSError, AttributeError):
            if start < end:
                self._map.madvise(getattr(mmap, advice), self._skip + start, end - start)

    def close(self) -> None:
        """Give everything back (now, or when the last view of it goes)."""
        self._bytes = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):
            self._map.close()


class _Part(Memory):
    def __init__(self, held: NDArray[np.uint8]) -> None:
        self.n_bytes = held.nbytes
        self._held = held

    def host(self, offset: int, length: int) -> memoryview:
        return self._held[offset : offset + length].data

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return np.ndarray(shape, dtype, self._held.data, offset)

    def in_place(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return self.array(offset, dtype, shape)

    def close(self) -> None:
        self._held = np.empty(0, np.uint8)


def _page_end(n_bytes: int) -> int:
    return -(-n_bytes // PAGE_BYTES) * PAGE_BYTES
