"""Disks: the real one, and one of a speed whose reads take no core."""

from pathlib import Path

from loader.buffers import PAGE_BYTES, Buffer
from loader.readers.coreless import CHECKED, CorelessReader
from loader.readers.disk import REAL_DISK, paced_disk
from loader.readers.in_memory import MemoryReader


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
