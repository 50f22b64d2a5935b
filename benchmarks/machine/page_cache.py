"""Files out of the page cache, and whether they are.

A page that another process has mapped stays; so do files in memory (tmpfs), where there is no disk below.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FAILED = ctypes.c_void_p(-1).value


def drop(files: Iterable[Path]) -> int:
    """Write ``files`` out and take them out of the page cache; return the bytes that stay there."""
    left = 0
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            left += _cached(descriptor)
        finally:
            os.close(descriptor)
    return left


def cached_bytes(files: Iterable[Path]) -> int:
    """Return how much of ``files`` is in the page cache, in whole pages."""
    found = 0
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            found += _cached(descriptor)
        finally:
            os.close(descriptor)
    return found


def _cached(descriptor: int) -> int:
    size = os.fstat(descriptor).st_size
    if not size:
        return 0
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    # Not mmap.mmap: it does not give the address of what is mapped to be read only.
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        if _LIBC.mincore(address, size, pages):
            raise OSError(ctypes.get_errno(), "mincore")
    finally:
        _LIBC.munmap(address, size)
    return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE


def files_below(*places: Path) -> list[Path]:
    """Return all files in ``places``, which are files or folders; links are left out."""
    found: list[Path] = []
    for place in places:
        candidates = place.rglob("*") if place.is_dir() else [place]
        found += [path for path in candidates if path.is_file() and not path.is_symlink()]
    return found
