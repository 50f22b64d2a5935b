"""What memory lies on, from the kernel's own words and from made ones."""

from pathlib import Path

import pytest

from loader.buffers import HUGE_PAGE_BYTES, Buffer
from loader.huge_pages import count_pages, report_pages

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


@pytest.mark.parametrize(
    ("address", "n_bytes", "expected"),
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
