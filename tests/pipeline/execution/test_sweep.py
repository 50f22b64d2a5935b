"""Sweeps that fail, are cancelled or come too late: nothing stays in flight, errors are right."""

import sys
import threading
import time
from collections.abc import Callable

import pytest

from loader.errors import LoaderError, ReadError
from pipeline.devices.base import Done, KernelError, nothing
from pipeline.execution.computing import ComputingSweeper
from pipeline.execution.errors import CancelledError, DeadlineError, DrainError
from pipeline.execution.sweep import Sweeper, sweeper_for
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.schedule import Action, Schedule
from pipeline.schedule.trace import TraceEvent
from tests.examples import over
from tests.pipeline.schedule.judge import violations
from tests.pipeline.synthetic import PAGE, program
from tests.pipeline.writes import writes

SOURCE = program([2, 3, 1, 4, 2], [True, True, False, True, True, True])
PLAN = make_plan(SOURCE, ARCHITECTURES["2s"], 6 * PAGE)
AHEAD = make_plan(
    SOURCE, ARCHITECTURES["2s"], choice=Choice(6 * PAGE, read_bytes=PAGE, ahead="tail")
)
PLANS = {
    **{name: make_plan(SOURCE, item) for name, item in ARCHITECTURES.items()},
    "ring": PLAN,
    "ahead": AHEAD,
}


class Moves:
    """Starts operations that a test ends: at once, or later from another thread; counts those open."""

    def __init__(self, fail_at: int | None = None, by_thread: bool = False) -> None:
        self.fail_at = fail_at
        self.by_thread = by_thread
        self.open = 0
        self.started: list[int] = []
        self.held: list[Callable[[], None]] = []
        self.hold_from = sys.maxsize
        self._lock = threading.Lock()

    def __call__(self, index: int, done: Done) -> None:
        with self._lock:
            self.open += 1
            self.started.append(index)

        def end() -> None:
            with self._lock:
                self.open -= 1
            error = ReadError(f"read {index}: Input/output error")
            done(error if index == self.fail_at else None, 0.25)

        if index >= self.hold_from:
            self.held.append(end)
        elif self.by_thread:
            threading.Thread(target=end).start()
        else:
            end()


def sweeper(
    reads: Moves, kernels: list[Callable[[], None]], plan: Plan = PLAN, copies: Moves | None = None
) -> Sweeper | ComputingSweeper:
    starts = (reads, copies or Moves(by_thread=reads.by_thread))
    runner = sweeper_for(plan.stages, starts[: len(plan.stages) - 1], kernels)
    assert isinstance(runner, Sweeper | ComputingSweeper)
    return runner


def noted(asked: list[int], kernels: int) -> bool:
    """Be asked whether a sweep is cancelled, after so many kernels: it is not."""
    asked.append(kernels)
    return False


def kernels(ran: list[int]) -> list[Callable[[], None]]:
    return [lambda i=i: ran.append(i) for i in range(len(SOURCE.pieces))]  # type: ignore[misc]


@over("by_thread", [False, True])
@over("name", sorted(PLANS))
def test_kernels_run_once_in_order_and_the_trace_is_valid(name: str, by_thread: bool) -> None:
    plan, ran, reads = PLANS[name], list[int](), Moves(by_thread=by_thread)
    sweeps = sweeper(reads, kernels(ran), plan)
    for _ in range(3):
        trace: list[TraceEvent] = []
        result = sweeps.run(record=trace.append)
        assert ran == list(range(len(SOURCE.pieces)))
        assert violations(trace, writes(plan), len(SOURCE.pieces)) == []
        assert [event.at for event in trace] == sorted(event.at for event in trace)
        assert 0 <= result.kernel_seconds + result.stall_seconds <= result.delay_seconds
        ran.clear()
    sweeps.drain()
    assert reads.open == 0
    # What was read ahead was not read again.
    assert len(reads.started) == 3 * len(plan.reads) + plan.stages[0].ahead


def test_kernels_alone_are_told_of_when_all_have_ended() -> None:
    """Telling takes as long as small kernels do; of a sweep that fails it says what ended."""
    plan, ran = PLANS["pre"], list[int]()
    trace: list[TraceEvent] = []
    told: list[int] = []
    launches = [lambda: told.append(len(trace)) for _ in plan.steps]
    result = sweeper(Moves(), launches, plan).run(record=trace.append)
    assert told == [0] * len(plan.steps)
    ends = [event.at for event in trace if event.what == "complete"]
    assert 0 < ends[0] < ends[-1] <= result.delay_seconds

    def broken() -> None:
        raise KernelError("broken")

    trace.clear()
    with pytest.raises(KernelError):
        sweeper(Moves(), [*kernels(ran)[:2], broken, broken, broken], plan).run(record=trace.append)
    assert [event.index for event in trace if event.what == "complete"] == [0, 1]


