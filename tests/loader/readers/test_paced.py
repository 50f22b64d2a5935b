"""A reader with the speed of a disk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.readers.in_memory import MemoryReader
from loader.readers.paced import Pace, PacedReader


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
