"""Lines of several models before one dispatcher: bounded, left at any time, and nothing is lost."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import BusyError, LateError, NotServingError
from server.scheduling.dispatcher import Dispatcher
from server.scheduling.line import Line
from server.scheduling.sweeps import ALONE, Batching, Sweep, Ticket
from tests.examples import examples, over
from tests.virtual_time import VirtualTime


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def ticket(deadline: float = 1000.0) -> Ticket:
    return Ticket("", deadline)


class Lines:
    """Lines of a dispatcher without threads: what they hand out is run and ended by the test."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.dispatcher = Dispatcher(clock=clock or Clock(), start=lambda _: threading.Thread())
        self._handed_out: list[tuple[Line[Any], object]] = []

    def line(self, name: str = "m", limit: int = 4) -> Line[str]:
        line: Line[str] = self.dispatcher.line(name, limit, lambda what: None)
        return line

    def take(self, line: Line[str]) -> Sweep | str | None:
        """Take what ``line`` has handed out; None: nothing."""
        threads = self.dispatcher.threads
        while len(threads):
            self._handed_out.append(cast(Any, threads.take()))
        for entry in self._handed_out:
            if entry[0] is line:
                self._handed_out.remove(entry)
                line.run(cast(Any, entry[1]))
                return cast(Sweep | str, entry[1])
        return None

    def sweep_of(self, line: Line[str]) -> Sweep:
        """Take a batch that is there."""
        taken = self.take(line)
        assert isinstance(taken, Sweep)
        return taken

    def done(self, line: Line[str], batch: Sweep, seconds: float | None) -> None:
        """End a batch that was taken."""
        line.done(batch, seconds)
        self.returned(line)

    def end_change(self, line: Line[str], change: str) -> None:
        """End a change that was taken."""
        line.made(change)
        self.returned(line)

    def returned(self, line: Line[str]) -> None:
        with self.dispatcher._lock:
            line.returned()


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["join", "leave", "end"]), st.integers(0, 9))),
)
@examples(12, many=500, deadline=None)
def test_jobs_come_out_in_order_and_never_more_than_the_limit(
    limit: int, steps: list[tuple[str, int]]
) -> None:
    lines = Lines()
    line = lines.line(limit=limit)
    tickets, model = [ticket() for _ in range(10)], list[int]()
    runs: list[Sweep] = []

    def begin() -> None:
        if model and not runs:
            runs.append(lines.sweep_of(line))
            assert runs[0].tickets == (tickets[model.pop(0)],)

    for what, number in steps:
        job = tickets[number]
        running = runs[0].tickets if runs else ()
        if what == "join" and number not in model and job not in running:
            if len(model) < limit:
                line.join(job)
                model.append(number)
                begin()
            else:
                with pytest.raises(BusyError, match=f"{limit} request"):
                    line.join(job)
        elif what == "leave":
            line.leave(job)
            if number in model:
                model.remove(number)
        elif what == "end" and runs:
            lines.done(line, runs.pop(), None)
            begin()
        assert len(line) == len(model)
        assert lines.take(line) is None


def test_a_closed_line_gives_what_it_holds_and_is_over_then() -> None:
    lines = Lines()
    line = lines.line()
    line.join(ticket())
    line.join(ticket())
    line.close()
    for seconds in (None, 5.0):  # whatever it would ask may be forgotten by now
        with pytest.raises(NotServingError, match="leaving"):
            line.check_room(seconds)
    with pytest.raises(NotServingError, match="'m' is leaving"):
        line.join(ticket())
    for _ in range(2):
        assert not line._is_over
        lines.done(line, lines.sweep_of(line), None)
    line.wait_until_over()


