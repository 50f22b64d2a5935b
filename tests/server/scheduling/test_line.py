"""Lines of several models before one dispatcher: bounded, left at any time, and nothing is lost."""

import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import BusyError, LateError, NotServingError
from server.scheduling.dispatcher import Dispatcher
from server.scheduling.line import Line
from server.scheduling.sweeps import Batching, Sweep, Ticket
from tests.examples import examples, over
from tests.virtual_time import VirtualTime


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def ticket(deadline: float = 1000.0) -> Ticket:
    return Ticket("", deadline)


def sweep_of(line: Line[str]) -> Sweep:
    """Take a sweep that is there."""
    taken = line.take()
    assert isinstance(taken, Sweep)
    return taken


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["join", "leave", "take"]), st.integers(0, 9))),
)
@examples(12, many=500, deadline=None)
def test_jobs_come_out_in_order_and_never_more_than_the_limit(
    limit: int, steps: list[tuple[str, int]]
) -> None:
    line = Dispatcher(clock=Clock()).line("m", limit)
    tickets, model = [ticket() for _ in range(10)], list[int]()
    for what, number in steps:
        job = tickets[number]
        if what == "join" and number not in model:
            if len(model) < limit:
                line.join(job)
                model.append(number)
            else:
                with pytest.raises(BusyError, match=f"{limit} request"):
                    line.join(job)
        elif what == "leave":
            line.leave(job)
            if number in model:
                model.remove(number)
        elif what == "take" and model:
            batch = sweep_of(line)
            assert batch.tickets == (tickets[model.pop(0)],)
            line.done(batch, None)
        assert len(line) == len(model)


def test_a_closed_line_gives_what_it_holds_and_then_none() -> None:
    line = Dispatcher(clock=Clock()).line("m", 4)
    line.join(ticket())
    line.close()
    for seconds in (None, 5.0):  # whatever it would ask may be forgotten by now
        with pytest.raises(NotServingError, match="leaving"):
            line.check_room(seconds)
    with pytest.raises(NotServingError, match="'m' is leaving"):
        line.join(ticket())
    line.done(sweep_of(line), None)
    assert line.take() is None


def test_changes_pass_all_others_also_where_the_line_is_full() -> None:
    line = Dispatcher(clock=Clock()).line("m", 2)
    tickets = [ticket(), ticket()]
    for each in tickets:
        line.join(each)
    line.join_first("change")
    with pytest.raises(BusyError):
        line.join(ticket())
    assert line.take() == "change"
    line.made("change")
    for each in tickets:
        batch = sweep_of(line)
        assert batch.tickets == (each,)
        line.done(batch, None)
    line.close()
    with pytest.raises(NotServingError):
        line.join_first("change")


@over("wake", ["join", "join_first", "close"])
def test_a_taker_that_waits_is_woken(wake: str) -> None:
    line = Dispatcher(clock=Clock()).line("m", 1)
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(line.take()))
    thread.start()
    job = ticket()
    if wake == "join":
        line.join(job)
    elif wake == "join_first":
        line.join_first("change")
    else:
        line.close()
    thread.join()
    (found,) = taken
    assert found.tickets == (job,) if isinstance(found, Sweep) else found in ("change", None)


def test_what_would_be_late_is_refused_and_says_when_to_come_again() -> None:
    clock = Clock()
    dispatcher = Dispatcher(clock=clock)
    slow, quick = dispatcher.line("slow", 4), dispatcher.line("quick", 4)
    dispatcher.expect(slow.key, 10.0, None)
    dispatcher.expect(quick.key, 1.0, None)
    slow.join(ticket(100.0))
    batch = sweep_of(slow)
    with pytest.raises(LateError, match=r"'quick'.*7.00 s later") as caught:
        quick.join(ticket(4.0))
    assert caught.value.retry_seconds == pytest.approx(7.0)
    quick.join(ticket(11.0))
    clock.now = 3.0
    slow.done(batch, 3.0)
    quick.done(sweep_of(quick), 1.0)
    # What was measured counts from now on.
    slow.join(ticket(clock.now + 4.0))