def test_reads_ahead_may_end_in_the_next_sweep() -> None:
    ran: list[int] = []
    reads = Moves()
    reads.hold_from = len(AHEAD.reads)
    sweeps = sweeper(reads, kernels(ran), AHEAD)
    sweeps.run()
    late, reads.held = reads.held, []
    assert len(late) == reads.open == AHEAD.stages[0].ahead
    thread = threading.Thread(target=lambda: [end() for end in late])
    thread.start()
    trace: list[TraceEvent] = []
    sweeps.run(record=trace.append)
    thread.join()
    assert violations(trace, writes(AHEAD), len(SOURCE.pieces)) == []
    assert ran == 2 * list(range(len(SOURCE.pieces)))


@over("failing", range(AHEAD.stages[0].ahead))
@over("by_thread", [False, True])
def test_a_read_ahead_that_fails_is_tried_again_in_its_sweep(failing: int, by_thread: bool) -> None:
    ran: list[int] = []
    reads = Moves(len(AHEAD.reads) + failing, by_thread)
    sweeps = sweeper(reads, kernels(ran), AHEAD)
    sweeps.run()
    sweeps.drain()
    reads.started.clear()
    reads.fail_at = None
    sweeps.run()
    assert ran == 2 * list(range(len(SOURCE.pieces)))
    # It alone: the others are there.
    others = range(AHEAD.stages[0].ahead, len(AHEAD.reads))
    assert reads.started[: 1 + len(others)] == [failing, *others]
    sweeps.drain()
    assert reads.open == 0


@over("by_thread", [False, True])
@over("fail_at", range(len(PLANS["async"].reads)))
def test_a_failed_copy_ends_the_sweep_with_its_error(fail_at: int, by_thread: bool) -> None:
    ran: list[int] = []
    reads, copies = Moves(by_thread=by_thread), Moves(fail_at, by_thread)
    with pytest.raises(ReadError, match=f"read {fail_at}"):
        sweeper(reads, kernels(ran), PLANS["async"], copies).run()
    assert (reads.open, copies.open) == (0, 0)
    assert all(index < PLANS["async"].users[fail_at].start for index in ran)


@over("name", ["2s", "ring", "ahead"])
def test_steps_of_one_launch_end_with_it(name: str) -> None:
    """The first of a run does the work of all: it is not cancelled in between, and a trace has each."""
    plan, ran, asked = PLANS[name], list[int](), list[int]()
    all_work = kernels(ran)
    sweeps = sweeper(Moves(), all_work, plan)
    sweeps.run(cancelled=lambda: noted(asked, 0))
    sweeps.drain()
    apart, together = len(asked), list[int]()
    launches = [all_work[0], nothing, all_work[2], all_work[3], nothing, nothing]
    sweeps = sweeper(Moves(), launches, plan)
    ran.clear()
    sweeps.run(cancelled=lambda: noted(together, 0))
    assert ran == [0, 2, 3]
    assert len(together) <= apart
    trace: list[TraceEvent] = []
    sweeps.run(record=trace.append)
    assert violations(trace, writes(plan), len(SOURCE.pieces)) == []
    assert ran == 2 * [0, 2, 3]
    sweeps.drain()


def test_nobody_is_asked_between_steps_of_one_launch() -> None:
    one_read = make_plan(
        SOURCE, ARCHITECTURES["2s"], choice=Choice(100 * PAGE, read_bytes=100 * PAGE)
    )
    ran, asked = list[int](), list[int]()
    launches = [kernels(ran)[0], *[nothing] * (len(SOURCE.pieces) - 1)]
    sweeps = sweeper(Moves(), launches, one_read)
    sweeps.run(cancelled=lambda: noted(asked, len(ran)))
    assert ran == [0]
    assert 1 not in asked


