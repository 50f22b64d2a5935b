"""A disk that fails as set up: each fault gives the error that a real file gives, and no other."""

import errno
import os
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from loader.buffers import Buffer
from loader.errors import ChecksumError, LoaderError, ReadError
from loader.pool.jobs import ReadJob, perform
from loader.readers.fakes import FaultyReader, MemoryReader, ReadFault
from loader.readers.files import BufferedReader, open_reader
from loader.readers.interface import Range
from tests.examples import over

BLOCK = 4096
CONTENT = bytes(number % 251 for number in range(4 * BLOCK))


def read(reader: FaultyReader, offset: int = 0, length: int = BLOCK) -> bytes:
    buffer = Buffer(length)
    reader.read_into(offset, buffer.bytes.data)
    return buffer.bytes.tobytes()


def failure(reader: FaultyReader, offset: int = 0, length: int = BLOCK) -> ReadError:
    with pytest.raises(ReadError) as caught:
        read(reader, offset, length)
    return caught.value


def code_of(error: LoaderError) -> int | None:
    cause = error.__cause__
    return cause.errno if isinstance(cause, OSError) else None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(CONTENT)
    return path


def test_io_error_is_the_one_of_a_real_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = BufferedReader(path)
    error = failure(FaultyReader(real, [ReadFault("io error")]), BLOCK)

    def broken(*_args: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(ReadError) as caught:
        real.read_into(BLOCK, memoryview(bytearray(BLOCK)))
    assert (type(error), str(error)) == (type(caught.value), str(caught.value))
    assert code_of(error) == code_of(caught.value) == errno.EIO
    real.close()


@pytest.mark.parametrize("size", [0, 100, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_file_that_ends_early_is_as_a_truncated_one(size: int, path: Path) -> None:
    real = open_reader(path)
    error = failure(FaultyReader(real, [ReadFault("short", size)]), 0, 4 * BLOCK)
    os.truncate(path, size)
    with pytest.raises(ReadError) as caught:
        real.read_into(0, Buffer(4 * BLOCK).bytes.data)
    assert (type(error), str(error)) == (type(caught.value), str(caught.value))
    real.close()


def test_slow_read_takes_so_many_times_as_long() -> None:
    now = [0.0]
    slept: list[float] = []

    def tick(_offset: int, _length: int) -> None:
        now[0] += 0.5

    reader = FaultyReader(
        MemoryReader(CONTENT, tick), [ReadFault("slow", factor=100)], slept.append, lambda: now[0]
    )
    assert read(reader) == CONTENT[:BLOCK]
    assert slept == [0.5 * 99]
    assert read(reader) == CONTENT[:BLOCK]
    assert len(slept) == 1


@given(at=st.integers(0, 4 * BLOCK - 1), offset=st.integers(0, 3), blocks=st.integers(1, 4))
def test_wrong_bytes_are_one_bit_that_the_checksum_finds(at: int, offset: int, blocks: int) -> None:
    start, end = offset * BLOCK, min(offset + blocks, 4) * BLOCK
    reader = FaultyReader(MemoryReader(CONTENT), [ReadFault("wrong bytes", at, at + 1)])
    target = bytearray(end - start)
    checksum = xxhash.xxh3_64_hexdigest(CONTENT[start:end])
    ranges = (Range(start, end - start, checksum),)
    job = ReadJob(reader, ranges, memoryview(target), True, lambda _error, _seconds: None)
    outcome = perform(job)
    flipped = [one ^ other for one, other in zip(target, CONTENT[start:end], strict=True)]
    if start <= at < end:
        assert type(outcome.error) is ChecksumError
        assert [bits for bits in flipped if bits] == [1]
        assert flipped[at - start] == 1
    else:
        assert outcome.error is None
        assert not any(flipped)
    assert reader.struck == [int(start <= at < end)]


def test_disk_that_disappears_stays_away() -> None:
    reader = FaultyReader(MemoryReader(CONTENT), [ReadFault("gone", 2 * BLOCK)])
    reader.check()
    assert read(reader) == CONTENT[:BLOCK]
    for offset in (2, 0, 1):
        error = failure(reader, offset * BLOCK)
        assert code_of(error) == errno.ENODEV
        assert str(error).endswith("No such device")
    with pytest.raises(ReadError, match="No such device"):
        reader.check()
    assert reader.struck == [1]


@over("times, failures", [(1, 1), (3, 3), (None, 5)])
def test_faults_strike_so_many_times(times: int | None, failures: int) -> None:
    reader = FaultyReader(MemoryReader(CONTENT), [ReadFault("io error", times=times)])
    for number in range(5):
        if number < failures:
            assert code_of(failure(reader)) == errno.EIO
        else:
            assert read(reader) == CONTENT[:BLOCK]
    assert reader.struck == [failures]


@given(
    start=st.integers(0, 100),
    length=st.integers(0, 100),
    offset=st.integers(0, 100),
    end=st.none() | st.integers(0, 200),
)
def test_faults_strike_reads_that_touch_their_range(
    start: int, length: int, offset: int, end: int | None
) -> None:
    bad = set(range(offset, 201 if end is None else end))
    touched = bool(bad & set(range(start, start + length)))
    assert ReadFault("io error", offset, end).touches(start, length) == touched


def test_first_fault_that_strikes_hides_the_others() -> None:
    faults = [ReadFault("io error", BLOCK), ReadFault("wrong bytes"), ReadFault("gone", 3 * BLOCK)]
    reader = FaultyReader(MemoryReader(CONTENT), faults)
    assert code_of(failure(reader, BLOCK)) == errno.EIO
    assert read(reader) != CONTENT[:BLOCK]
    assert read(reader) == CONTENT[:BLOCK]
    assert code_of(failure(reader, 3 * BLOCK)) == errno.ENODEV
    assert reader.struck == [1, 1, 1]


def test_it_looks_like_the_reader_it_wraps(path: Path) -> None:
    real = open_reader(path)
    reader = FaultyReader(real, [])
    assert (reader.kind, reader.name, reader.alignment) == (real.kind, str(path), real.alignment)
    assert read(reader, BLOCK) == CONTENT[BLOCK : 2 * BLOCK]
    reader.check()
    reader.close()
    with pytest.raises(LoaderError, match="reader closed"):
        reader.check()
