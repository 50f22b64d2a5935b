"""Reads in flight and reads that hang, on a clock that only tests move."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.pool.flights import Flight, Flights
from loader.pool.order import Order, ReadClient, Urgency

HUNG_SECONDS = 10.0


@dataclass(frozen=True)
class Wish:
    n_bytes: int = 1
    urgency: Urgency = Urgency.NEEDED_LATER
    deadline: float | None = None


def build(
    capacity: int, replacements: int, *lines: int
) -> tuple[Flights[Wish], Order[Wish], list[ReadClient[Wish]]]:
    order: Order[Wish] = Order()
    clients = [order.register(str(number)) for number in range(len(lines))]
    for client, length in zip(clients, lines, strict=True):
        for _ in range(length):
            order.add(client, Wish())
    return Flights(order, capacity, HUNG_SECONDS, replacements), order, clients


def test_hung_reads_of_one_client_do_not_block_another() -> None:
    """Both places are held by reads that never return; the other client's all get through."""
    flights, _, (hanging, other) = build(2, 8, 2, 0)
    stuck = flights.launch(0.0)
    assert [flight.client for flight in stuck] == [hanging, hanging]
    assert flights.expiry() == HUNG_SECONDS
    for _ in range(5):
        other.waiting.append(Wish())
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
    order.add(client, Wish())
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
    flying: list[Flight[Wish]] = []
    now, sent, landed = 0.0, 0, 0
    for step in data.draw(st.lists(st.integers(0, 3), max_size=50)):
        if step == 0:
            order.add(data.draw(st.sampled_from(clients)), Wish())
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
