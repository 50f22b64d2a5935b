"""The order of reads between clients, without IO: its rules, fairness and bounded waiting."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import LoaderError
from loader.pool.order import PATIENCE_BYTES, Flight, Flights, Order, ReadClient, Urgency

MIB = 1 << 20


@dataclass(frozen=True)
class Wish:
    n_bytes: int = MIB
    urgency: Urgency = Urgency.NEEDED_LATER
    deadline: float | None = None
    number: int = 0


Pair = tuple[ReadClient[Wish], Wish]


def started(order: Order[Wish]) -> Pair:
    following = order.start()
    assert following is not None
    return following


def drain(order: Order[Wish]) -> list[Pair]:
    """Start all requests, one at a time; return them in order."""
    found = []
    while (following := order.start()) is not None:
        order.ended(following[0])
        found.append(following)
    return found


wishes = st.builds(
    Wish,
    n_bytes=st.integers(0, 8 * MIB),
    urgency=st.sampled_from(Urgency),
    deadline=st.none() | st.floats(0, 100),
    number=st.integers(0, 2**60),
)


# Every request, in every order of events


@given(st.data())
def test_all_are_started_once_in_order_and_within_depth(data: st.DataObject) -> None:
    order: Order[Wish] = Order()
    depths = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    clients = [order.register(f"client {number}", depth) for number, depth in enumerate(depths)]
    sent: dict[ReadClient[Wish], list[Wish]] = {client: [] for client in clients}
    got: dict[ReadClient[Wish], list[Wish]] = {client: [] for client in clients}
    for step in data.draw(st.lists(st.integers(0, 2), max_size=60)):
        client = data.draw(st.sampled_from(clients))
        if step == 0:
            wish = data.draw(wishes)
            order.add(client, wish)
            sent[client].append(wish)
        elif step == 1 and (following := order.start()) is not None:
            got[following[0]].append(following[1])
        elif step == 2 and client.in_flight:
            order.ended(client)
        assert all(each.in_flight <= each.depth for each in clients)
    for client in clients:
        for _ in range(client.in_flight):
            order.ended(client)
    for client, wish in drain(order):
        got[client].append(wish)
    assert got == sent
    assert all(not client.waiting and not client.in_flight for client in clients)


@given(lines=st.lists(st.lists(wishes, max_size=40), min_size=2, max_size=5))
def test_no_client_waits_for_more_than_patience_and_a_read_of_each(lines: list[list[Wish]]) -> None:
    """Whatever urgencies and deadlines the others have."""
    order: Order[Wish] = Order()
    clients = [order.register(str(number)) for number in range(len(lines))]
    for client, line in zip(clients, lines, strict=True):
        for wish in line:
            order.add(client, wish)
    most = max((wish.n_bytes for line in lines for wish in line), default=0)
    bound = PATIENCE_BYTES + len(lines) * max(most, 1)
    while (following := order.start()) is not None:
        order.ended(following[0])
        assert all(client.passed_bytes <= bound for client in clients)


@given(
    first=st.lists(st.integers(1, 4 * MIB), min_size=1, max_size=60),
    second=st.lists(st.integers(1, 4 * MIB), min_size=1, max_size=60),
)
def test_clients_that_both_wait_get_the_same_share(first: list[int], second: list[int]) -> None:
    """Up to one request of each: the bound of start-time fair queueing."""
    order: Order[Wish] = Order()
    clients = [order.register("first"), order.register("second")]
    for client, line in zip(clients, (first, second), strict=True):
        for n_bytes in line:
            order.add(client, Wish(n_bytes))
    served = dict.fromkeys(clients, 0)
    while all(client.waiting for client in clients):
        client, wish = started(order)
        order.ended(client)
        served[client] += wish.n_bytes
        assert abs(served[clients[0]] - served[clients[1]]) <= max(first) + max(second)


@given(deadlines=st.lists(st.floats(0, 1000), min_size=2, max_size=8, unique=True))
def test_earliest_deadline_first(deadlines: list[float]) -> None:
    order: Order[Wish] = Order()
    without = order.register("without")
    order.add(without, Wish())
    for number, deadline in enumerate(deadlines):
        order.add(order.register(str(number)), Wish(deadline=deadline))
    found = [wish.deadline for _, wish in drain(order)]
    assert found == [*sorted(deadlines), None]


# Rules one by one


def test_urgent_comes_before_ahead_whatever_the_deadlines() -> None:
    order: Order[Wish] = Order()
    for urgency in reversed(Urgency):
        order.add(order.register(urgency.name), Wish(urgency=urgency, deadline=float(urgency)))
    assert [wish.urgency for _, wish in drain(order)] == sorted(Urgency)


def test_first_in_line_is_as_urgent_as_what_waits_behind_it() -> None:
    order: Order[Wish] = Order()
    plain, urgent = order.register("plain"), order.register("urgent")
    order.add(plain, Wish())
    order.add(urgent, Wish(urgency=Urgency.AHEAD))
    order.add(urgent, Wish(urgency=Urgency.WAITED_FOR))
    assert [client.name for client, _ in drain(order)] == ["urgent", "urgent", "plain"]


def test_hurry_concerns_what_is_in_line_now() -> None:
    order: Order[Wish] = Order()
    one, other = order.register("one"), order.register("other")
    for client in (one, one, other):
        order.add(client, Wish(urgency=Urgency.AHEAD))
    order.hurry(one)
    order.add(one, Wish(urgency=Urgency.AHEAD))
    assert [client.name for client, _ in drain(order)] == ["one", "one", "other", "one"]


def test_client_that_returns_has_no_claim_on_what_it_did_not_use() -> None:
    order: Order[Wish] = Order()
    busy, returning = order.register("busy"), order.register("returning")
    for _ in range(100):
        order.add(busy, Wish())
    for _ in range(50):
        order.ended(started(order)[0])
    for _ in range(50):
        order.add(returning, Wish())
    names = [client.name for client, _ in drain(order)]
    assert all(names[:100].count(name) == 50 for name in ("busy", "returning"))
    assert all(one != other for one, other in pairwise(names[:99]))


def test_starving_client_comes_at_last() -> None:
    order: Order[Wish] = Order()
    greedy, patient = order.register("greedy"), order.register("patient")
    order.add(patient, Wish(urgency=Urgency.AHEAD))
    for _ in range(2 * PATIENCE_BYTES // MIB):
        order.add(greedy, Wish(urgency=Urgency.WAITED_FOR, deadline=0.0))
    names = [client.name for client, _ in drain(order)]
    assert names.index("patient") == PATIENCE_BYTES // MIB + 1


def test_depth_holds_a_client_back_and_no_other() -> None:
    order: Order[Wish] = Order()
    one, other = order.register("one", depth=1), order.register("other", depth=2)
    for client in (one, one, other, other):
        order.add(client, Wish())
    assert [started(order)[0] for _ in range(3)].count(one) == 1
    assert order.start() is None
    order.ended(one)
    assert started(order)[0] is one


def test_stuck_client_gets_nothing_until_it_is_free() -> None:
    order: Order[Wish] = Order()
    client = order.register("client")
    order.add(client, Wish())
    order.set_stuck(client, True)
    assert order.start() is None
    order.set_stuck(client, False)
    assert started(order)[0] is client


def test_line_is_bounded_and_the_error_names_the_client() -> None:
    order: Order[Wish] = Order(queue_limit=2)
    client = order.register("resnet50")
    order.add(client, Wish())
    order.add(client, Wish())
    with pytest.raises(LoaderError, match="client 'resnet50': 2 reads wait already"):
        order.add(client, Wish())
    assert order.clear() == [Wish(), Wish()]
    assert order.start() is None


def test_clients_come_and_go() -> None:
    order: Order[Wish] = Order()
    client = order.register("client")
    order.add(client, Wish())
    with pytest.raises(LoaderError, match="1 reads wait and 0 are in flight"):
        order.forget(client)
    started(order)
    with pytest.raises(LoaderError, match="0 reads wait and 1 are in flight"):
        order.forget(client)
    order.ended(client)
    order.forget(client)
    order.forget(client)
    assert order.clients == []
    with pytest.raises(LoaderError, match="not registered"):
        order.add(client, Wish())
    with pytest.raises(ValueError, match="at least one read"):
        order.register("none", depth=0)


# Reads in flight and reads that hang, on a clock that only tests move.


HUNG_SECONDS = 10.0


@dataclass(frozen=True)
class SmallWish:
    n_bytes: int = 1
    urgency: Urgency = Urgency.NEEDED_LATER
    deadline: float | None = None


def build(
    capacity: int, replacements: int, *lines: int
) -> tuple[Flights[SmallWish], Order[SmallWish], list[ReadClient[SmallWish]]]:
    order: Order[SmallWish] = Order()
    clients = [order.register(str(number)) for number in range(len(lines))]
    for client, length in zip(clients, lines, strict=True):
        for _ in range(length):
            order.add(client, SmallWish())
    return Flights(order, capacity, HUNG_SECONDS, replacements), order, clients


def test_hung_reads_of_one_client_do_not_block_another() -> None:
    """Both places are held by reads that never return; the other client's all get through."""
    flights, _, (hanging, other) = build(2, 8, 2, 0)
    stuck = flights.launch(0.0)
    assert [flight.client for flight in stuck] == [hanging, hanging]
    assert flights.expiry() == HUNG_SECONDS
    for _ in range(5):
        other.waiting.append(SmallWish())
    assert flights.launch(1.0) == []
    assert flights.check(9.9) == []
    assert flights.check(10.0) == stuck
    assert hanging.stuck
    assert not other.stuck
    for _ in range(3):
        for flight in flights.launch(11.0):
            assert flight.client is other
            flights.land(flight)
    assert not other.waiting
    assert (len(flights), flights.hung, flights.replaced) == (2, 2, 2)
    assert flights.expiry() is None  # what hangs is not looked at again