def test_changes_pass_all_others_also_where_the_line_is_full() -> None:
    lines = Lines()
    line = lines.line(limit=2)
    tickets = [ticket() for _ in range(3)]
    for one in tickets:
        line.join(one)
    first = lines.sweep_of(line)
    line.join_first("change")
    with pytest.raises(BusyError):
        line.join(ticket())
    assert lines.take(line) is None  # a change waits until nothing runs
    lines.done(line, first, None)
    assert lines.take(line) == "change"
    assert lines.take(line) is None  # and nothing runs until it is made
    lines.end_change(line, "change")
    for one in tickets[1:]:
        batch = lines.sweep_of(line)
        assert batch.tickets == (one,)
        lines.done(line, batch, None)
    line.close()
    with pytest.raises(NotServingError):
        line.join_first("change")


@over("what", ["join", "join_first"])
def test_a_thread_that_sleeps_is_woken(what: str) -> None:
    came = threading.Event()
    dispatcher = Dispatcher(clock=Clock())
    ran: list[object] = []

    def run(what: object) -> None:
        ran.append(what)
        line.done(what, None) if isinstance(what, Sweep) else line.made(str(what))
        came.set()

    line: Line[str] = dispatcher.line("m", 1, run)
    job = ticket()
    line.join(job) if what == "join" else line.join_first("change")
    assert came.wait(30.0)
    line.close()
    line.wait_until_over()
    (found,) = ran
    assert found.tickets == (job,) if isinstance(found, Sweep) else found == "change"
    dispatcher.forget(line.key)


def test_what_would_be_late_is_refused_and_says_when_to_come_again() -> None:
    clock = Clock()
    lines = Lines(clock)
    slow, quick = lines.line("slow"), lines.line("quick")
    lines.dispatcher.expect(slow.key, 10.0, None)
    lines.dispatcher.expect(quick.key, 1.0, None)
    slow.join(ticket(100.0))
    batch = lines.sweep_of(slow)
    with pytest.raises(LateError, match=r"'quick'.*7.00 s later") as caught:
        quick.join(ticket(4.0))
    assert caught.value.retry_seconds == pytest.approx(7.0)
    quick.join(ticket(11.0))
    clock.now = 3.0
    lines.done(slow, batch, 3.0)
    lines.done(quick, lines.sweep_of(quick), 1.0)
    # What was measured counts from now on.
    slow.join(ticket(clock.now + 4.0))


def test_the_time_until_a_thread_has_a_batch_is_in_its_cost() -> None:
    with VirtualTime() as time:
        dispatcher = Dispatcher(clock=time, condition=time.condition, start=time.start_later)

        def work(batch: Sweep | str) -> None:
            assert isinstance(batch, Sweep)
            time.sleep(3.0)
            line.done(batch, 3.0)

        line: Line[str] = dispatcher.line("m", 4, work)
        time.run_to(0.0)
        line.join(ticket())
        time.now += 1.0  # before it wakes
        time.run_to(10.0)
        assert dispatcher.costs.sweep_seconds(line.key, 1) == pytest.approx(1.2 * 4.0)


def test_an_idle_machine_that_refuses_comes_to_doubt_what_it_knows() -> None:
    lines = Lines()
    line = lines.line()
    lines.dispatcher.expect(line.key, 10.0, None)
    with pytest.raises(LateError):
        line.join(ticket(1.0))
    line.join(ticket(1.0))


def test_nobody_waits_for_a_model_whose_engine_is_changed() -> None:
    clock = Clock()
    lines = Lines(clock)
    changed, other = (lines.line(name) for name in ("changed", "other"))
    for line in (changed, other):
        lines.dispatcher.expect(line.key, 10.0, None)
    first, waiting = ticket(20.0), ticket(21.0)
    changed.join(first)
    changed.join(waiting)
    other.join(ticket(100.0))
    batch = lines.sweep_of(changed)
    clock.now = 10.0
    changed.join_first("change")
    lines.done(changed, batch, 10.0)
    assert lines.take(changed) == "change"
    beside = lines.sweep_of(other)  # while the change is made, though that of the other is urgent
    lines.done(other, beside, 10.0)
    lines.end_change(changed, "change")
    assert lines.sweep_of(changed).tickets == (waiting,)


