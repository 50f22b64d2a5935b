"""Address space that engines share for activations: what lies in it grows and shrinks, addresses stay.

Kernels are bound to pointers when a model is loaded, so memory must not move when a larger model joins.
Hence the whole range is reserved at once, which costs nothing (no page has been touched, and MAP_NORESERVE
keeps it out of the kernel's account), and pages come and go at its end.
"""

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.buffers import HUGE_PAGE_BYTES, PAGE_BYTES
from pipeline.devices.memory import Memory

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