def test_client_is_free_when_its_last_hung_read_ends() -> None:
    flights, order, (client,) = build(2, 8, 2)
    first, second = flights.launch(0.0)
    flights.check(HUNG_SECONDS)
    order.add(client, SmallWish())
    flights.land(first)
    assert order.clients[0].stuck
    assert flights.launch(11.0) == []
    flights.land(second)
    assert not client.stuck
    assert len(flights.launch(12.0)) == 1


def test_replacements_are_bounded() -> None:
    flights, _, clients = build(2, 3, *[2] * 6)
    now = 0.0
    for _ in range(10):
        flights.launch(now)
        now += HUNG_SECONDS
        flights.check(now)
    assert flights.replaced == 3
    assert len(flights) == 5  # three replaced, two that hold their places
    assert sum(len(client.waiting) for client in clients) == 12 - 5


@given(st.data())
def test_no_more_than_capacity_beside_those_replaced(data: st.DataObject) -> None:
    capacity = data.draw(st.integers(1, 4))
    replacements = data.draw(st.integers(0, 3))
    flights, order, clients = build(capacity, replacements, 0, 0, 0)
    flying: list[Flight[SmallWish]] = []
    now, sent, landed = 0.0, 0, 0
    for step in data.draw(st.lists(st.integers(0, 3), max_size=50)):
        if step == 0:
            order.add(data.draw(st.sampled_from(clients)), SmallWish())
            sent += 1
        elif step == 1 and flying:
            flights.land(flying.pop(data.draw(st.integers(0, len(flying) - 1))))
            landed += 1
        elif step == 2:
            now += data.draw(st.sampled_from([0.0, 1.0, HUNG_SECONDS]))
            flights.check(now)
        flying += flights.launch(now)
        assert len(flights) - flights.replaced <= capacity
        assert flights.replaced <= min(replacements, flights.hung)
        assert {flight.client for flight in flying if flight.hung} == {
            client for client in clients if client.stuck
        }
        expiry = flights.expiry()
        assert (expiry is None) == all(flight.hung for flight in flying)
    while flying:
        flights.land(flying.pop())
        landed += 1
        flying += flights.launch(now)
    assert landed == sent
    assert flights.expiry() is None


def test_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one read"):
        build(0, 8)
