"""A system that gives no more threads: each job accepted is answered once, and nothing dies of it."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import LoaderError
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from tests.examples import over
from tests.loader.support import CONTENT, WAIT_SECONDS, Gate, Jobs, in_thread, ranges

pytestmark = pytest.mark.usefixtures("reads_by")


class Threads:
    """Lets the first ``allowed`` reader threads start; ``error`` is what the others say."""

    def __init__(self, patch: pytest.MonkeyPatch, allowed: int, error: Exception) -> None:
        self.allowed = allowed
        start: Callable[[threading.Thread], None] = threading.Thread.start

        def counted(thread: threading.Thread) -> None:
            if thread.name.startswith("reader-") and thread.name != "reader-watch":
                if self.allowed <= 0:
                    raise error
                self.allowed -= 1
            start(thread)

        patch.setattr(threading.Thread, "start", counted)


@given(
    allowed=st.integers(0, 3),
    depth=st.integers(1, 3),
    lines=st.lists(st.integers(0, 2), max_size=12),
    error=st.sampled_from([RuntimeError("can't start new thread"), MemoryError()]),
)
def test_every_job_is_called_back_once_with_any_count_of_threads(
    allowed: int, depth: int, lines: list[int], error: Exception
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        threads = Threads(patch, allowed, error)
        pool, jobs = ReadPool(depth), Jobs()
        clients = [pool.client(str(index)) for index in range(3)]
        for index, line in enumerate(lines):
            job = jobs.job(index, MemoryReader(CONTENT), ranges(0, 8), client=clients[line])
            pool.submit(job)
        ends = [jobs.next() for _ in lines]
        assert Counter(index for index, _, _ in ends) == Counter(range(len(lines)))
        assert all((end is None) is (allowed > 0) for _, end, _ in ends)
        assert all(isinstance(end, LoaderError | None) for _, end, _ in ends)
        # What the system gives again is used.
        threads.allowed = 9
        pool.submit(jobs.job(99, MemoryReader(CONTENT), ranges(0, 8), client=clients[0]))
        assert jobs.next()[:2] == (99, None)
        pool.close()
        assert jobs.ended.empty()
        assert pool.statistics().in_flight == 0


@over("allowed", [1, 2])
def test_a_read_that_hangs_is_detected_also_where_no_thread_replaces_it(allowed: int) -> None:
    """The thread that looks for them goes on: others are found after it."""
    with pytest.MonkeyPatch.context() as patch:
        Threads(patch, allowed, RuntimeError("can't start new thread"))
        pool, jobs, gate = ReadPool(allowed, hung_seconds=0.0), Jobs(), Gate()
        clients = [pool.client(f"hanging {index}", depth=1) for index in range(allowed)]
        for index, client in enumerate(clients):
            job = jobs.job(index, MemoryReader(CONTENT, gate), ranges(0, 8), client=client)
            pool.submit(job)
            assert gate.arrived.acquire(timeout=WAIT_SECONDS)
        other = pool.client("other")
        pool.submit(jobs.job(10, MemoryReader(CONTENT), ranges(0, 8), client=other))
        while pool.statistics().hung < allowed:
            assert pool._reads._watcher.is_alive()
        gate.open.set()
        assert {jobs.next()[0] for _ in range(allowed + 1)} == {*range(allowed), 10}
        pool.close()
        assert not pool._reads._watcher.is_alive()


def test_a_job_that_cannot_be_read_may_be_answered_by_a_call_of_the_pool() -> None:
    """Its callback asks the pool for more, as sweeps do: no lock is held meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        Threads(patch, 0, RuntimeError("can't start new thread"))
        pool, jobs = ReadPool(1), Jobs()
        again = jobs.job(1, MemoryReader(CONTENT), ranges(0, 8))
        first = jobs.job(0, MemoryReader(CONTENT), ranges(0, 8))
        first.done = lambda error, seconds: pool.submit(again)
        asking = in_thread(lambda: pool.submit(first))
        asking.join(WAIT_SECONDS)
        assert not asking.is_alive()
        index, error, _ = jobs.next()
        assert index == 1
        assert "no thread" in str(error)
        pool.close()
