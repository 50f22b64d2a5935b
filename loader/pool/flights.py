"""Reads that have been started: how many at once, and which of them hang. Pure: time is an argument.

A read that hangs cannot be taken back, because the disk may still write into its memory. It keeps its place
among its client's reads, and that client gets no more of them; but it gives up its place among the reads of
all models, so that the others go on. At most ``replacements`` places are given up at a time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic

from loader.pool.order import Order, R, ReadClient


@dataclass(eq=False)
class Flight(Generic[R]):
    """A request in flight. ``started``: seconds; ``replaced``: another may fly in its place."""

    client: ReadClient[R]
    request: R
    started: float
    hung: bool = False
    replaced: bool = False


class Flights(Generic[R]):
    """At most ``capacity`` requests of ``order`` at once, beside those that hang."""

    def __init__(
        self, order: Order[R], capacity: int, hung_seconds: float, replacements: int
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity}: at least one read is in flight")
        self._order = order
        self._capacity = capacity
        self._hung_seconds = hung_seconds
        self._replacements = replacements
        self._flying: dict[Flight[R], None] = {}  # the oldest first
        self._replaced = 0

    def __len__(self) -> int:
        return len(self._flying)

    @property
    def hung(self) -> int:
        return sum(flight.hung for flight in self._flying)

    @property
    def replaced(self) -> int:
        """How many have given up their place."""
        return self._replaced

    def launch(self, now: float) -> list[Flight[R]]:
        """Take as many requests out of their lines as may start now."""
        launched: list[Flight[R]] = []
        while len(self._flying) - self._replaced < self._capacity:
            following = self._order.start()
            if following is None:
                break
            flight = Flight(*following, now)
            self._flying[flight] = None
            launched.append(flight)
        return launched

    def land(self, flight: Flight[R]) -> None:
        """Note that the read of ``flight`` has ended; its client is no longer stuck with the last one."""
        del self._flying[flight]
        self._replaced -= flight.replaced
        self._order.ended(flight.client)
        if flight.hung and not any(each.hung for each in self._of(flight.client)):
            self._order.set_stuck(flight.client, False)

    def check(self, now: float) -> list[Flight[R]]:
        """Return the flights found to hang just now; their clients are stuck."""
        found = [
            flight
            for flight in self._flying
            if not flight.hung and now - flight.started >= self._hung_seconds
        ]
        for flight in found:
            flight.hung = True
            flight.replaced = self._replaced < self._replacements
            self._replaced += flight.replaced
            self._order.set_stuck(flight.client, True)
        return found

    def expiry(self) -> float | None:
        """Return when to check next, in seconds; None when no read could begin to hang."""
        started = (flight.started for flight in self._flying if not flight.hung)
        oldest = min(started, default=None)
        return None if oldest is None else oldest + self._hung_seconds

    def _of(self, client: ReadClient[R]) -> Iterable[Flight[R]]:
        return (flight for flight in self._flying if flight.client is client)