@over("turns", [True, False])
def test_models_in_one_arena_do_not_begin_beside_each_other(turns: bool) -> None:
    lines = Lines()
    one, two = lines.line("one"), lines.line("two")
    for line in (one, two):
        line.follow(ALONE, turns)
        line.join(ticket())
    batch = lines.sweep_of(one)
    assert (lines.take(two) is None) is turns
    lines.done(one, batch, None)
    assert isinstance(lines.take(two), Sweep) is turns


def test_what_does_not_end_is_given_up_and_others_begin() -> None:
    lines = Lines()
    stuck, beside, other = (lines.line(name) for name in ("stuck", "beside", "other"))
    for line in (stuck, beside):
        line.join(ticket())
    batch = lines.sweep_of(stuck)
    lines.sweep_of(beside)
    other.join(ticket())
    assert lines.take(other) is None
    stuck.close()
    stuck.abandon()
    lines.sweep_of(other)
    stuck.wait_until_over(or_abandoned=True)
    assert not stuck._is_over
    lines.done(stuck, batch, 1.0)  # long after that
    stuck.wait_until_over()


def test_threads_of_many_models_answer_everything_once() -> None:
    dispatcher = Dispatcher(clock=Clock())
    counted: Counter[Ticket] = Counter()
    lines: list[Line[str]] = []

    def work(index: int, batch: Sweep | str) -> None:
        assert isinstance(batch, Sweep)
        counted.update(batch.tickets)
        lines[index].done(batch, 0.0)

    lines += [dispatcher.line(f"m{index}", 100, partial(work, index)) for index in range(3)]
    lines[0].batching = Batching(4)
    tickets = [ticket(1e9) for _ in range(90)]
    for index, one in enumerate(tickets):
        lines[index % 3].join(one)
    threads = dispatcher.threads
    for line in lines:
        line.close()
        line.wait_until_over()
        dispatcher.forget(line.key)
    assert counted == Counter(tickets)
    assert not any(thread.is_alive() for thread in threads._threads)


def test_a_batch_that_fails_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = Dispatcher(clock=Clock())
    ran: list[object] = []

    def fail(batch: Sweep | str) -> None:
        assert isinstance(batch, Sweep)
        ran.append(batch)
        line.done(batch, None)
        raise ZeroDivisionError

    line: Line[str] = dispatcher.line("m", 4, fail)
    for _ in range(3):
        line.join(ticket())
    line.close()
    line.wait_until_over()
    dispatcher.forget(line.key)
    assert len(ran) == 3
    assert len(caplog.records) == 3


def test_many_models_share_three_threads() -> None:
    """Two that run, and one that keeps the time, however many models; each is run here, so none is late."""
    lines: list[Line[str]] = []
    dispatcher = Dispatcher(clock=Clock(), start=lambda _: threading.Thread())

    def work(index: int, batch: Sweep | str) -> None:
        assert isinstance(batch, Sweep)
        lines[index].done(batch, 0.0)
        ran[index] += 1

    ran: Counter[int] = Counter()
    lines += [dispatcher.line(f"m{index}", 9, partial(work, index)) for index in range(200)]
    for _ in range(3):
        for line in lines:
            line.join(ticket(1e9))
    threads = dispatcher.threads
    while len(threads):
        threads.run(*cast(Any, threads.take()))
    assert ran == Counter(dict.fromkeys(range(200), 3))
    assert threads.count <= 3


@pytest.mark.parametrize("still", [False, True])
def test_a_line_that_ends_expects_no_more_requests(still: bool) -> None:
    lines = Lines()
    leaving, staying = lines.line("leaving"), lines.line("staying")
    expected = leaving.expect(10.0, 0)
    leaving.close()
    leaving.wait_until_over()
    if still:
        leaving.expect_still(expected, 0.0)
        leaving.expect(10.0, 0)
    lines.dispatcher.forget(leaving.key)
    assert not staying.expects
    staying.check_room(20.0)
