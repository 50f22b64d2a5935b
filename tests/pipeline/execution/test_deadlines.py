"""Waits that end just before their deadline, at it and just after it, on a virtual clock.

What a wait waited for decides its error: a timer may come a little early by the clock that is looked at
next.
"""

import math
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.devices.device_memory import Space
from pipeline.execution import deadlines
from pipeline.execution.computing import ComputingSweeper
from pipeline.execution.deadlines import DRAIN_SECONDS, check_deadline, check_limits, seconds_left
from pipeline.execution.errors import CancelledError, DeadlineError, DrainError
from pipeline.execution.lane import Lane, LaneRun
from pipeline.execution.leases import SharedArena
from pipeline.execution.partitions.handover import Frame
from pipeline.execution.sweep import Sweeper
from pipeline.planning.make import make_plan
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.schedule import Stage
from tests.examples import over
from tests.pipeline.synthetic import PAGE, program

BEGIN = 1000.0
TINY = math.ulp(2 * BEGIN)
#: By how much the clock differs from the deadline when a wait for it has finish.
ENDS = (-1e-3, -TINY, 0.0, TINY, 1e-3)


class Clock:
    """A clock that waits alone move: one of so many seconds ends ``late`` by as much."""

    def __init__(self, late: float = 0.0) -> None:
        self.now = BEGIN
        self.late = late
        self.waits: list[float | None] = []

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float | None) -> None:
        self.waits.append(seconds)
        assert seconds is not None, "it would wait for ever"
        assert len(self.waits) < 10, "it waits again and again"
        self.now = max(self.now, self.now + seconds + self.late)
        if self.late < 0:  # an early end is not repeated for ever
            self.late = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(deadlines, "time", clock)
    monkeypatch.setattr(threading.Condition, "wait", lambda _, seconds=None: clock.wait(seconds))
    return clock


def never() -> bool:
    return False


@over("late, passed", [(-1e-9, False), (0.0, True), (1e-9, True)])
def test_a_deadline_has_passed_from_its_moment_on(
    monkeypatch: pytest.MonkeyPatch, late: float, passed: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(deadlines, "time", clock)
    deadline, clock.now = BEGIN, BEGIN + late
    assert (seconds_left(deadline) == 0.0) is passed
    checks: list[Callable[[], object]] = [
        lambda: check_deadline(deadline, "while it rained"),
        lambda: check_limits(deadline, never),
        lambda: ComputingSweeper((Stage("kernel", ()),), [lambda: None]).run(deadline),
    ]
    for check in checks:
        if passed:
            with pytest.raises(DeadlineError, match="the deadline passed"):
                check()
        else:
            check()
    run = LaneRun([Lane({}, deadline), Lane({}, None), Lane({}, None, lambda: True)])
    run.step([lambda: None] * 3)
    assert [type(run.errors.get(index)) for index in range(3)] == [
        DeadlineError if passed else type(None),
        type(None),
        CancelledError,
    ]


def test_a_deadline_that_is_none_or_far_away_is_a_timeout_of_a_lock() -> None:
    assert seconds_left(None) is None
    for deadline in (math.inf, 1e300):
        left = seconds_left(deadline)
        assert left is not None
        assert 0 < left <= threading.TIMEOUT_MAX
        threading.Event().wait(0)


class Ready(queue.SimpleQueue[Any]):
    """The queue of kernels that are ready, in which nothing comes."""

    clock: Clock

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.clock.wait(timeout)
        raise queue.Empty


def starved(monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float | None) -> Exception:
    """Return what a sweep ends with whose weights do not come, with so many seconds left."""
    Ready.clock = clock
    monkeypatch.setattr("pipeline.execution.computing.queue.SimpleQueue", Ready)
    plan = make_plan(program([2, 3], [True, True]), ARCHITECTURES["2s"], 6 * PAGE)
    ends: list[Callable[[], None]] = []

    def finish() -> bool:
        if clock.waits:  # the reads end once the sweep has given up
            for end in ends:
                end()
            ends.clear()
        return True

    engine = Sweeper(
        plan.stages,
        (lambda index, done: ends.append(lambda: done(None, 0.0)),),
        [lambda: None for _ in plan.steps],
    )
    monkeypatch.setattr(engine, "drain", finish)
    deadline = None if seconds is None else clock.now + seconds
    with pytest.raises((DeadlineError, DrainError)) as caught:
        engine.run(deadline)
    return caught.value


@over("late", ENDS)
@over("seconds", [0.05, 1.0, DRAIN_SECONDS - TINY, DRAIN_SECONDS])
def test_weights_that_do_not_come_by_the_deadline_do_not_end_the_model(
    monkeypatch: pytest.MonkeyPatch, seconds: float, late: float
) -> None:
    clock = Clock(late)
    monkeypatch.setattr(deadlines, "time", clock)
    error = starved(monkeypatch, clock, seconds)
    assert type(error) is DeadlineError
    assert clock.waits == [pytest.approx(seconds)]


@over("late", ENDS)
@over("seconds", [None, DRAIN_SECONDS + 1e-6, 3600.0])
def test_weights_that_do_not_come_for_as_long_as_a_disk_may_take_do(
    monkeypatch: pytest.MonkeyPatch, seconds: float | None, late: float
) -> None:
    clock = Clock(late)
    monkeypatch.setattr(deadlines, "time", clock)
    error = starved(monkeypatch, clock, seconds)
    assert type(error) is DrainError
    assert clock.waits == [DRAIN_SECONDS]


def of_arena(clock: Clock, deadline: float) -> None:
    arena = SharedArena(Space(1 << 20))
    arena.acquire(None, never)
    arena.acquire(deadline, never)


def of_partition(clock: Clock, deadline: float) -> None:
    frame = Frame({}, lambda outputs: None, deadline, never, None)
    while True:
        clock.wait(frame.left())


@over("late", ENDS)
@over("wait", [of_arena, of_partition])
def test_a_wait_for_others_ends_with_a_deadline_error(
    clock: Clock, wait: Callable[[Clock, float], None], late: float
) -> None:
    clock.now, clock.late = BEGIN, late
    clock.waits.clear()
    with pytest.raises(DeadlineError, match="while another"):
        wait(clock, BEGIN + 1.0)
    assert BEGIN + 1.0 <= clock.now <= BEGIN + 1.002
    assert clock.waits[0] == 1.0
