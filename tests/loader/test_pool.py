"""The read pool and the reader in memory: every job is answered once, whatever happens."""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import ChecksumError, ClosedError, LoaderError, ReadError
from loader.memory import Hook, MemoryReader
from loader.pool import ReadJob, ReadPool
from loader.reader import Range

CONTENT = bytes(range(256)) * 16
PART = 256
WAIT_SECONDS = 30  # how long a broken pool may hang a test


def ranges(offset: int, *lengths: int, content: bytes = CONTENT) -> tuple[Range, ...]:
    found = []
    for length in lengths:
        data = content[offset : offset + length]
        found.append(Range(offset, length, xxhash.xxh3_64_hexdigest(data)))
        offset += length
    return tuple(found)


class Jobs:
    """Makes jobs and keeps what they report."""

    def __init__(self) -> None:
        self.ended: queue.SimpleQueue[tuple[int, LoaderError | None, float]] = queue.SimpleQueue()
        self.targets: dict[int, bytearray] = {}

    def job(
        self, number: int, reader: MemoryReader, parts: tuple[Range, ...], verify: bool = True
    ) -> ReadJob:
        self.targets[number] = bytearray(sum(part.length for part in parts))
        return ReadJob(
            reader,
            parts,
            memoryview(self.targets[number]),
            verify,
            lambda error, seconds: self.ended.put((number, error, seconds)),
        )

    def next(self) -> tuple[int, LoaderError | None, float]:
        return self.ended.get(timeout=WAIT_SECONDS)


@pytest.fixture
def pool() -> Iterator[ReadPool]:
    pool = ReadPool(2)
    yield pool
    pool.close()


def raising(error: Exception) -> Hook:
    def hook(_offset: int, _length: int) -> None:
        raise error

    return hook


# The reader in memory


@given(content=st.binary(max_size=50), offset=st.integers(0, 60), length=st.integers(0, 60))
def test_memory_reader_reads_or_falls_short(content: bytes, offset: int, length: int) -> None:
    reader = MemoryReader(content)
    target = bytearray(length)
    if length and offset + length > len(content):
        with pytest.raises(ReadError, match="bytes short"):
            reader.read_into(offset, memoryview(target))
    else:
        reader.read_into(offset, memoryview(target))
        assert target == content[offset : offset + length]
    assert reader.in_progress == 0
    reader.close()
    with pytest.raises(ClosedError):
        reader.read_into(0, memoryview(target))


def test_hook_sees_every_read_before_it_happens() -> None:
    seen: list[tuple[int, int]] = []
    reader = MemoryReader(CONTENT, lambda offset, length: seen.append((offset, length)))
    target = bytearray(8)
    reader.read_into(16, memoryview(target))
    assert seen == [(16, 8)]
    assert target == CONTENT[16:24]


@pytest.mark.parametrize("error", [ReadError("bad block"), ValueError("a bug")])
def test_hook_may_fail_a_read(error: Exception) -> None:
    reader = MemoryReader(CONTENT, raising(error))
    with pytest.raises(type(error)):
        reader.read_into(0, memoryview(bytearray(8)))
    assert reader.in_progress == 0


def test_closing_during_a_read_is_a_fault_of_the_test() -> None:
    reader = MemoryReader(CONTENT)
    reader.hook = lambda _offset, _length: reader.close()
    with pytest.raises(AssertionError, match="1 reads in progress"):
        reader.read_into(0, memoryview(bytearray(8)))


# The pool


def test_bytes_arrive_and_the_job_is_answered(pool: ReadPool) -> None:
    jobs = Jobs()
    pool.submit(jobs.job(0, MemoryReader(CONTENT), ranges(512, 256, 64, 1)))
    number, error, seconds = jobs.next()
    assert (number, error) == (0, None)
    assert seconds >= 0
    assert jobs.targets[0] == CONTENT[512 : 512 + 321]