def test_the_time_until_a_thread_has_a_batch_is_in_its_cost() -> None:
    with VirtualTime() as time:
        dispatcher = Dispatcher(clock=time, condition=time.condition)
        line: Line[str] = dispatcher.line("m", 4)

        def work() -> None:
            batch = sweep_of(line)
            time.sleep(3.0)
            line.done(batch, 3.0)

        time.start(work)
        line.join(ticket())
        time.now += 1.0  # before it wakes
        time.run_to(10.0)
        assert dispatcher.costs.sweep_seconds(line.key, 1) == pytest.approx(1.2 * 4.0)


def test_an_idle_machine_that_refuses_comes_to_doubt_what_it_knows() -> None:
    dispatcher = Dispatcher(clock=Clock())
    line = dispatcher.line("m", 4)
    dispatcher.expect(line.key, 10.0, None)
    with pytest.raises(LateError):
        line.join(ticket(1.0))
    line.join(ticket(1.0))


def test_nobody_waits_for_a_model_whose_engine_is_changed() -> None:
    clock = Clock()
    dispatcher = Dispatcher(clock=clock)
    changed, other = (dispatcher.line(name, 4) for name in ("changed", "other"))
    for line in (changed, other):
        dispatcher.expect(line.key, 10.0, None)
    first, waiting = ticket(20.0), ticket(21.0)
    changed.join(first)
    changed.join(waiting)
    other.join(ticket(100.0))
    batch = sweep_of(changed)
    clock.now = 10.0
    changed.join_first("change")
    changed.done(batch, 10.0)
    assert changed.take() == "change"
    beside = sweep_of(other)  # while the change is made, though that of the other model is urgent
    other.done(beside, 10.0)
    changed.made("change")
    assert sweep_of(changed).tickets == (waiting,)


def test_models_in_one_arena_do_not_begin_beside_each_other() -> None:
    for turns, expected in ((True, "a"), (False, "ab")):
        dispatcher = Dispatcher(clock=Clock())
        lines = {name: dispatcher.line(name, 4) for name in "ab"}
        taken: list[str] = []

        def take(name: str, line: Line[str], taken: list[str] = taken) -> None:
            if isinstance(line.take(), Sweep):
                taken.append(name)

        threads = []
        for line in lines.values():
            line.takes_turns = turns
            line.join(ticket())
        for name, line in lines.items():
            threads.append(threading.Thread(target=take, args=(name, line)))
            threads[-1].start()
            while not (line._idle or line.runs):
                pass
        for line in lines.values():
            line.leave(next(iter(line.waiting()), ticket()))
            line.close()
        for thread in threads:
            thread.join()
        assert "".join(sorted(taken)) == expected


def test_what_does_not_end_is_given_up_and_others_begin() -> None:
    dispatcher = Dispatcher(clock=Clock())
    stuck, beside, other = (dispatcher.line(name, 4) for name in ("stuck", "beside", "other"))
    for line in (stuck, beside):
        line.join(ticket())
    batch = sweep_of(stuck)
    sweep_of(beside)
    other.join(ticket())
    stuck.give_up()
    stuck.done(batch, 1.0)  # long after that
    sweep_of(other)


def test_threads_of_many_models_answer_everything_once() -> None:
    dispatcher = Dispatcher(clock=Clock())
    lines = [dispatcher.line(f"m{number}", 100) for number in range(3)]
    counted: Counter[Ticket] = Counter()

    def work(line: Line[str]) -> None:
        while (batch := line.take()) is not None:
            assert isinstance(batch, Sweep)
            counted.update(batch.tickets)
            line.done(batch, 0.0)

    threads = [threading.Thread(target=work, args=(line,)) for line in lines]
    lines[0].batching = Batching(4)
    tickets = [ticket(1e9) for _ in range(90)]
    for thread in threads:
        thread.start()
    for number, each in enumerate(tickets):
        lines[number % 3].join(each)
    for line in lines:
        line.close()
    for thread in threads:
        thread.join(30.0)
    assert counted == Counter(tickets)
