"""Reads through io_uring: the same promises as those on threads. Skips where the kernel refuses it."""

import gc
import os
import queue
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from loader.buffers import Buffer
from loader.errors import ChecksumError, ClosedError, LoaderError, ReadError
from loader.pool.pool import PoolClient, ReadJob, ReadPool
from loader.pool.probe import probe_uring
from loader.readers.files import BufferedReader, open_reader
from loader.readers.in_memory import MemoryReader
from loader.readers.reader import Range, Reader

BLOCK = 4096
CONTENT = b"".join(number.to_bytes(4, "little") for number in range(64 * BLOCK // 4))
WAIT_SECONDS = 30

Answer = tuple[int, LoaderError | None, float]


class PlainFile(BufferedReader):
    """A file that goes through the ring on any file system."""

    @property
    def descriptor(self) -> int | None:
        return self._descriptor


class Pipe(MemoryReader):
    """Reads of it hang until bytes are written to it."""

    def __init__(self) -> None:
        super().__init__(b"")
        self.end, self.source = os.pipe()

    @property
    def descriptor(self) -> int | None:
        return self.end

    def give(self, n_bytes: int) -> None:
        os.write(self.source, bytes(n_bytes))


class Jobs:
    def __init__(self) -> None:
        self.ended: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.buffers: dict[int, Buffer] = {}

    def job(
        self,
        number: int,
        reader: Reader,
        blocks: int = 1,
        client: PoolClient | None = None,
        checksum: str | None = None,
        first: int | None = None,
    ) -> ReadJob:
        start, length = (number if first is None else first) * BLOCK, blocks * BLOCK
        self.buffers[number] = Buffer(length)
        data = CONTENT[start : start + length]
        ranges = (Range(start, length, checksum or xxhash.xxh3_64_hexdigest(data)),)
        return ReadJob(
            reader,
            ranges,
            self.buffers[number].bytes.data,
            not isinstance(reader, Pipe),
            lambda error, seconds: self.ended.put((number, error, seconds)),
            client,
        )

    def next(self) -> Answer:
        return self.ended.get(timeout=WAIT_SECONDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def pool() -> Iterator[ReadPool]:
    probe = probe_uring()
    if not probe.works:
        pytest.skip(probe.reason)
    pool = ReadPool(4, "io_uring")
    yield pool
    pool.close()


def test_bytes_arrive_from_files_and_from_memory(pool: ReadPool, path: Path) -> None:
    jobs = Jobs()
    readers = [open_reader(path), PlainFile(path), BufferedReader(path), MemoryReader(CONTENT)]
    for number in range(32):
        pool.submit(jobs.job(number, readers[number % 4], blocks=1 + number % 3))
    answers = {number: error for number, error, _ in (jobs.next() for _ in range(32))}
    assert answers == dict.fromkeys(range(32))
    for number, buffer in jobs.buffers.items():
        start = number * BLOCK
        assert buffer.bytes.tobytes() == CONTENT[start : start + buffer.n_bytes]
    pool.close()
    figures = pool.statistics()
    assert (figures.kind, figures.reason) == ("io_uring", "")
    assert figures.figures.reads == 32
    assert figures.figures.cpu_seconds > 0
    for reader in readers:
        reader.close()


def test_errors_are_those_of_the_threads(pool: ReadPool, path: Path, tmp_path: Path) -> None:
    file, closed = PlainFile(path), open_reader(path)
    closed.close()
    folder = PlainFile(tmp_path)
    jobs = Jobs()
    pool.submit(jobs.job(0, file, checksum="0" * 16))
    pool.submit(jobs.job(1, file, blocks=4, first=62))
    pool.submit(jobs.job(2, closed))
    pool.submit(jobs.job(3, folder))
    errors = {number: error for number, error, _ in (jobs.next() for _ in range(4))}
    assert type(errors[0]) is ChecksumError
    assert type(errors[1]) is ReadError
    assert str(errors[1]) == (
        f"{path}: ends at {64 * BLOCK}, {2 * BLOCK} bytes short of [{62 * BLOCK}, {66 * BLOCK})"
    )
    assert type(errors[2]) is ClosedError
    assert type(errors[3]) is ReadError
    assert str(errors[3]) == f"{tmp_path}: bytes [{3 * BLOCK}, {4 * BLOCK}): Is a directory"
    assert isinstance(errors[3].__cause__, OSError)


def test_short_reads_go_on_where_they_stopped(pool: ReadPool) -> None:
    pipe, jobs = Pipe(), Jobs()
    pool.submit(jobs.job(0, pipe, blocks=2))
    for part in (1, BLOCK, BLOCK - 1):
        assert jobs.ended.empty()
        pipe.give(part)
    assert jobs.next()[:2] == (0, None)


def test_one_client_is_first_come_first_served_and_none_blocks_another(path: Path) -> None:
    if not probe_uring().works:
        pytest.skip(probe_uring().reason)
    pool, jobs = ReadPool(2, "io_uring", hung_seconds=0.0), Jobs()
    pipe, file = Pipe(), PlainFile(path)
    hanging, other = pool.client("hanging"), pool.client("other", depth=1)
    for number in range(50, 54):
        pool.submit(jobs.job(number, pipe, client=hanging))
    for number in range(20):
        pool.submit(jobs.job(number, file, client=other))
    assert [jobs.next()[0] for _ in range(20)] == list(range(20))
    assert {client.name for client in pool.statistics().clients if client.stuck} == {"hanging"}
    pipe.give(4 * BLOCK)
    assert sorted(jobs.next()[0] for _ in range(4)) == [50, 51, 52, 53]
    pool.close()
    assert pool.statistics().in_flight == 0
    file.close()


def test_close_leaves_hung_reads_behind_and_answers_all_others(path: Path) -> None:
    if not probe_uring().works:
        pytest.skip(probe_uring().reason)
    pool = ReadPool(1, "io_uring", hung_seconds=0.0, close_seconds=0.0)
    pipe, jobs = Pipe(), Jobs()
    for number in range(3):
        pool.submit(jobs.job(number, pipe))
    pool.close()
    assert sorted(jobs.next()[0] for _ in range(2)) == [1, 2]
    assert jobs.ended.empty()
    pipe.give(BLOCK)
    assert jobs.next()[:2] == (0, None)


def test_thread_wakes_for_jobs_and_their_ends_alone(path: Path) -> None:
    if not probe_uring().works:
        pytest.skip(probe_uring().reason)
    pool, jobs, file = ReadPool(2, "io_uring", hung_seconds=1e6), Jobs(), PlainFile(path)
    for number in range(20):
        pool.submit(jobs.job(number, file))
        assert jobs.next()[1] is None
    pool.close()
    assert pool.statistics().wake_ups <= 2 * 20 + 3
    file.close()


def test_waiting_thread_keeps_no_buffer_alive(pool: ReadPool, path: Path) -> None:
    file, jobs = PlainFile(path), Jobs()
    client = pool.client("one at a time", depth=1)
    jobs_alive = []
    for number in range(3):
        job = jobs.job(number, file, client=client)
        jobs_alive.append(weakref.ref(job))
        pool.submit(job)
        del job
        assert jobs.next()[1] is None
    gc.collect()
    assert jobs_alive[0]() is None  # the thread has let go of it before it began the next
    assert jobs_alive[1]() is None
    file.close()


# Where it does not work


def test_without_the_package_the_threads_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liburing", None)
    assert "liburing cannot be imported" in probe_uring().reason
    pool, jobs = ReadPool(2, "io_uring"), Jobs()
    pool.submit(jobs.job(0, MemoryReader(CONTENT)))
    assert jobs.next()[:2] == (0, None)
    pool.close()
    figures = pool.statistics()
    assert figures.kind == "preadv"
    assert "liburing" in figures.reason