@given(
    threads=st.integers(1, 4),
    kinds=st.lists(st.sampled_from(["good", "damaged", "short", "broken", "closed"]), max_size=30),
)
def test_every_job_is_answered_exactly_once(threads: int, kinds: list[str]) -> None:
    closed = MemoryReader(CONTENT)
    closed.close()
    readers = {
        "good": MemoryReader(CONTENT),
        "damaged": MemoryReader(bytes(len(CONTENT))),
        "short": MemoryReader(CONTENT[:100]),
        "broken": MemoryReader(CONTENT, raising(RuntimeError("a bug"))),
        "closed": closed,
    }
    expected = {
        "good": type(None),
        "damaged": ChecksumError,
        "short": ReadError,
        "broken": LoaderError,
        "closed": ClosedError,
    }
    pool, jobs = ReadPool(threads), Jobs()
    for number, kind in enumerate(kinds):
        pool.submit(jobs.job(number, readers[kind], ranges(PART, PART)))
    pool.close()  # finishes what it accepted
    answers = [jobs.ended.get_nowait() for _ in kinds]
    assert jobs.ended.empty()
    assert Counter(number for number, _, _ in answers) == Counter(range(len(kinds)))
    for number, error, _ in answers:
        assert type(error) is expected[kinds[number]]
    assert all(reader.in_progress == 0 for reader in readers.values())


@pytest.mark.parametrize("bad", range(3))
def test_damaged_range_is_named(bad: int, pool: ReadPool) -> None:
    damaged = bytearray(CONTENT)
    damaged[bad * PART + 7] ^= 4
    jobs = Jobs()
    parts = ranges(0, PART, PART, PART)
    pool.submit(jobs.job(0, MemoryReader(bytes(damaged)), parts))
    _, error, _ = jobs.next()
    assert type(error) is ChecksumError
    assert str(error).startswith(
        f"weights.bin: bytes [{bad * PART}, {(bad + 1) * PART}) are damaged"
    )
    pool.submit(jobs.job(1, MemoryReader(bytes(damaged)), parts, verify=False))
    assert jobs.next()[:2] == (1, None)


def test_fault_of_a_reader_is_an_answer_and_no_end(pool: ReadPool) -> None:
    jobs = Jobs()
    for number in range(5):  # more than there are threads
        pool.submit(jobs.job(number, MemoryReader(CONTENT, raising(KeyError("x"))), ranges(0, 8)))
        _, error, _ = jobs.next()
        assert type(error) is LoaderError
        assert "KeyError('x')" in str(error)
    pool.submit(jobs.job(9, MemoryReader(CONTENT), ranges(0, 8)))
    assert jobs.next()[:2] == (9, None)


