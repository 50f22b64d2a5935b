"""Whatever comes, and when: no request waits beyond its delay and the work that runs.

The lines of several models, their threads and all of their timers, on a virtual clock.
"""

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from server.errors import BusyError, NotServingError
from server.scheduling.dispatcher import Dispatcher
from server.scheduling.line import Line
from server.scheduling.sweeps import HIGHEST, LOWEST, NORMAL, Batching, Sweep, Ticket
from tests.examples import examples, over
from tests.virtual_time import VirtualTime

DELAY = 15.0
SECONDS = [0.0, 0.5, 7.0, 40.0]
"""That sweeps, changes and pauses between events take."""


@dataclass(frozen=True)
class Model:
    """``concurrency``: with several it has a run queue of its own; ``in_arena``: it takes turns."""

    batching: Batching
    concurrency: int
    in_arena: bool
    #: What its plan expects of a sweep, and what sweeps take, in turn.
    expected: float
    durations: Sequence[float]


@dataclass(frozen=True)
class Event:
    """``what`` happens ``after`` the event before; ``seconds``: until a deadline, or of a change.

    ``count``: which of the waiting requests, or how many lanes the model has after a change.
    """

    after: float
    what: str
    model: int
    seconds: float = math.inf
    count: int = 0
    priority: int = NORMAL


@dataclass(frozen=True)
class Change:
    seconds: float
    batch_size: int


@dataclass(eq=False)
class Served:
    """A model, its line, and what its threads do."""

    model: Model
    line: Line[Change]
    runs: int = 0
    changes: list[Change] = field(default_factory=list)
    batch_size: int = 1
    is_abandoned: bool = False

    @property
    def delay(self) -> float:
        return self.model.batching.delay_seconds


class Machine:
    """Plays events with the dispatcher; time passes without work only where nothing has to be done."""

    def __init__(self, time: VirtualTime, models: Sequence[Model]) -> None:
        self.time = time
        self.dispatcher = Dispatcher(clock=time, condition=time.condition, start=time.start_later)
        self.served: list[Served] = []
        self.computed: Counter[Ticket] = Counter()
        #: When requests have to be answered, and leave.
        self._deadlines: list[tuple[float, int, Served, Ticket]] = []
        self._counter = itertools.count()
        for index, model in enumerate(models):
            served = Served(model, cast(Line[Change], None), batch_size=model.batching.lanes)
            run = partial(self._run, served, itertools.cycle(model.durations).__next__)
            served.line = self.dispatcher.line(f"m{index}", 6, run, model.concurrency)
            served.line.follow(model.batching, model.in_arena)
            self.dispatcher.expect(served.line.key, model.expected, None)
            self.served.append(served)

    def _run(self, served: Served, duration: Callable[[], float], work: Sweep | Change) -> None:
        line, seconds = served.line, duration()
        served.runs += 1
        if isinstance(work, Sweep):
            assert len(work.tickets) <= served.batch_size
            self.time.sleep(seconds)
            self.computed.update(work.tickets)
            line.done(work, seconds)
        else:
            self.time.sleep(work.seconds)
            served.batch_size = work.batch_size
            line.follow(served.model.batching.within(work.batch_size), served.model.in_arena)
            line.made(work)
            served.changes.remove(work)
        served.runs -= 1

    def play(self, event: Event) -> Ticket | None:
        """Let ``event`` happen now; return the request that was let in, if one was."""
        served = self.served[event.model % len(self.served)]
        line = served.line
        if event.what == "join":
            deadline = self.time() + event.seconds
            ticket = Ticket("", deadline, event.priority, self.time())
            try:
                line.join(ticket)
            except (BusyError, NotServingError):
                return None
            if deadline < math.inf:
                entry = (deadline, next(self._counter), served, ticket)
                heapq.heappush(self._deadlines, entry)
            return ticket
        if event.what == "leave" and (waiting := sorted(line.waiting(), key=id)):
            line.leave(waiting[event.count % len(waiting)])
        elif event.what == "change":
            change = Change(min(event.seconds, 20.0), 1 + event.count % 4)
            try:
                line.join_first(change)
            except NotServingError:
                return None
            served.changes.append(change)
        elif event.what == "close":
            line.close()
        elif event.what == "abandon":  # as Worker.abandon
            served.is_abandoned = True
            line.close()
            for change in line.take_changes():
                served.changes.remove(change)
            line.take_waiting()
            line.abandon()
        return None

    def run_to(self, until: float) -> None:
        while True:
            self.time.run_to(self.time.now)
            deadline = self._deadlines[0][0] if self._deadlines else math.inf
            moment = min(self.time.next_end(), deadline, until)
            self._check(moment)
            if moment == math.inf:
                return
            self.time.run_to(moment)
            while self._deadlines and self._deadlines[0][0] <= moment:
                *_, served, ticket = heapq.heappop(self._deadlines)
                served.line.leave(ticket)
            if moment >= until:
                self.time.run_to(moment)
                return

    def _check(self, moment: float) -> None:
        """Check that no request is due that could run, if nothing happens between now and ``moment``."""
        for served in self.served:
            if served.line.changing or any(map(self._is_before(served), self.served)):
                continue
            for ticket in served.line.waiting():
                assert moment <= ticket.arrived + served.delay

    def _is_before(self, served: Served) -> "partial[bool]":
        return partial(_holds_up, served)


