"""Arenas that engines use in turns: one holder at a time, first come first served, fixed addresses."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.devices.device_memory import Space
from pipeline.execution.errors import (
    ArenaLostError,
    CancelledError,
    DeadlineError,
    EngineClosedError,
)
from pipeline.execution.leases import ArenaLease, SharedArena, SharedLease

MIB = 1 << 20
LIMIT_SECONDS = 30.0


@pytest.fixture
def arena() -> Iterator[SharedArena]:
    shared = SharedArena(Space(64 * MIB))
    yield shared
    shared.close()


def address(lease: ArenaLease) -> int:
    return int(lease.memory.array(0, "uint8", (1,)).ctypes.data)


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def until_waiting(arena: SharedArena, count: int) -> None:
    giving_up = time.monotonic() + LIMIT_SECONDS
    while arena.waiting != count:
        assert time.monotonic() < giving_up


@given(
    sizes=st.lists(st.integers(0, 4 * MIB), min_size=1, max_size=6),
    leaving=st.permutations(range(6)),
)
def test_it_is_as_large_as_its_largest_member_and_does_not_move(
    sizes: list[int], leaving: list[int]
) -> None:
    arena = SharedArena(Space(4 * MIB))
    members = {number: arena.join(size) for number, size in enumerate(sizes)}
    places = {address(lease) for lease, size in zip(members.values(), sizes, strict=True) if size}
    assert len(places) <= 1
    for lease, size in zip(members.values(), sizes, strict=True):
        lease.memory.array(0, "uint8", (size,))[...] = 7
    left = dict(enumerate(sizes))
    for number in leaving:
        if number not in members:
            continue
        assert arena.n_bytes == max(left.values())
        members[number].close()
        del left[number]
        for other, size in left.items():
            # Whatever the others need is still there.
            assert np.all(members[other].memory.array(0, "uint8", (size,)) == 7)
    assert arena.n_bytes == arena.members == 0
    arena.close()


def test_what_only_the_largest_needed_goes_back(arena: SharedArena) -> None:
    small, large = arena.join(MIB), arena.join(16 * MIB)
    whole = large.memory.array(0, "uint8", (16 * MIB,))
    whole[...] = 1
    large.close()
    assert np.all(whole[:MIB] == 1)
    assert not whole[MIB:].any()  # pages that come anew hold zeros
    small.close()


def test_more_than_was_reserved_is_refused(arena: SharedArena) -> None:
    with pytest.raises(MemoryError, match="in a space of"):
        arena.join(65 * MIB)
    assert arena.members == arena.n_bytes == 0


def test_turns_come_in_the_order_in_which_they_were_asked_for(arena: SharedArena) -> None:
    leases = [arena.join(8) for _ in range(3)]
    order: list[int] = []

    def work(number: int) -> None:
        with leases[number % 3].turn():
            order.append(number)

    with ExitStack() as held:
        held.enter_context(leases[0].turn())
        threads = []
        for number in range(9):
            threads.append(in_thread(lambda number=number: work(number)))  # type: ignore[misc]
            until_waiting(arena, number + 1)
        assert order == []
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert order == list(range(9))
    assert arena.waiting == 0


def test_never_two_holders_and_everybody_gets_a_turn(arena: SharedArena) -> None:
    """Four members, each of which leaves, is cancelled or fails at times."""
    inside, most = 0, 0
    ended = [0, 0, 0, 0]

    def work(number: int) -> None:
        nonlocal inside, most
        for turn in range(100):
            lease = arena.join(64 * (number + 1))
            try:
                with lease.turn(cancelled=lambda: turn % 7 == number):  # noqa: B023
                    inside += 1
                    most = max(most, inside)
                    held = lease.memory.array(0, "uint8", (64,))
                    held[...] = number
                    assert np.all(held == number)
                    inside -= 1
                    if turn % 5 == number:
                        raise ZeroDivisionError
            except (CancelledError, ZeroDivisionError):
                pass
            lease.close()
            ended[number] += 1

    threads = [in_thread(lambda number=number: work(number)) for number in range(4)]  # type: ignore[misc]
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert ended == [100] * 4
    assert (most, inside) == (1, 0)
    assert arena.members == arena.waiting == 0


def test_a_deadline_ends_the_wait_and_the_line_goes_on(arena: SharedArena) -> None:
    one, other = arena.join(8), arena.join(8)
    with one.turn(), pytest.raises(DeadlineError, match="another model"), other.turn(0.0):
        raise AssertionError
    with other.turn() as waited:
        assert waited < LIMIT_SECONDS


def test_one_who_waits_leaves_when_it_is_woken_and_cancelled(arena: SharedArena) -> None:
    one, other, third = (arena.join(8) for _ in range(3))
    cancelled, seen = threading.Event(), list[str]()

    def work(lease: SharedLease, name: str, stop: Callable[[], bool]) -> None:
        try:
            with lease.turn(cancelled=stop):
                seen.append(name)
        except CancelledError:
            seen.append(f"{name} left")

    with one.turn():
        waits = in_thread(lambda: work(other, "second", cancelled.is_set))
        until_waiting(arena, 1)
        goes_on = in_thread(lambda: work(third, "third", lambda: False))
        until_waiting(arena, 2)
        other.wake()  # for nothing: it waits on
        cancelled.set()
        other.wake()
        waits.join(LIMIT_SECONDS)
        assert seen == ["second left"]
    goes_on.join(LIMIT_SECONDS)
    assert seen == ["second left", "third"]


def test_closing_turns_away_who_waits_and_waits_for_who_runs() -> None:
    arena = SharedArena(Space(MIB))
    one, other = arena.join(8), arena.join(8)
    said: list[str] = []

    def wait() -> None:
        try:
            with other.turn():
                said.append("ran")
        except EngineClosedError as exc:
            said.append(str(exc))

    with one.turn():
        waits = in_thread(wait)
        until_waiting(arena, 1)
        closes = in_thread(arena.close)
        waits.join(LIMIT_SECONDS)
        assert closes.is_alive()
        one.memory.array(0, "uint8", (8,))[...] = 1  # still there
    closes.join(LIMIT_SECONDS)
    assert said == ["the arena that models share is closed"]
    with pytest.raises(EngineClosedError):
        arena.join(8)
    one.close()
    other.close()


def test_a_lost_arena_is_nobodys_and_the_memory_of_who_lost_it_stays() -> None:
    space = Space(MIB)
    arena = SharedArena(space)
    one, other = arena.join(4096), arena.join(8192)
    said: list[str] = []

    def wait() -> None:
        with pytest.raises(ArenaLostError) as error, other.turn():
            raise AssertionError
        said.append(str(error.value))

    with one.turn():
        waits = in_thread(wait)
        until_waiting(arena, 1)
        one.lose()
        waits.join(LIMIT_SECONDS)
    assert len(said) == 1
    assert "has not ended" in said[0]
    with pytest.raises(ArenaLostError):
        arena.join(4096)
    one.abandon()
    assert space.n_bytes == 8192
    other.close()
    assert space.n_bytes == 4096, "what only others had goes back"
    arena.close()
    assert space.n_bytes == 4096
    space.close()


class SlowSpace(Space):
    """The system takes as long to give pages, or to take them back, as a test sets."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self.begun, self.may_end = threading.Event(), threading.Event()

    def resize(self, n_bytes: int) -> None:
        self.begun.set()
        assert self.may_end.wait(LIMIT_SECONDS)
        super().resize(n_bytes)


def test_nobody_waits_for_pages_but_who_joins_or_leaves() -> None:
    """The event loop wakes waiting requests; another model runs meanwhile."""
    space = SlowSpace(MIB)
    arena = SharedArena(space)
    space.may_end.set()
    member, other = arena.join(8), arena.join(8)

    def runs_another() -> None:
        other.wake()
        with other.turn():
            pass

    for change in (lambda: arena.join(MIB).close(), member.close):
        space.begun.clear()
        space.may_end.clear()
        changes = in_thread(change)
        assert space.begun.wait(LIMIT_SECONDS)
        runs = in_thread(runs_another)
        runs.join(LIMIT_SECONDS / 10)
        still_running = runs.is_alive()
        space.may_end.set()
        changes.join(LIMIT_SECONDS)
        runs.join(LIMIT_SECONDS)
        assert not still_running
    arena.close()
