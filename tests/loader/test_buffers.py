"""Aligned memory that outlives its buffer where a view of it is left."""

import gc
import mmap
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.buffers import HUGE_PAGE_BYTES, PAGE_BYTES, Buffer, count_pages, report_pages
from tests.examples import over

# What memory lies on, from the kernel's own words and from made ones.


SMAPS = """\
10000-20000 rw-p 00000000 00:00 0
Size:                 64 kB
Rss:                  32 kB
AnonHugePages:         0 kB
7f0000200000-7f0000800000 rw-p 00000000 00:00 0
Rss:                6144 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac hg
7f0000a00000-7f0000c00000 rw-p 00000000 00:00 0 [heap]
Rss:                2048 kB
AnonHugePages:      2048 kB
"""
START = 0x7F0000200000
MIB = 1 << 20


@over(
    "address, n_bytes, expected",
    [
        (START, 6 * MIB, (6 * MIB, 4 * MIB)),
        (START, 2 * MIB, (2 * MIB, 2 * MIB)),  # of a mapping merged with a neighbour
        (START + 4 * MIB, 8 * MIB, (4 * MIB, 4 * MIB)),  # over a hole
        (0x10000, 0x10000, (32 << 10, 0)),
        (0x20000, 4096, (0, 0)),
    ],
)
def test_bytes_of_a_range_are_counted(
    address: int, n_bytes: int, expected: tuple[int, int]
) -> None:
    assert count_pages(SMAPS.splitlines(keepends=True), address, n_bytes) == expected


@pytest.mark.parametrize(
    ("address", "asked", "policy", "reason"),
    [
        (START + 8 * MIB, True, "always [madvise] never", ""),
        (START, True, "always [madvise] never", "no free huge page"),
        (START, True, "always madvise [never]", "says never"),
        (START, True, None, "has no transparent huge pages"),
        (START, False, "always [madvise] never", "not asked for"),
        (START + 12 * MIB, True, "always [madvise] never", "not been touched"),
    ],
)
def test_fallback_has_a_reason(
    address: int, asked: bool, policy: str | None, reason: str, tmp_path: Path
) -> None:
    smaps, enabled = tmp_path / "smaps", tmp_path / "enabled"
    smaps.write_text(SMAPS)
    if policy is not None:
        enabled.write_text(policy)
    report = report_pages(address, 6 * MIB, asked, smaps, enabled)
    assert reason in report.reason
    assert bool(report.reason) == bool(reason)


def test_missing_smaps_is_a_reason(tmp_path: Path) -> None:
    report = report_pages(0, 1, True, tmp_path / "none")
    assert (report.touched_bytes, report.huge_bytes) == (0, 0)
    assert "No such file" in report.reason


@pytest.mark.parametrize("huge_pages", [True, False])
def test_buffer_tells_what_it_lies_on_once_it_was_touched(huge_pages: bool) -> None:
    buffer = Buffer(4 * HUGE_PAGE_BYTES, huge_pages)
    buffer.bytes[:] = 1
    report = buffer.pages()
    assert report.touched_bytes == buffer.n_bytes
    assert 0 <= report.huge_bytes <= report.touched_bytes
    assert (report.huge_bytes == report.touched_bytes) == (report.reason == "")
    assert buffer.pages() is report  # asked once
    buffer.close()


def test_untouched_buffer_is_asked_again() -> None:
    buffer = Buffer(HUGE_PAGE_BYTES)
    assert buffer.pages().touched_bytes == 0
    buffer.bytes[:] = 1
    assert buffer.pages().touched_bytes == HUGE_PAGE_BYTES
    buffer.close()


SIZES = [1, 100, PAGE_BYTES, PAGE_BYTES + 1, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES]
SIZES += [HUGE_PAGE_BYTES + 1, 5 << 20]


