"""Several clients of one pool: depths, urgency, figures, and reads that hang."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import ClosedError, LoaderError
from loader.pool.pool import ReadPool
from loader.readers.in_memory import MemoryReader
from tests.loader.support import CONTENT, WAIT_SECONDS, Gate, Jobs, in_thread, ranges

# Several clients


def test_line_that_is_full_refuses_and_keeps_what_it_has() -> None:
    pool, jobs, gate = ReadPool(1), Jobs(), Gate()
    reader = MemoryReader(CONTENT, gate)
    client = pool.client("eager")
    accepted = 1025  # one of them is read meanwhile
    for number in range(accepted):
        pool.submit(jobs.job(number, reader, ranges(0, 8), client=client))
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
    pool.hurry(one)
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
