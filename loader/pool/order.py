"""Whose read comes next, and how many have been started: between models that share one disk. Pure, no IO.

Rules, from first to last:

1. Within a client (an engine) first come, first served, and at most ``depth`` reads in flight.
2. A client that others have passed by more than ``PATIENCE_BYTES`` comes next, the longest passed
   first: no client waits for more than that and one read of each other client.
3. The more urgent client. Its urgency is that of its most urgent request, since those before it in
   line must be read first.
4. The earlier deadline; none comes after any.
5. The smaller share of bytes: start-time fair queueing with equal weights. A client that returns
   from a pause has no claim on what it did not use.
6. The client registered first.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import Generic, Protocol, TypeVar

from loader.errors import LoaderError

#: 25 ms of a disk that reads 2.5 GB/s.
PATIENCE_BYTES = 64 << 20
DEFAULT_DEPTH = 2
QUEUE_LIMIT = 1024
#: So many reads may hang before they hold up the models whose disk still answers.
REPLACEMENTS = 8


class Urgency(IntEnum):
    """How soon a read is needed; smaller is more urgent."""

    WAITED_FOR = 0
    NEEDED_LATER = 1
    AHEAD = 2


class OrderedRead(Protocol):
    """What the order needs of a read. ``deadline``: on time.monotonic's clock, or None."""

    @property
    def n_bytes(self) -> int: ...
    @property
    def urgency(self) -> Urgency: ...
    @property
    def deadline(self) -> float | None: ...


R = TypeVar("R", bound=OrderedRead)


@dataclass(eq=False)
class ReadClient(Generic[R]):
    """One engine's line of requests. Its fields belong to the ``Order`` that registered it.

    ``hurried``: so many requests at the front are waited for, whatever they said when they came.
    ``tag``: its virtual time, in bytes. ``passed_bytes``: started by others while it could have.
    ``stuck``: a read of it has not ended for too long; nothing more is started until it does.
    """

    name: str
    depth: int = DEFAULT_DEPTH
    waiting: deque[R] = field(default_factory=deque)
    in_flight: int = 0
    hurried: int = 0
    tag: int = 0
    passed_bytes: int = 0
    stuck: bool = False

    @property
    def eligible(self) -> bool:
        return bool(self.waiting) and self.in_flight < self.depth and not self.stuck

    @property
    def active(self) -> bool:
        return (self.in_flight > 0 or bool(self.waiting)) and not self.stuck

    def need(self) -> tuple[int, float]:
        """Return urgency and deadline (or infinity) of the most urgent request in line."""
        urgency, deadline = min((request.urgency, _deadline(request)) for request in self.waiting)
        return (Urgency.WAITED_FOR if self.hurried else urgency), deadline


class Order(Generic[R]):
    """The lines of all clients. Calls are made by one thread at a time."""

    def __init__(self, queue_limit: int = QUEUE_LIMIT) -> None:
        self.clients: list[ReadClient[R]] = []
        self._queue_limit = queue_limit
        self._virtual = 0

    def register(self, name: str, depth: int = DEFAULT_DEPTH) -> ReadClient[R]:
        """Return a new client; names need not differ."""
        if depth < 1:
            raise ValueError(f"client {name!r}: depth {depth}, but at least one read is in flight")
        client: ReadClient[R] = ReadClient(name, depth, tag=self._virtual)
        self.clients.append(client)
        return client

    def forget(self, client: ReadClient[R]) -> None:
        """Remove a client without requests.

        Raises:
            LoaderError: it has some, in line or in flight.
        """
        if client.waiting or client.in_flight:
            raise LoaderError(
                f"client {client.name!r}: {len(client.waiting)} reads wait and "
                f"{client.in_flight} are in flight; it cannot go yet"
            )
        if client in self.clients:
            self.clients.remove(client)

    def add(self, client: ReadClient[R], request: R) -> None:
        """Put ``request`` at the end of its client's line.

        Raises:
            LoaderError: the client is not registered, or its line is full.
        """
        if client not in self.clients:
            raise LoaderError(f"client {client.name!r}: not registered with this pool")
        if len(client.waiting) >= self._queue_limit:
            raise LoaderError(
                f"client {client.name!r}: {self._queue_limit} reads wait already; the line is full"
            )
        if not client.waiting:
            self._rejoin(client)
        client.waiting.append(request)

    def hurry(self, client: ReadClient[R]) -> None:
        """A kernel waits now for what the client has in line."""
        client.hurried = len(client.waiting)

    def start(self) -> tuple[ReadClient[R], R] | None:
        """Take the request that comes next out of its line; None where none may start."""
        eligible = [client for client in self.clients if client.eligible]
        if not eligible:
            return None
        client = choose(eligible)
        request = client.waiting.popleft()
        charge = max(request.n_bytes, 1)
        for other in eligible:
            other.passed_bytes += charge
        client.passed_bytes = 0
        client.hurried = max(client.hurried - 1, 0)
        client.in_flight += 1
        client.tag += charge
        self._virtual = max(self._virtual, min([each.tag for each in self.clients if each.active]))
        return client, request

    def ended(self, client: ReadClient[R]) -> None:
        """Note that one read of ``client`` is no longer in flight."""
        assert client.in_flight > 0
        client.in_flight -= 1

    def clear(self) -> list[R]:
        """Take all requests out of their lines and return them."""
        left = [request for client in self.clients for request in client.waiting]
        for client in self.clients:
            client.waiting.clear()
            client.hurried = 0
        return left

    def set_stuck(self, client: ReadClient[R], stuck: bool) -> None:
        """Stop starting reads of ``client``, or go on with them."""
        if client.stuck and not stuck:
            self._rejoin(client)
        client.stuck = stuck

    def _rejoin(self, client: ReadClient[R]) -> None:
        client.tag = max(client.tag, self._virtual)
        client.passed_bytes = 0


def choose(eligible: Sequence[ReadClient[R]]) -> ReadClient[R]:
    """Return the client whose first request comes next; ``eligible`` is not empty."""
    if len(eligible) == 1:
        return eligible[0]
    longest = max(eligible, key=lambda client: client.passed_bytes)
    if longest.passed_bytes > PATIENCE_BYTES:
        return longest
    return min(eligible, key=lambda client: (*client.need(), client.tag))


def _deadline(request: OrderedRead) -> float:
    return inf if request.deadline is None else request.deadline


# Reads that have been started: how many at once, and which of them hang. Pure: time is an
# argument.
#
# A read that hangs cannot be taken back, because the disk may still write into its memory. It
# keeps its place among its client's reads, and that client gets no more of them; but it gives up
# its place among the reads of all models, so that the others go on. At most ``replacements``
# places are given up at a time.


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
        hanging = [
            flight
            for flight in self._flying
            if not flight.hung and now - flight.started >= self._hung_seconds
        ]
        for flight in hanging:
            flight.hung = True
            flight.replaced = self._replaced < self._replacements
            self._replaced += flight.replaced
            self._order.set_stuck(flight.client, True)
        return hanging

    def cancel_replacement(self, flight: Flight[R]) -> None:
        """Count ``flight`` among the reads of all models again: no other can be started for it."""
        self._replaced -= flight.replaced
        flight.replaced = False

    def expiry(self) -> float | None:
        """Return when to check next, in seconds; None when no read could begin to hang."""
        started = (flight.started for flight in self._flying if not flight.hung)
        oldest = min(started, default=None)
        return None if oldest is None else oldest + self._hung_seconds

    def _of(self, client: ReadClient[R]) -> Iterable[Flight[R]]:
        return (flight for flight in self._flying if flight.client is client)