def test_fault_of_a_callback_ends_no_thread(
    pool: ReadPool, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(_error: LoaderError | None, _seconds: float) -> None:
        raise RuntimeError("a bug in the caller")

    jobs = Jobs()
    for _ in range(4):  # more than there are threads
        target = memoryview(bytearray(8))
        pool.submit(ReadJob(MemoryReader(CONTENT), ranges(0, 8), target, False, faulty))
    pool.submit(jobs.job(1, MemoryReader(CONTENT), ranges(0, 8)))
    assert jobs.next()[:2] == (1, None)
    pool.close()
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 4


class Gate:
    """A hook that holds reads until it is opened, and tells how many wait."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, _offset: int, _length: int) -> None:
        self.arrived.release()
        assert self.open.wait(WAIT_SECONDS)


def in_thread(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_as_many_reads_at_once_as_there_are_threads() -> None:
    pool, jobs, gate = ReadPool(3), Jobs(), Gate()
    reader = MemoryReader(CONTENT, gate)
    for number in range(5):
        pool.submit(jobs.job(number, reader, ranges(0, 8)))
    for _ in range(3):
        assert gate.arrived.acquire(timeout=WAIT_SECONDS)
    assert reader.in_progress == 3
    assert not gate.arrived.acquire(blocking=False)
    gate.open.set()
    pool.close()
    assert sorted(jobs.next()[0] for _ in range(5)) == list(range(5))


def test_one_thread_reads_in_order() -> None:
    pool, jobs = ReadPool(1), Jobs()
    for number in range(20):
        pool.submit(jobs.job(number, MemoryReader(CONTENT), ranges(number, 8)))
    assert [jobs.next()[0] for _ in range(20)] == list(range(20))
    pool.close()


def test_close_finishes_what_was_accepted_and_refuses_more() -> None:
    pool, jobs, gate = ReadPool(2), Jobs(), Gate()
    reader = MemoryReader(CONTENT, gate)
    for number in range(10):
        pool.submit(jobs.job(number, reader, ranges(0, 8)))
    assert gate.arrived.acquire(timeout=WAIT_SECONDS)
    closing = in_thread(pool.close)
    gate.open.set()
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive()
    assert sorted(jobs.next()[0] for _ in range(10)) == list(range(10))
    with pytest.raises(ClosedError, match="read pool closed"):
        pool.submit(jobs.job(11, reader, ranges(0, 8)))
    assert jobs.ended.empty()
    pool.close()


def test_close_does_not_overtake_a_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was found acceptable is queued before the pool can begin to close."""
    pool, jobs = ReadPool(1), Jobs()
    put = pool._queue.put
    held: list[bool] = []

    def close_meanwhile(job: ReadJob | None) -> None:
        if job is not None:
            held.append(pool._lock.locked())
            if not held[-1]:
                pool.close()
        put(job)

    monkeypatch.setattr(pool._queue, "put", close_meanwhile)
    pool.submit(jobs.job(0, MemoryReader(CONTENT), ranges(0, 8)))
    assert jobs.next()[:2] == (0, None)
    assert held == [True]
    pool.close()


def test_threads_end_with_the_pool() -> None:
    pool = ReadPool(3)
    threads = pool._threads
    assert all(thread.is_alive() and thread.daemon for thread in threads)
    pool.close()
    assert not any(thread.is_alive() for thread in threads)


def test_idle_threads_wait_on_the_queue_without_a_timeout() -> None:
    """Nothing polls: each thread asks once for work and blocks until there is some."""
    waiting = threading.Semaphore(0)

    class Watched(ReadPool):
        def _work(self) -> None:
            get = self._queue.get

            def watched(*args: object, **kwargs: object) -> ReadJob | None:
                calls.append((args, kwargs))
                waiting.release()
                return get()

            self._queue.get = watched  # type: ignore[method-assign]
            super()._work()

    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []
    pool, jobs = Watched(1), Jobs()
    assert waiting.acquire(timeout=WAIT_SECONDS)
    pool.submit(jobs.job(0, MemoryReader(CONTENT), ranges(0, 8)))
    jobs.next()
    assert waiting.acquire(timeout=WAIT_SECONDS)
    assert calls == [((), {})] * 2  # block=True, timeout=None
    pool.close()


def test_waiting_threads_keep_no_buffer_alive() -> None:
    """What a finished job refers to goes with it, also while the thread waits for the next."""
    import weakref

    class Target(bytearray):
        pass

    pool, ended = ReadPool(1), threading.Semaphore(0)
    target = Target(8)
    alive = weakref.ref(target)
    pool.submit(
        ReadJob(
            MemoryReader(CONTENT),
            ranges(0, 8),
            memoryview(target),
            True,
            lambda _error, _seconds: ended.release(),
        )
    )
    assert ended.acquire(timeout=WAIT_SECONDS)
    del target
    pool.submit(
        ReadJob(
            MemoryReader(CONTENT),
            ranges(0, 8),
            memoryview(bytearray(8)),
            True,
            lambda _error, _seconds: ended.release(),
        )
    )
    assert ended.acquire(timeout=WAIT_SECONDS)  # the first job is out of the thread's hands
    assert alive() is None
    pool.close()
