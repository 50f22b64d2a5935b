"""Disks: the real one, and one of a speed whose reads take no core."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.buffers import PAGE_BYTES, Buffer
from loader.readers.disk import CHECKED, REAL_DISK, CorelessReader, Pace, PacedReader, paced_disk
from loader.readers.fakes import MemoryReader


def test_what_is_brought_is_right_until_it_was_checked() -> None:
    reader = CorelessReader(MemoryReader(b"abcdef"))
    for _ in range(CHECKED):
        target = bytearray(2)
        reader.read_into(2, memoryview(target))
        assert target == b"cd"
    target = bytearray(b"--")
    reader.read_into(2, memoryview(target))
    assert target == b"--"
    reader.read_into(4, memoryview(target))
    assert target == b"ef"


def test_disks(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"w" * PAGE_BYTES)
    paced = paced_disk(1e9)
    assert (REAL_DISK.bytes_per_second, paced.bytes_per_second) == (None, 1e9)
    cases = [(REAL_DISK.open, b"w"), (paced.open, b"w"), (paced.open_for_timing, b"\0")]
    for opens, expected in cases:
        buffer = Buffer(PAGE_BYTES)
        buffer.bytes[:] = 0
        reader = opens(path)
        reader.read_into(0, buffer.bytes.data)
        assert bytes(buffer.bytes[:1]) == expected
        reader.check()
        reader.close()
        buffer.close()


# A reader with the speed of a disk.


class Time:
    """Stands still but for sleepers."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=20), st.floats(1e3, 1e10))
def test_bytes_come_at_the_speed_of_the_disk(lengths: list[int], speed: float) -> None:
    time = Time()
    inner = MemoryReader(bytes(1 << 20))
    reader = PacedReader(inner, speed, time.sleep, lambda: time.now)
    for length in lengths:
        reader.read_into(0, memoryview(bytearray(length)))
    assert time.now - 100 == pytest.approx(sum(lengths) / speed, rel=1e-3, abs=1e-9)


def test_idle_time_is_not_caught_up() -> None:
    time = Time()
    reader = PacedReader(MemoryReader(bytes(1000)), 1000, time.sleep, lambda: time.now)
    reader.read_into(0, memoryview(bytearray(1000)))
    time.now += 50
    before = time.now
    reader.read_into(0, memoryview(bytearray(1000)))
    assert time.now - before == pytest.approx(1.0)


def test_the_rest_is_the_readers_own() -> None:
    inner = MemoryReader(b"abc")
    reader = PacedReader(inner, 1e9)
    target = bytearray(3)
    reader.read_into(0, memoryview(target))
    assert (bytes(target), reader.kind, reader.name, reader.alignment) == (
        b"abc",
        "memory",
        "memory",
        1,
    )
    reader.check()
    reader.close()
    assert inner.closed
    with pytest.raises(ValueError, match="nothing would ever come"):
        PacedReader(inner, 0)


def test_files_of_one_pace_lie_on_one_disk() -> None:
    time = Time()
    pace = Pace(1000.0, lambda: time.now)
    readers = [PacedReader(MemoryReader(bytes(1000)), pace, time.sleep) for _ in range(2)]
    for reader in readers:
        reader.read_into(0, memoryview(bytearray(500)))
    assert time.now - 100 == pytest.approx(1.0)
