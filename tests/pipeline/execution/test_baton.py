"""One sweep computes, the others read: which one has the baton, and which gets it next."""

import threading
import time
from collections.abc import Callable

import pytest

from pipeline.execution.baton import FREE, Baton, ComputeClaim
from pipeline.execution.errors import CancelledError, DeadlineError


def never() -> bool:
    return False


def in_thread(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def wait_for(baton: Baton, waiting: int) -> None:
    while len(baton._waiting) != waiting:
        time.sleep(0)


def test_it_goes_to_the_one_that_began_first_whoever_asked_first() -> None:
    baton, order = Baton(), list[int]()
    claims = [baton.claim() for _ in range(4)]
    claims[3].hold(None, never)

    def compute(claim: ComputeClaim) -> None:
        claim.hold(None, never)
        order.append(claim.rank[1])
        claim.give()

    threads = []
    for number in (1, 2, 0):
        threads.append(in_thread(lambda number=number: compute(claims[number])))  # type: ignore[misc]
        wait_for(baton, len(threads))
    claims[3].give()
    for thread in threads:
        thread.join()
    assert order == [1, 2, 3]


def test_between_kernels_it_goes_to_one_in_front_and_comes_back() -> None:
    baton = Baton()
    first, second = baton.claim(), baton.claim()
    second.hold(None, never)
    kernels: list[str] = []

    def foremost() -> None:
        first.hold(None, never)
        kernels.append("first")
        first.hold(None, never)  # none is in front of it
        kernels.append("first")
        first.give()

    thread = in_thread(foremost)
    wait_for(baton, 1)
    assert not kernels, "a kernel that runs is not interrupted"
    second.hold(None, never)
    kernels.append("second")
    thread.join()
    assert kernels == ["first", "first", "second"]
    assert second.waited_seconds > 0
    assert not first._baton or baton.has(second)


def test_as_many_compute_as_there_are_places() -> None:
    baton = Baton(2)
    claims = [baton.claim() for _ in range(3)]
    claims[0].hold(None, never)
    claims[1].hold(None, never)
    with pytest.raises(DeadlineError):
        claims[2].hold(time.monotonic(), never)
    claims[0].give()
    claims[2].hold(time.monotonic(), never)
    assert [baton.has(claim) for claim in claims] == [False, True, True]


def test_who_waits_leaves_when_cancelled_and_its_place_is_free() -> None:
    baton = Baton()
    holder, waiter, last = baton.claim(), baton.claim(), baton.claim()
    holder.hold(None, never)
    gone = threading.Event()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            waiter.hold(None, gone.is_set)
        except CancelledError as exc:
            errors.append(exc)

    thread = in_thread(wait)
    wait_for(baton, 1)
    gone.set()
    baton.wake()
    thread.join()
    assert len(errors) == 1
    holder.give()
    last.hold(time.monotonic(), never)
    assert baton.has(last)


def test_what_is_over_computes_no_more_and_holds_up_nobody() -> None:
    baton = Baton()
    stuck, other = baton.claim(), baton.claim()
    stuck.hold(None, never)
    stuck.end()
    other.hold(time.monotonic(), never)
    with pytest.raises(CancelledError):
        stuck.hold(None, never)
    assert baton.has(other)


def test_alone_it_costs_nothing() -> None:
    FREE.hold(0.0, lambda: True)
    FREE.give()
    assert FREE.waited_seconds == 0.0


def test_who_waits_for_weights_most_is_foremost() -> None:
    baton = Baton()
    computing, reading = baton.claim(0.0), baton.claim(0.6)
    computing.hold(None, never)
    thread = in_thread(lambda: reading.hold(None, never))
    wait_for(baton, 1)
    with pytest.raises(DeadlineError):
        computing.hold(time.monotonic(), never)
    thread.join()
    assert baton.has(reading)
