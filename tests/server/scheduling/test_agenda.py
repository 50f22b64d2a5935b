"""The decision on a virtual clock: what was let in is in time, whatever comes and however sweeps end."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.scheduling.agenda import Agenda
from server.scheduling.sweeps import HIGHEST, LOWEST, NORMAL, Batching, Sweep, Ticket
from tests.examples import examples, over

MODELS = "abc"
#: A sweep reads its weights once and computes for each request.
READ, KERNEL = {"a": 5.0, "b": 0.0, "c": 20.0}, {"a": 2.0, "b": 10.0, "c": 1.0}


def cost(model: str, requests: int) -> float:
    return READ[model] + requests * KERNEL[model]


@dataclass(frozen=True)
class Arrival:
    """A request that comes ``after`` the one before, with so much time, and is patient or leaves.

    ``away``: the models that are away from then on.
    """

    after: float
    model: str
    seconds: float
    priority: int = NORMAL
    leaves: bool = False
    away: frozenset[str] = frozenset()


arrivals = st.lists(
    st.builds(
        Arrival,
        st.floats(0, 30),
        st.sampled_from(MODELS),
        st.floats(0, 120),
        st.sampled_from([HIGHEST, NORMAL, LOWEST]),
        st.booleans(),
        st.frozensets(st.sampled_from(MODELS), max_size=1),
    ),
    max_size=20,
)
batching = st.builds(
    Batching, st.integers(1, 4), st.sampled_from([(), (2,)]), st.sampled_from([0.0, 15.0])
)


class Machine:
    """Plays an agenda of one place: it works at one sweep at a time, whichever, while there are any."""

    def __init__(self, shared: Batching, data: st.DataObject) -> None:
        self.queue = Agenda(cost, lambda model: shared, away=lambda model: model in self.away)
        self.now = 0.0
        self.away = frozenset[str]()
        self.admitted: list[Ticket] = []
        self.ended: dict[int, float] = {}
        self._data = data
        self._left: dict[Sweep, float] = {}

    def run_to(self, until: float) -> None:
        while self.now < until:
            self._start()
            look = min([*self.queue.waits(self.now).values(), until])
            if not self._left:
                self.now = look
                continue
            sweep = self._data.draw(st.sampled_from(list(self._left)))
            worked = min(self._left[sweep], look - self.now)
            self.now += worked
            self._left[sweep] -= worked
            if self._left[sweep] <= 0.0:
                del self._left[sweep]
                self.ended |= {id(ticket): self.now for ticket in sweep.tickets}
                self.queue.end(sweep, self.now)

    def _start(self) -> None:
        def can(model: str) -> bool:
            return model not in self.away and all(sweep.model != model for sweep in self._left)

        while (sweep := self.queue.start(self.now, can)) is not None:
            share = self._data.draw(st.sampled_from([0.0, 0.3, 1.0]))
            self._left[sweep] = share * cost(sweep.model, len(sweep.tickets))


@given(arrivals, batching, st.data())
@examples(15, many=500, deadline=None)
def test_whoever_is_let_in_is_in_time(
    coming: list[Arrival], shared: Batching, data: st.DataObject
) -> None:
    machine = Machine(shared, data)
    at = 0.0
    gone: set[int] = set()
    for arrival in coming:
        at += arrival.after
        machine.run_to(at)
        machine.away = arrival.away
        # Requests for a model that is away are promised nothing.
        waiting = [sweep for sweep in machine.queue.sweeps if sweep.model in arrival.away]
        gone |= {id(ticket) for sweep in waiting for ticket in sweep.tickets}
        ticket = Ticket(arrival.model, at + arrival.seconds, arrival.priority, at)
        before = machine.queue.sweeps
        refusal = machine.queue.admit(ticket, at)
        if refusal is not None:
            assert refusal > 0
            assert machine.queue.sweeps == before
            continue
        machine.admitted.append(ticket)
        gone |= {id(ticket)} if arrival.model in arrival.away else set()
        if arrival.leaves:
            waited = any(ticket in sweep.tickets for sweep in machine.queue.sweeps)
            machine.queue.leave(ticket)
            gone |= {id(ticket)} if waited else set()
    machine.away = frozenset()
    machine.run_to(at + 10_000)
    assert machine.queue.is_idle
    for ticket in machine.admitted:
        if id(ticket) not in gone:
            assert machine.ended[id(ticket)] <= ticket.deadline + 1e-6


@given(arrivals)
@examples(15, many=500, deadline=None)
def test_nobody_is_refused_for_whom_an_order_by_deadline_has_room(coming: list[Arrival]) -> None:
    """Earliest deadline first is the best order there is: what it cannot do cannot be done."""
    queue = Agenda(cost)
    admitted: list[Ticket] = []
    for arrival in coming:
        ticket = Ticket(arrival.model, arrival.seconds, arrival.priority)
        if queue.admit(ticket, 0.0) is None:
            admitted.append(ticket)
            continue
        end, late = 0.0, False
        for other in sorted([*admitted, ticket], key=lambda arrival: arrival.deadline):
            end += cost(other.model, 1)
            late = late or end > other.deadline
        assert late
    assert sorted(map(id, admitted)) == sorted(id(t) for s in queue.sweeps for t in s.tickets)


def anybody(model: str) -> bool:
    return True


def test_a_refusal_says_when_it_would_do() -> None:
    queue = Agenda(cost)
    assert queue.admit(Ticket("b", 15.0), 0.0) is None
    assert queue.admit(Ticket("b", 15.0), 0.0) == pytest.approx(5.0)
    # The same request five seconds later, with the same time to answer it.
    assert queue.start(0.0, anybody) is not None
    assert queue.admit(Ticket("b", 5.0 + 15.0), 5.0) is None


@pytest.mark.parametrize(
    ("given", "order"),
    [
        pytest.param([("a", 90, 2), ("b", 80, 2)], "ba", id="the earlier deadline first"),
        pytest.param([("a", 90, 1), ("b", 80, 2)], "ab", id="before that the higher priority"),
        pytest.param([("a", 90, 1), ("b", 11, 3)], "ba", id="not where it makes another one late"),
        pytest.param([("b", 11, 3), ("a", 90, 1)], "ba", id="nor where it comes later"),
        pytest.param([("a", 80, 2), ("b", 80, 2)], "ab", id="of equals who came first"),
    ],
)
def test_the_order(given: list[tuple[str, float, int]], order: str) -> None:
    queue = Agenda(cost)
    for model, deadline, priority in given:
        assert queue.admit(Ticket(model, deadline, priority), 0.0) is None
    assert "".join(sweep.model for sweep in queue.sweeps) == order


def test_requests_of_a_model_share_a_sweep_as_far_as_it_carries_them() -> None:
    queue = Agenda(cost, lambda model: Batching(3))
    for _ in range(7):
        assert queue.admit(Ticket("a", 100.0), 0.0) is None
    assert [len(sweep.tickets) for sweep in queue.sweeps] == [3, 3, 1]


def test_nobody_joins_a_sweep_that_would_be_late_for_it() -> None:
    queue = Agenda(cost, lambda model: Batching(4))
    assert queue.admit(Ticket("a", 7.5), 0.0) is None
    assert queue.admit(Ticket("a", 100.0), 0.0) is None
    assert [len(sweep.tickets) for sweep in queue.sweeps] == [1, 1]


@over(
    "requests, at, starts",
    [(1, 0.0, False), (2, 0.0, True), (1, 15.0, True), (3, 0.0, False), (4, 0.0, True)],
)
def test_a_sweep_waits_for_more_but_not_at_sizes_that_are_preferred(
    requests: int, at: float, starts: bool
) -> None:
    queue = Agenda(cost, lambda model: Batching(4, (2,), 15.0))
    for _ in range(requests):
        assert queue.admit(Ticket("a", 100.0), 0.0) is None
    assert (queue.start(at, anybody) is not None) == starts


def test_it_says_when_to_look_again() -> None:
    queue = Agenda(cost, lambda model: Batching(4, (), 15.0))
    assert queue.waits(0.0) == {}
    assert queue.admit(Ticket("a", 100.0, arrived=1.0), 1.0) is None
    assert queue.waits(1.0) == {"a": 16.0}
    assert queue.waits(16.0) == {}


def test_no_sweep_waits_for_more_where_somebody_would_be_late() -> None:
    queue = Agenda(cost, lambda model: Batching(4, (), 15.0))
    assert queue.admit(Ticket("a", 20.0), 0.0) is None
    assert queue.start(0.0, anybody) is not None


def test_beside_one_that_runs_another_begins_only_where_both_are_in_time() -> None:
    for deadline, begins in ((40.0, True), (25.0, False)):
        queue = Agenda(cost)
        for model, until in (("c", deadline), ("b", 100.0)):
            assert queue.admit(Ticket(model, until), 0.0) is None
        assert queue.start(0.0, anybody) is not None
        assert (queue.start(0.0, anybody) is not None) == begins


@pytest.mark.parametrize(
    "now", [pytest.param(0.0, id="in time"), pytest.param(90.0, id="late already")]
)
def test_nobody_waits_for_a_model_that_is_away(now: float) -> None:
    away = {"c"}
    queue = Agenda(cost, away=away.__contains__)
    for model, deadline in (("c", 22.0), ("b", 200.0)):
        assert queue.admit(Ticket(model, deadline), 0.0) is None
    assert queue.admit(Ticket("a", now + 8.0), now) is None
    order = [queue.start(now, lambda model: model not in away)]
    assert [sweep.model for sweep in order if sweep is not None] == ["a"]
    queue.end(next(filter(None, order)), now + 7.0)
    away.clear()
    assert [sweep.model for sweep in queue.sweeps] == ["c", "b"]
    sweep = queue.start(now + 7.0, anybody)
    assert sweep is not None
    assert sweep.model == "c"


def test_what_still_runs_counts_when_the_one_beside_it_has_ended() -> None:
    queue = Agenda(cost)
    for model in "cb":
        assert queue.admit(Ticket(model, 100.0), 0.0) is None
    sweep, beside = (queue.start(0.0, anybody) for _ in range(2))
    assert sweep is not None
    assert beside is not None
    queue.end(sweep, 5.0)
    assert queue.admit(Ticket("a", 20.0), 5.0) == pytest.approx(2.0)
    assert queue.admit(Ticket("a", 22.0), 5.0) is None


# Requests that were let in, and are still being read


def test_what_is_expected_reserves_time_from_those_after_it() -> None:
    queue = Agenda(cost)
    assert queue.ask(Ticket("b", 25.0), 0.0) is None
    expected = queue.expect("b", 20.0, 0, 0.0)
    assert queue.ask(Ticket("b", 20.0), 0.0) is None
    assert queue.ask(Ticket("b", 20.0), 0.0, expected) is None
    queue.expect("b", 20.0, 0, 0.0)
    assert queue.ask(Ticket("b", 25.0), 0.0) == pytest.approx(5.0)
    assert queue.ask(Ticket("b", 20.0), 0.0, expected) is None, "it does not wait for itself"
    assert queue.ask(Ticket("b", 12.0), 0.0) is None, "those with later deadlines are behind it"
    # It joins, or has ended.
    queue.came(expected)
    queue.came(expected)
    assert queue.ask(Ticket("b", 25.0), 0.0) is None
    # While it waits for memory it is no fault of its own that it does not come.
    queue.expect_still(expected, 5.0)
    assert queue.ask(Ticket("b", 24.0), 5.0) == pytest.approx(1.0)


def test_late_refusals_make_what_is_expected_count_for_more() -> None:
    queue = Agenda(lambda model, requests: 1.0)
    for _ in range(10):
        queue.expect("b", 9.0, 0, 0.0)
    assert queue.ask(Ticket("b", 11.0), 0.0) is None
    for _ in range(10):
        queue.note_refusal(is_late=True)
    assert queue.ask(Ticket("b", 20.5), 0.0) == pytest.approx(0.5)
    for _ in range(1000):
        queue.note_refusal(is_late=True)
    assert queue.ask(Ticket("b", 41.0), 0.0) is None, "for at most four times as much"
    for _ in range(10_000):
        queue.note_refusal(is_late=False)
    assert queue.ask(Ticket("b", 11.001), 0.0) is None


@over("n_bytes", [0, 1 << 20, 1 << 24])
def test_nothing_is_reserved_for_long_for_what_does_not_come(n_bytes: int) -> None:
    queue = Agenda(lambda model, requests: 1.0)
    for _ in range(100):
        queue.expect("b", 2.0, n_bytes, 0.0)
    assert queue.ask(Ticket("b", 2.0), 0.01) is not None
    assert not queue.is_idle
    assert queue.ask(Ticket("b", 4.0), 0.1 + n_bytes / (1 << 24)) is None
    assert queue.is_idle


@given(arrivals, st.randoms(use_true_random=False))
@examples(15, many=500, deadline=None)
def test_all_that_are_admitted_unread_are_admitted_when_they_have_come(
    coming: list[Arrival], order: random.Random
) -> None:
    """In whatever order they come, where they were asked for in that of their deadlines."""
    queue = Agenda(cost)
    admitted = []
    for arrival in sorted(coming, key=lambda arrival: arrival.seconds):
        ticket = Ticket(arrival.model, arrival.seconds)
        if queue.ask(ticket, 0.0) is None:
            admitted.append((ticket, queue.expect(arrival.model, arrival.seconds, 0, 0.0)))
    order.shuffle(admitted)
    for ticket, expected in admitted:
        queue.came(expected)
        assert queue.admit(ticket, 0.0) is None


@given(arrivals, st.randoms(use_true_random=False))
@examples(15, many=500, deadline=None)
def test_no_request_is_late_if_a_batch_begins_while_it_is_read(
    coming: list[Arrival], order: random.Random
) -> None:
    """Batches are not interrupted: what is let in unread leaves time for one that begins before it."""
    queue = Agenda(lambda model, requests: 3.0 * requests)
    assert queue.admit(Ticket("a", 1000.0), 0.0) is None
    assert queue.start(0.0, lambda model: True) is not None
    admitted = []
    for arrival in sorted(coming, key=lambda arrival: arrival.seconds):
        ticket = Ticket(arrival.model, arrival.seconds)
        if queue.ask(ticket, 0.0, is_read=False) is None:
            admitted.append((ticket, queue.expect(arrival.model, arrival.seconds, 0, 0.0)))
    order.shuffle(admitted)
    for ticket, expected in admitted:
        queue.came(expected)
        assert queue.admit(ticket, 0.0) is None
        queue.start(0.0, lambda model: True)


def test_only_other_requests_may_block_one_that_is_read() -> None:
    queue = Agenda(lambda model, requests: 3.0)
    assert queue.ask(Ticket("a", 3.5), 0.0, is_read=False) is None
    queue.expect("b", 9.0, 0, 0.0)
    assert queue.ask(Ticket("a", 3.5), 0.0) is None
    assert queue.ask(Ticket("a", 3.5), 0.0, is_read=False) is not None
    assert queue.ask(Ticket("a", 6.0), 0.0, is_read=False) is None
