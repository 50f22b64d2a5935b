"""The read pool and the reader in memory: every job is answered once, whatever happens."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import ChecksumError, ClosedError, LoaderError, ReadError
from loader.pool.jobs import ReadJob
from loader.pool.order import Order, Urgency
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from tests.examples import examples
from tests.loader.support import CONTENT, PART, WAIT_SECONDS, Gate, Jobs, in_thread, raising, ranges

pytestmark = pytest.mark.usefixtures("reads_by")


@pytest.fixture
def pool() -> Iterator[ReadPool]:
    pool = ReadPool(2)
    yield pool
    pool.close()


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


def test_ranges_may_lie_apart(pool: ReadPool) -> None:
    jobs = Jobs()
    apart = (*ranges(512, 256, 64), *ranges(0, 32), *ranges(640, 8), *ranges(648, 8))
    pool.submit(jobs.job(0, MemoryReader(CONTENT), apart))
    assert jobs.next()[:2] == (0, None)
    assert jobs.targets[0] == CONTENT[512:832] + CONTENT[:32] + CONTENT[640:656]


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
    assert str(error).startswith(f"memory: bytes [{bad * PART}, {(bad + 1) * PART}) are damaged")
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


def test_threads_end_with_the_pool() -> None:
    before = set(threading.enumerate())
    pool, jobs = ReadPool(3), Jobs()
    for number in range(3):
        pool.submit(jobs.job(number, MemoryReader(CONTENT), ranges(0, 8)))
    ours = set(threading.enumerate()) - before
    assert len(ours) == 4  # and the one that watches
    assert all(thread.daemon for thread in ours)
    pool.close()
    assert not any(thread.is_alive() for thread in ours)


def test_threads_wake_for_jobs_alone() -> None:
    """Once a job: nothing polls, and once more to begin to look for reads that hang."""
    pool, jobs = ReadPool(2, hung_seconds=1e6), Jobs()
    for number in range(20):
        pool.submit(jobs.job(number, MemoryReader(CONTENT), ranges(0, 8)))
        jobs.next()
    pool.close()
    assert 20 <= pool.statistics().wake_ups <= 20 + 2  # the last is the end


def test_reads_in_line_wake_one_thread_for_all() -> None:
    """The thread that ends a read goes on with the next: of its line, or asked for by its callback."""
    pool, jobs, gate = ReadPool(2, hung_seconds=1e6), Jobs(), Gate()
    client = pool.client("one at a time", depth=1)
    pool.submit(jobs.job(0, MemoryReader(CONTENT, gate), ranges(0, 8), client=client))
    assert gate.arrived.acquire(timeout=WAIT_SECONDS)
    for number in range(1, 20):
        pool.submit(jobs.job(number, MemoryReader(CONTENT), ranges(0, 8), client=client))
    last = jobs.job(20, MemoryReader(CONTENT), ranges(0, 8), client=client)
    following = jobs.job(21, MemoryReader(CONTENT), ranges(8, 8), client=client)
    pool.submit(replace(last, done=lambda _error, _seconds: pool.submit(following)))
    gate.open.set()
    assert [jobs.next()[0] for _ in range(21)] == [*range(20), 21]
    pool.close()
    assert pool.statistics().wake_ups <= 1 + 2


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


# Several clients of one pool: depths, urgency, figures, and reads that hang.


# Several clients


def test_line_that_is_full_refuses_and_keeps_what_it_has() -> None:
    pool, jobs, gate = ReadPool(1), Jobs(), Gate()
    reader = MemoryReader(CONTENT, gate)
    client = pool.client("eager")
    accepted = 1025  # one of them is read meanwhile
    for number in range(accepted):
        pool.submit(jobs.job(number, reader, ranges(0, 8), client=client))
        if not number:
            assert gate.arrived.acquire(timeout=WAIT_SECONDS)
    with pytest.raises(LoaderError, match="client 'eager': 1024 reads wait already"):
        pool.submit(jobs.job(accepted, reader, ranges(0, 8), client=client))
    gate.open.set()
    pool.close()
    assert [jobs.next()[0] for _ in range(accepted)] == list(range(accepted))
    assert jobs.ended.empty()


def test_clients_have_their_own_depth_and_order() -> None:
    pool, jobs, gate = ReadPool(3), Jobs(), Gate()
    reader = MemoryReader(CONTENT, gate)
    narrow, wide = pool.client("narrow", depth=1), pool.client("wide", depth=2)
    for number in range(4):
        pool.submit(jobs.job(number, reader, ranges(0, 8), client=narrow))
        pool.submit(jobs.job(10 + number, reader, ranges(0, 8), client=wide))
    for _ in range(3):
        assert gate.arrived.acquire(timeout=WAIT_SECONDS)
    found = {each.name: (each.waiting, each.in_flight) for each in pool.statistics().clients}
    assert found == {"shared": (0, 0), "narrow": (3, 1), "wide": (2, 2)}
    gate.open.set()
    pool.close()
    ended = [jobs.next()[0] for _ in range(8)]
    assert [number for number in ended if number < 10] == list(range(4))


def test_figures_of_clients_and_of_the_pool() -> None:
    pool, jobs = ReadPool(2), Jobs()
    one, other = pool.client("one"), pool.client("other")
    for number in range(4):
        pool.submit(jobs.job(number, MemoryReader(CONTENT), ranges(0, 256), client=one))
    pool.submit(jobs.job(9, MemoryReader(b""), ranges(0, 256), client=other))
    for _ in range(5):
        jobs.next()
    pool.forget(other)
    pool.close()
    figures = pool.statistics()
    assert [client.name for client in figures.clients] == ["shared", "one"]
    mine = figures.clients[1].figures
    assert (mine.n_bytes, mine.reads, mine.failures) == (1024, 4, 0)
    total = figures.figures
    assert (total.n_bytes, total.reads, total.failures) == (1024, 5, 1)
    assert total.seconds >= mine.seconds > 0
    assert total.cpu_seconds_per_gb == pytest.approx(total.cpu_seconds / 1024 * 1e9)


def test_client_that_still_reads_cannot_go() -> None:
    pool, jobs, gate = ReadPool(1), Jobs(), Gate()
    client = pool.client("busy")
    pool.submit(jobs.job(0, MemoryReader(CONTENT, gate), ranges(0, 8), client=client))
    assert gate.arrived.acquire(timeout=WAIT_SECONDS)
    with pytest.raises(LoaderError, match="client 'busy': 0 reads wait and 1 are in flight"):
        pool.forget(client)
    gate.open.set()
    jobs.next()
    pool.forget(client)
    with pytest.raises(LoaderError, match="not registered"):
        pool.submit(jobs.job(1, MemoryReader(CONTENT), ranges(0, 8), client=client))
    pool.close()


def test_hurried_client_comes_first() -> None:
    pool, jobs, gate = ReadPool(1), Jobs(), Gate()
    one, other = pool.client("one"), pool.client("other")
    pool.submit(jobs.job(0, MemoryReader(CONTENT, gate), ranges(0, 8), client=one))
    for number in (1, 2):
        pool.submit(jobs.job(number, MemoryReader(CONTENT), ranges(0, 8), client=other))
    for number in (3, 4):
        pool.submit(jobs.job(number, MemoryReader(CONTENT), ranges(0, 8), client=one))
    pool.raise_priority(one)
    gate.open.set()
    assert [jobs.next()[0] for _ in range(5)] == [0, 3, 4, 1, 2]
    pool.close()


# Reads that hang: with a limit of no time at all, every read that waits does


def test_reads_that_hang_do_not_block_other_clients() -> None:
    pool, jobs, gate = ReadPool(2, hung_seconds=0.0), Jobs(), Gate()
    hanging, other = pool.client("hanging"), pool.client("other")
    for number in range(4):
        pool.submit(jobs.job(number, MemoryReader(CONTENT, gate), ranges(0, 8), client=hanging))
    for number in range(10, 20):
        pool.submit(jobs.job(number, MemoryReader(CONTENT), ranges(0, 8), client=other))
    assert sorted(jobs.next()[0] for _ in range(10)) == list(range(10, 20))
    figures = {client.name: client for client in pool.statistics().clients}
    assert figures["hanging"].stuck
    assert figures["hanging"].in_flight in {1, 2}
    gate.open.set()
    assert sorted(jobs.next()[0] for _ in range(4)) == [0, 1, 2, 3]
    pool.close()
    assert pool.statistics().in_flight == 0
    assert jobs.ended.empty()


def test_what_a_read_that_hung_lets_start_is_read_though_its_thread_ends() -> None:
    pool, jobs, gate = ReadPool(1, hung_seconds=0.0), Jobs(), Gate()
    client = pool.client("hanging", depth=1)
    for number in range(3):
        pool.submit(jobs.job(number, MemoryReader(CONTENT, gate), ranges(0, 8), client=client))
    assert gate.arrived.acquire(timeout=WAIT_SECONDS)
    other = pool.client("other")
    pool.submit(jobs.job(10, MemoryReader(CONTENT), ranges(0, 8), client=other))
    assert jobs.next()[0] == 10  # read in the place that the first one gave up
    gate.open.set()
    assert [jobs.next()[0] for _ in range(3)] == [0, 1, 2]
    pool.close()


def test_close_leaves_hung_reads_behind_and_answers_all_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = ReadPool(2, hung_seconds=0.0, close_seconds=0.0)
    jobs, gate = Jobs(), Gate()
    reader = MemoryReader(CONTENT, gate)
    client = pool.client("hanging")
    for number in range(5):
        pool.submit(jobs.job(number, reader, ranges(0, 8), client=client))
    assert gate.arrived.acquire(timeout=WAIT_SECONDS)
    pool.close()
    flying = pool.statistics().in_flight
    assert flying in {1, 2}
    refused = [jobs.next() for _ in range(5 - flying)]
    assert all(isinstance(error, ClosedError) for _, error, _ in refused)
    assert jobs.ended.empty()  # the disk may still write: these are not answered yet
    assert any("closing without it" in record.getMessage() for record in caplog.records)
    gate.open.set()
    ended = [jobs.next() for _ in range(flying)]
    assert all(error is None for _, error, _ in ended)
    assert {number for number, _, _ in refused + ended} == set(range(5))


@given(
    threads=st.integers(1, 3),
    plan=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=25),
    late=st.booleans(),
)
def test_every_job_is_answered_once_also_beside_hung_reads_and_while_closing(
    threads: int, plan: list[tuple[int, bool]], late: bool
) -> None:
    pool, jobs, gate = ReadPool(threads, hung_seconds=0.0), Jobs(), Gate()
    clients = [pool.client(str(number)) for number in range(3)]
    free, held = MemoryReader(CONTENT), MemoryReader(CONTENT, gate)
    for number, (client, hangs) in enumerate(plan):
        reader = held if hangs else free
        pool.submit(jobs.job(number, reader, ranges(0, 8), client=clients[client]))
    if not late:
        gate.open.set()
    closing = in_thread(pool.close)
    gate.open.set()
    closing.join(WAIT_SECONDS)
    answers = [jobs.next() for _ in plan]
    assert jobs.ended.empty()
    assert Counter(number for number, _, _ in answers) == Counter(range(len(plan)))
    assert all(error is None or isinstance(error, ClosedError) for _, error, _ in answers)


@given(
    lines=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(1, 600),
            st.sampled_from(Urgency),
            st.sampled_from([None, 1.0, 2.0]),
        ),
        max_size=16,
    ),
    prioritised=st.sets(st.integers(0, 2)),
)
@examples(25, 500)
def test_reads_come_in_the_order_of_the_rules(
    lines: list[tuple[int, int, Urgency, float | None]], prioritised: set[int]
) -> None:
    """As ``Order`` has them, which is pure; a client may be passed by 500 bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loader.pool.order.PATIENCE_BYTES", 500)
        patch.setattr("loader.pool.native.PATIENCE_BYTES", 500)
        order: Order[ReadJob] = Order()
        pool, jobs, gate, expected = ReadPool(1), Jobs(), Gate(), list[int]()
        reader = MemoryReader(CONTENT)
        indices = iter(range(len(lines) + 1))
        clients, rows = [pool.client("gated")], [order.register("gated")]
        gated = jobs.job(
            next(indices), MemoryReader(CONTENT, gate), ranges(0, 8), client=clients[0]
        )
        pool.submit(gated)
        order.add(rows[0], gated)
        assert order.start() is not None
        assert gate.arrived.acquire(timeout=WAIT_SECONDS)
        for line in range(3):
            clients.append(pool.client(str(line)))
            rows.append(order.register(str(line)))
        for client, n_bytes, urgency, deadline in lines:
            index = next(indices)
            job = jobs.job(index, reader, ranges(0, n_bytes), client=clients[1 + client])
            job.urgency, job.deadline = urgency, deadline
            pool.submit(job)
            order.add(rows[1 + client], job)
        for client in prioritised:
            pool.raise_priority(clients[1 + client])
            order.hurry(rows[1 + client])
        order.ended(rows[0])
        while (following := order.start()) is not None:
            order.ended(following[0])
            targets = {id(target): index for index, target in jobs.targets.items()}
            expected.append(targets[id(following[1].target.obj)])
        gate.open.set()
        assert [jobs.next()[0] for _ in range(1 + len(lines))] == [0, *expected]
        pool.close()