def test_the_schedule_is_asked_only_when_something_waits_for_a_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small kernel takes no longer than to ask; those of a plan that waits for none end together."""
    asked: list[int] = []
    release = Schedule.release

    def counted(schedule: Schedule) -> list[Action]:
        asked.append(schedule.turn)
        return release(schedule)

    monkeypatch.setattr(Schedule, "release", counted)
    ran: list[int] = []
    roomy = make_plan(SOURCE, ARCHITECTURES["2s"], 100 * PAGE)
    sweeper(Moves(), kernels(ran), roomy).run()
    assert len(ran) == len(roomy.steps)
    # At the beginning, after each read, and when the last kernel has ended.
    assert len(asked) == 1 + len(roomy.reads) + 1


@over("fail_at", range(len(PLAN.reads)))
@over("by_thread", [False, True])
def test_a_failed_read_ends_the_sweep_with_its_error(fail_at: int, by_thread: bool) -> None:
    ran: list[int] = []
    reads = Moves(fail_at, by_thread)
    with pytest.raises(ReadError, match=f"read {fail_at}: Input/output error"):
        sweeper(reads, kernels(ran)).run()
    assert reads.open == 0
    first_user = PLAN.users[fail_at].start
    assert all(index < first_user for index in ran)


@over("at", range(len(SOURCE.pieces)))
def test_a_failed_kernel_ends_the_sweep_and_drains(at: int) -> None:
    def fail() -> None:
        raise KernelError("no")

    ran: list[int] = []
    row = kernels(ran)
    row[at] = fail
    reads = Moves(by_thread=True)
    with pytest.raises(KernelError):
        sweeper(reads, row).run()
    assert reads.open == 0
    assert ran == list(range(at))


@over("after", range(len(SOURCE.pieces)))
def test_cancellation_is_seen_before_every_kernel(after: int) -> None:
    ran: list[int] = []
    reads = Moves(by_thread=True)
    with pytest.raises(CancelledError):
        sweeper(reads, kernels(ran)).run(cancelled=lambda: len(ran) >= after)
    assert ran == list(range(after))
    assert reads.open == 0


def test_a_deadline_that_passed_stops_before_the_first_kernel() -> None:
    ran: list[int] = []
    with pytest.raises(DeadlineError):
        sweeper(Moves(), kernels(ran)).run(deadline=time.monotonic() - 1)
    assert ran == []


def test_a_deadline_that_passes_during_a_read_still_waits_for_that_read() -> None:
    """The disk writes into the ring until the read ends: it must not be left behind."""
    reads = Moves()
    reads.hold_from = 0
    waiting = threading.Event()

    def end_reads() -> None:
        waiting.wait()
        for end in reads.held:
            end()

    def cancelled() -> bool:  # asked when all reads that may start have started
        waiting.set()
        return False

    thread = threading.Thread(target=end_reads)
    thread.start()
    with pytest.raises(DeadlineError):
        sweeper(reads, kernels([])).run(deadline=0.0, cancelled=cancelled)
    assert reads.started
    assert reads.open == 0
    thread.join()


def test_a_pool_that_refuses_a_read_leaves_nothing_in_flight() -> None:
    def refuse(index: int, done: Done) -> None:
        raise LoaderError("read pool closed")

    sweeps = Sweeper(PLAN.stages, (refuse,), kernels([]))
    for _ in range(2):
        with pytest.raises(LoaderError, match="closed"):
            sweeps.run()
    sweeps.drain()


def test_a_read_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.execution.deadlines.DRAIN_SECONDS", 0.0)
    reads = Moves()
    reads.hold_from = 0
    with pytest.raises(DrainError, match=r"the disk: \d+ reads have not ended"):
        sweeper(reads, kernels([])).run()


def test_kernels_in_flight_have_ended_before_an_error_is_raised() -> None:
    ended: list[int] = []

    def finish(done: Done) -> None:
        def end() -> None:
            ended.append(len(ran))
            done(None, 0.0)

        threading.Thread(target=end).start()

    def fail() -> None:
        raise KernelError("no such instruction")

    ran: list[int] = []
    launches = kernels(ran)
    launches[2] = fail
    plan = PLANS["pre"]
    sweeps = Sweeper(plan.stages, [Moves()], launches, finish=finish)
    with pytest.raises(KernelError):
        sweeps.run()
    assert (ran, ended) == ([0, 1], [2])


@pytest.mark.parametrize("of", ["reads", "kernels"])
def test_what_waits_for_the_last_that_is_in_flight_is_woken_by_it(
    monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """It does not find out when its time is over: so long a failed request would hold its model."""
    monkeypatch.setattr("pipeline.execution.deadlines.DRAIN_SECONDS", 10.0)
    held, woken = list[Callable[[], None]](), list[bool]()
    wait = threading.Condition.wait

    def waits(condition: threading.Condition, timeout: float | None = None) -> bool:
        ends = [*held]
        held.clear()
        for end in ends:  # they wait for the lock, which this thread gives away when it waits
            threading.Thread(target=end).start()
        woken.append(wait(condition, timeout))
        return woken[-1]

    def finish(done: Done) -> None:
        held.append(lambda: done(None, 0.0))

    def fail() -> None:
        raise KernelError("no such instruction")

    if of == "reads":
        reads = Moves()
        reads.hold_from = len(AHEAD.reads)
        sweeps = sweeper(reads, kernels([]), AHEAD)
        sweeps.run()
        held, reads.held = reads.held, []
        monkeypatch.setattr(threading.Condition, "wait", waits)
        sweeps.drain()
    else:
        launches = kernels([])
        launches[2] = fail
        sweeps = Sweeper(PLANS["pre"].stages, [Moves()], launches, finish=finish)
        monkeypatch.setattr(threading.Condition, "wait", waits)
        with pytest.raises(KernelError):
            sweeps.run()
    assert woken
    assert all(woken)
