"""Address space that grows and shrinks: what was given back is as if it had never been used."""

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.devices.device_memory import Space

MIB = 1 << 20


@pytest.fixture
def space() -> Iterator[Space]:
    made = Space(64 * MIB)
    yield made
    made.close()


def flags(space: Space, offset: int) -> set[str]:
    """Return what the kernel was advised about the page at ``offset`` (proc_pid_smaps(5), VmFlags)."""
    first = space.first(1).host(0, 1)
    return _flags_at(ctypes.addressof(ctypes.c_char.from_buffer(first)) + offset)


def _flags_at(address: int) -> set[str]:
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        start, dash, end = line.split(" ")[0].partition("-")
        if dash and ":" not in start:
            inside = int(start, 16) <= address < int(end, 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError(f"nothing is mapped at {address:x}")


def _hears_advice() -> bool:
    """Return whether advice reaches the kernel, which may have no huge pages; an emulator keeps it."""
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        return False
    with mmap.mmap(-1, MIB) as probe:
        probe.madvise(mmap.MADV_HUGEPAGE)
        first = ctypes.c_char.from_buffer(probe)
        told = _flags_at(ctypes.addressof(first))
        del first
    return "hg" in told


@pytest.mark.skipif(not _hears_advice(), reason="no huge pages here")
def test_only_what_may_be_touched_lies_on_huge_pages(space: Space) -> None:
    """A huge page that reaches beyond the end would take memory that is not reserved."""
    for n_bytes in (16 * MIB, 5 * MIB, 9 * MIB, 64 * MIB, 3 * MIB):
        space.resize(n_bytes)
        assert "hg" in flags(space, n_bytes - 1)
        if n_bytes < space.capacity_bytes:
            assert "hg" not in flags(space, n_bytes)
            assert "hg" not in flags(space, space.capacity_bytes - 1)
