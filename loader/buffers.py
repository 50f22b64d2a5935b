"""Aligned anonymous memory, on huge pages where they pay.

One O_DIRECT read into 4 KiB pages pins each of them: reads of 4 MB took three times the CPU that they
take on 2 MB pages (docs/explanation/architecture/reading.md).
"""

import contextlib
import ctypes
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What pages memory really lies on: the kernel is asked for huge ones and may give others.

_SMAPS = Path("/proc/self/smaps")
_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True)
class PageReport:
    """``huge_bytes`` of the ``touched_bytes`` lie on huge pages; ``reason``: why not all of them do."""

    touched_bytes: int
    huge_bytes: int
    reason: str


def report_pages(
    address: int, n_bytes: int, asked: bool, smaps: Path = _SMAPS, policy: Path = _POLICY
) -> PageReport:
    """Return what [address, address + n_bytes) of this process lies on.

    ``asked``: huge pages were asked for. Reads all of ``smaps``, which takes some milliseconds.
    """
    try:
        with smaps.open() as lines:
            touched, huge = count_pages(lines, address, n_bytes)
    except OSError as exc:
        return PageReport(0, 0, f"{smaps}: {exc.strerror or exc}")
    if not touched:
        return PageReport(0, 0, "the memory has not been touched yet")
    return PageReport(touched, huge, "" if huge >= touched else _reason(asked, policy))


def count_pages(lines: Iterable[str], address: int, n_bytes: int) -> tuple[int, int]:
    """Return how many bytes of [address, address + n_bytes) are in memory, and on huge pages.

    The kernel counts whole mappings: of one that begins before or ends behind the range, at most as
    much as overlaps is counted.
    """
    touched = huge = overlap = 0
    for line in lines:
        name, _, value = line.partition(" ")
        if not name.endswith(":"):
            start, _, end = name.partition("-")
            overlap = min(int(end, 16), address + n_bytes) - max(int(start, 16), address)
        elif overlap > 0 and name in {"Rss:", "AnonHugePages:"}:
            counted = min(int(value.split()[0]) << 10, overlap)
            if name == "Rss:":
                touched += counted
            else:
                huge += counted
    return touched, huge


def _reason(asked: bool, policy: Path) -> str:
    if not asked:
        return (
            "huge pages were not asked for: the memory is smaller than one, or the kernel has none"
        )
    try:
        text = policy.read_text()
    except OSError:
        return "the kernel has no transparent huge pages"
    if "[never]" in text:
        return f"{policy} says never"
    return "the kernel had no free huge page when the memory was touched"


HUGE_PAGE_BYTES = 2 << 20
PAGE_BYTES = mmap.PAGESIZE
# From linux/mman.h, since Linux 5.14: pages are there as if they had been written, and hold what they held.
_MADV_POPULATE_WRITE = 23


class Buffer:
    """``n_bytes`` of zeroed memory at a page-aligned (from 2 MiB on: huge-page-aligned) address.

    Memory is taken from the kernel page by page as it is touched. ``close`` gives it back; views
    that outlive the buffer keep it alive instead of dangling. ``huge_pages`` is what the kernel was
    asked for; ``pages`` is what it gave.

    Raises:
        MemoryError: the system has not as much.
    """

    def __init__(self, n_bytes: int, huge_pages: bool = True) -> None:
        self.n_bytes = n_bytes
        self._pages: PageReport | None = None
        self.huge_pages = huge_pages and n_bytes >= HUGE_PAGE_BYTES
        slack = HUGE_PAGE_BYTES if self.huge_pages else 0
        self._map: mmap.mmap | None = _memory(max(n_bytes, 1) + slack)
        start = np.frombuffer(self._map, np.uint8).ctypes.data
        skip = -start % HUGE_PAGE_BYTES if self.huge_pages else 0
        if self.huge_pages:
            self._advise_huge(skip)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, n_bytes, skip)

    def _advise_huge(self, skip: int) -> None:
        assert self._map is not None
        length = -(-self.n_bytes // PAGE_BYTES) * PAGE_BYTES
        try:
            self._map.madvise(mmap.MADV_HUGEPAGE, skip, length)
        except (OSError, AttributeError):  # a kernel without transparent huge pages
            self.huge_pages = False

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    def populate(self, offset: int, length: int) -> None:
        """Take the pages of [offset, offset + length) from the kernel now, as far as it can.

        Python's lock is not held; what the pages hold stays, also where other threads write meanwhile.
        """
        start = (self.address + offset) // PAGE_BYTES * PAGE_BYTES
        end = self.address + min(offset + length, self.n_bytes)
        with contextlib.suppress(AttributeError, OSError):  # another C library
            take = ctypes.CDLL(None).madvise
            take(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_POPULATE_WRITE)

    def discard(self) -> None:
        """Give the pages back to the kernel; from now on the memory is zeroed, at the same address."""
        if self._map is not None:
            start = self.address - np.frombuffer(self._map, np.uint8).ctypes.data
            length = -(-self.n_bytes // PAGE_BYTES) * PAGE_BYTES
            if length:
                self._map.madvise(mmap.MADV_DONTNEED, start, length)

    def pages(self) -> PageReport:
        """Return what the memory lies on: asked of the kernel once, after memory was first touched."""
        if self._pages is None:
            report = report_pages(self.address, self.n_bytes, self.huge_pages)
            if not report.touched_bytes:
                return report
            self._pages = report
        return self._pages

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a view of ``shape`` and ``dtype`` that starts ``offset`` bytes into the buffer."""
        return np.ndarray(shape, dtype, self.bytes.data, offset)

    def close(self) -> None:
        """Give the memory back to the kernel (now, or when the last view of it goes)."""
        self.bytes = np.empty(0, np.uint8)
        if self._map is None:
            return
        with contextlib.suppress(BufferError):  # views are alive: the last of them frees it
            self._map.close()
        self._map = None

    def __repr__(self) -> str:
        pages = "huge pages" if self.huge_pages else "pages"
        return f"<Buffer {self.n_bytes} bytes on {pages}>"


def _memory(n_bytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as exc:
        raise MemoryError(f"no memory for {n_bytes} bytes ({exc.strerror})") from exc