def _holds_up(served: Served, other: Served) -> bool:
    """Return whether ``other`` runs where a request of ``served`` has to wait for it."""
    same_cores = served.model.concurrency == other.model.concurrency == 1
    same_arena = served.model.in_arena and other.model.in_arena
    return bool(other.line.runs) and (served is other or same_cores or same_arena)


seconds = st.sampled_from(SECONDS)
models = st.builds(
    Model,
    st.builds(
        Batching, st.integers(1, 4), st.sampled_from([(), (2,)]), st.sampled_from([0.0, 1.0, DELAY])
    ),
    st.sampled_from([1, 1, 2]),
    st.booleans(),
    seconds,
    st.lists(seconds, min_size=1, max_size=4),
)
events = st.builds(
    Event,
    seconds,
    st.sampled_from(["join"] * 12 + ["leave", "leave", "change", "close", "abandon"]),
    st.integers(0, 2),
    st.sampled_from([math.inf, math.inf, 5.0, 30.0, 100.0]),
    st.integers(0, 5),
    st.sampled_from([HIGHEST, NORMAL, NORMAL, LOWEST]),
)


@given(
    st.lists(models, min_size=1, max_size=3),
    st.lists(events, max_size=15),
    st.integers(0, 1 << 16),
)
@examples(25, many=2000, deadline=None)
def test_no_request_waits_beyond_its_delay_and_the_work_that_runs(
    shared: list[Model], coming: list[Event], seed: int
) -> None:
    with VirtualTime(random.Random(seed).randrange) as time:
        machine = Machine(time, shared)
        admitted = []
        moment = 0.0
        for event in coming:
            moment += event.after
            machine.run_to(moment)
            ticket = machine.play(event)
            admitted += [] if ticket is None else [ticket]
        machine.run_to(math.inf)
        assert not any(served.line.waiting() or served.runs for served in machine.served)
        assert machine.computed.keys() <= set(admitted)
        assert set(machine.computed.values()) <= {1}


def begins(
    batching: Batching, arrivals: Sequence[float], duration: float = 0.0, concurrency: int = 1
) -> list[float]:
    """Return when each of the requests of ``arrivals`` begins, of a model whose batches take so long."""
    started: dict[int, float] = {}
    with VirtualTime() as time:
        dispatcher = Dispatcher(clock=time, condition=time.condition, start=time.start_later)

        def work(batch: Sweep | str) -> None:
            assert isinstance(batch, Sweep)
            started.update({id(ticket): time() for ticket in batch.tickets})
            time.sleep(duration)
            line.done(batch, duration)

        line: Line[str] = dispatcher.line("m", 99, work, concurrency)
        line.follow(batching, takes_turns=False)
        tickets = []
        for arrived in arrivals:
            time.run_to(arrived)
            tickets.append(Ticket("", math.inf, arrived=arrived))
            line.join(tickets[-1])
        time.run_to(1e6)
        return [started.get(id(ticket), math.inf) for ticket in tickets]


@over("concurrency", [1, 2, 3])
def test_one_two_and_many_requests_wait_no_longer_than_the_delay(concurrency: int) -> None:
    two = Batching(2, (), DELAY)
    assert begins(two, [3.0], concurrency=concurrency) == [18.0]
    assert begins(two, [3.0, 4.0], concurrency=concurrency) == [4.0, 4.0]
    assert begins(two, [3.0, 40.0], concurrency=concurrency) == [18.0, 55.0]
    assert begins(two, [1.0, 2.0, 3.0, 4.0, 5.0], concurrency=concurrency) == [
        2.0,
        2.0,
        4.0,
        4.0,
        20.0,
    ]
    # Those that come while one computes have waited long enough when it has ended.
    busy = begins(two, [0.0, 1.0, 2.0], duration=50.0)
    assert busy == [1.0, 1.0, 51.0]


@over("delay", [1e9, 1e12, 1e300])
def test_a_delay_may_be_longer_than_a_condition_can_wait(delay: float) -> None:
    assert begins(Batching(2, (), delay), [0.0, 1.0]) == [1.0, 1.0]
