"""One sweep computes, the others read: which one has the baton, and which gets it next."""

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.execution.baton import FREE, Baton, ComputeClaim
from pipeline.execution.errors import CancelledError, DeadlineError
from tests.examples import examples
from tests.virtual_time import VirtualTime


def never() -> bool:
    return False


def in_thread(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def wait_for(lock: Baton, waiting: int) -> None:
    while len(lock._waiting) != waiting:
        time.sleep(0)


def test_it_goes_to_the_one_that_began_first_whoever_asked_first() -> None:
    lock, order = Baton(), list[int]()
    claims = [lock.claim() for _ in range(4)]
    claims[3].hold(None, never)

    def compute(claim: ComputeClaim) -> None:
        claim.hold(None, never)
        order.append(claim.rank[1])
        claim.give()

    threads = []
    for number in (1, 2, 0):
        threads.append(in_thread(lambda number=number: compute(claims[number])))  # type: ignore[misc]
        wait_for(lock, len(threads))
    claims[3].give()
    for thread in threads:
        thread.join()
    assert order == [1, 2, 3]


def test_between_kernels_it_goes_to_one_in_front_and_comes_back() -> None:
    lock = Baton()
    first, second = lock.claim(), lock.claim()
    second.hold(None, never)
    kernels: list[str] = []

    def foremost() -> None:
        first.hold(None, never)
        kernels.append("first")
        first.hold(None, never)  # none is in front of it
        kernels.append("first")
        first.give()

    thread = in_thread(foremost)
    wait_for(lock, 1)
    assert not kernels, "a kernel that runs is not interrupted"
    second.hold(None, never)
    kernels.append("second")
    thread.join()
    assert kernels == ["first", "first", "second"]
    assert second.waited_seconds > 0
    assert not first._baton or lock.has(second)


def test_as_many_compute_as_there_are_places() -> None:
    lock = Baton(2)
    claims = [lock.claim() for _ in range(3)]
    claims[0].hold(None, never)
    claims[1].hold(None, never)
    with pytest.raises(DeadlineError):
        claims[2].hold(time.monotonic(), never)
    claims[0].give()
    claims[2].hold(time.monotonic(), never)
    assert [lock.has(claim) for claim in claims] == [False, True, True]


def test_who_waits_leaves_when_cancelled_and_its_place_is_free() -> None:
    lock = Baton()
    holder, waiter, last = lock.claim(), lock.claim(), lock.claim()
    holder.hold(None, never)
    gone = threading.Event()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            waiter.hold(None, gone.is_set)
        except CancelledError as exc:
            errors.append(exc)

    thread = in_thread(wait)
    wait_for(lock, 1)
    gone.set()
    lock.wake()
    thread.join()
    assert len(errors) == 1
    holder.give()
    last.hold(time.monotonic(), never)
    assert lock.has(last)


def test_what_is_over_computes_no_more_and_holds_up_nobody() -> None:
    lock = Baton()
    stuck, other = lock.claim(), lock.claim()
    stuck.hold(None, never)
    stuck.end()
    other.hold(time.monotonic(), never)
    with pytest.raises(CancelledError):
        stuck.hold(None, never)
    assert lock.has(other)


def test_alone_it_costs_nothing() -> None:
    FREE.hold(0.0, lambda: True)
    FREE.give()
    assert FREE.waited_seconds == 0.0


def test_who_waits_for_weights_most_is_foremost() -> None:
    lock = Baton()
    computing, reading = lock.claim(0.0), lock.claim(0.6)
    computing.hold(None, never)
    thread = in_thread(lambda: reading.hold(None, never))
    wait_for(lock, 1)
    with pytest.raises(DeadlineError):
        computing.hold(time.monotonic(), never)
    thread.join()
    assert lock.has(reading)


@dataclass(frozen=True)
class Computing:
    """A sweep that begins at ``starts_at``, launches kernels of so many seconds, and reads in pauses.

    ``deadline``, ``cancelled``, ``abandoned_at``: when it has to end, is cancelled, and is given up.
    """

    starts_at: float
    kernels: list[float]
    pause: float
    deadline: float
    cancelled: float
    abandoned_at: float


class Computes:
    """The thread of a sweep."""

    def __init__(self, work: Computing, time: VirtualTime, lock: Baton) -> None:
        self.work, self.time, self.lock = work, time, lock
        self.claim: ComputeClaim | None = None
        #: Since when it waits for the baton.
        self.waits: float | None = None
        time.start(self._run)

    def is_cancelled(self) -> bool:
        return self.time() >= self.work.cancelled

    def end(self) -> None:
        """Give it up, once it has begun and as it comes."""
        if self.claim is not None:
            self.claim.end()

    def _run(self) -> None:
        self.time.sleep(self.work.starts_at)
        self.claim = self.lock.claim()
        try:
            for seconds in self.work.kernels:
                self.waits = self.time()
                self.claim.hold(self.work.deadline, self.is_cancelled)
                self.waits = None
                self.time.sleep(seconds)
                if self.work.pause:
                    self.claim.give()
                    self.time.sleep(self.work.pause)
        except (CancelledError, DeadlineError):
            self.waits = None
        finally:
            self.claim.give()

    def check(self, moment: float, is_free: bool) -> None:
        """Check that it does not wait from now until ``moment`` if it need not."""
        if self.waits is not None and moment > self.time():
            assert not is_free
            assert not self.is_cancelled()
            assert moment <= self.work.deadline


times = st.sampled_from([0.0, 1.0, 5.0, 30.0])
later = st.sampled_from([0.0, 1.0, 5.0, 30.0, 1e9])
computing = st.builds(Computing, times, st.lists(times, max_size=3), times, later, later, later)


@given(st.integers(1, 2), st.lists(computing, max_size=5), st.integers(0, 99))
@examples(25, many=1000, deadline=None)
def test_none_waits_beyond_its_deadline_or_while_nothing_computes(
    slots: int, works: list[Computing], seed: int
) -> None:
    with VirtualTime(random.Random(seed).randrange) as time:
        lock = Baton(slots, time, time.condition)
        running = [Computes(work, time, lock) for work in works]
        events = [(thread.work.cancelled, lock.wake) for thread in running]
        events += [(thread.work.abandoned_at, thread.end) for thread in running]
        for event_at, happen in sorted(events, key=lambda event: event[0]):
            while time.now < event_at:
                time.run_to(time.now)
                moment = min(time.next_end(), event_at)
                for thread in running:
                    thread.check(moment, len(lock._held) < slots)
                time.run_to(moment)
            happen()
        time.run_to(math.inf)
        assert not lock._waiting
        assert not lock._held