@over("n_bytes", [0, *SIZES])
@over("huge_pages", [True, False])
def test_memory_is_aligned_zeroed_and_writable(n_bytes: int, huge_pages: bool) -> None:
    buffer = Buffer(n_bytes, huge_pages)
    wanted = HUGE_PAGE_BYTES if huge_pages and n_bytes >= HUGE_PAGE_BYTES else PAGE_BYTES
    assert buffer.address % wanted == 0
    assert buffer.bytes.shape == (n_bytes,)
    assert not buffer.bytes.any()
    buffer.bytes[:] = 255
    assert buffer.bytes.all()
    assert str(n_bytes) in repr(buffer)
    buffer.close()


def test_more_memory_than_there_can_be_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match=f"no memory for {1 << 60}"):
        Buffer(1 << 60, huge_pages=False)


def test_kernel_without_huge_pages_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    buffer = Buffer(HUGE_PAGE_BYTES)
    assert not buffer.huge_pages
    assert buffer.address % HUGE_PAGE_BYTES == 0
    assert repr(buffer) == f"<Buffer {HUGE_PAGE_BYTES} bytes on pages>"
    buffer.close()


@given(
    n_bytes=st.integers(0, 4096),
    offset=st.integers(0, 4096),
    dtype=st.sampled_from(["uint8", "int16", "float32", "float64"]),
    count=st.integers(0, 600),
)
def test_arrays_lie_inside_or_are_refused(
    n_bytes: int, offset: int, dtype: str, count: int
) -> None:
    buffer = Buffer(n_bytes)
    if offset + count * np.dtype(dtype).itemsize > n_bytes:
        with pytest.raises((TypeError, ValueError)):
            buffer.array(offset, dtype, (count,))
    else:
        array = buffer.array(offset, dtype, (count,))
        assert array.ctypes.data == buffer.address + offset or not array.nbytes
        array[:] = 1
        assert np.count_nonzero(buffer.bytes) >= count
        del array
    buffer.close()


def test_views_share_memory() -> None:
    buffer = Buffer(64)
    buffer.array(8, "float32", (2, 3))[1, 2] = 1.0
    assert buffer.bytes[8 + 20 : 8 + 24].view(np.float32)[0] == 1.0
    buffer.close()


@over("n_bytes", SIZES)
def test_views_outlive_their_buffer(n_bytes: int) -> None:
    buffer = Buffer(n_bytes)
    view = buffer.array(0, "uint8", (n_bytes,))
    part = view[n_bytes // 2 :]
    buffer.bytes[:] = 7
    buffer.close()
    assert buffer.bytes.size == 0
    assert (view == 7).all()
    del view
    part[:] = 9
    assert (part == 9).all()


def test_last_view_frees_the_memory() -> None:
    buffer = Buffer(1 << 20)
    assert buffer._map is not None
    freed = weakref.ref(buffer._map)
    view = buffer.array(0, "uint8", (16,))
    buffer.close()
    gc.collect()
    assert freed() is not None
    del view
    gc.collect()
    assert freed() is None


@given(
    offset=st.integers(0, 5 << 20),
    length=st.integers(0, 6 << 20),
    written=st.integers(0, (5 << 20) - 1),
    huge_pages=st.booleans(),
)
def test_what_is_taken_from_the_system_holds_what_it_held(
    offset: int, length: int, written: int, huge_pages: bool
) -> None:
    buffer = Buffer(5 << 20, huge_pages)
    buffer.bytes[written] = 7
    buffer.populate(offset, length)
    assert buffer.bytes.nonzero()[0].tolist() == [written]
    buffer.close()


@pytest.mark.parametrize("huge_pages", [True, False])
def test_pages_that_are_asked_for_are_there(huge_pages: bool) -> None:
    buffer = Buffer(5 << 20, huge_pages)
    buffer.populate(0, 1)
    if not report_pages(buffer.address, buffer.n_bytes, huge_pages).touched_bytes:
        pytest.skip("a kernel before Linux 5.14")
    buffer.populate(0, buffer.n_bytes)
    assert report_pages(buffer.address, buffer.n_bytes, huge_pages).touched_bytes == 5 << 20
    buffer.close()


def test_close_gives_memory_back_at_once_and_may_be_repeated() -> None:
    buffer = Buffer(1 << 20)
    memory = buffer._map
    assert memory is not None
    buffer.close()
    assert memory.closed
    buffer.close()
    assert buffer.bytes.size == 0
