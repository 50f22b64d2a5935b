"""What is scheduled: requests, and the sweeps that carry them."""

from dataclasses import dataclass, replace
from functools import cached_property

#: Values of ``Ticket.priority``: before others, as usual, after others.
HIGHEST, NORMAL, LOWEST = 1, 2, 3


def level(priority: int) -> int:
    """Return the level of ``priority`` as clients number it: 1 is the highest, 0 as usual."""
    return min(priority, LOWEST) or NORMAL


@dataclass(eq=False)
class Ticket:
    """One request that was let in, or is to be; times in seconds on one clock.

    ``deadline``: by when its sweep has to end. ``arrived``: when it came.
    """

    model: str
    deadline: float
    priority: int = NORMAL
    arrived: float = 0.0


@dataclass(frozen=True, eq=False)
class Sweep:
    """Requests of one model that run as one."""

    model: str
    tickets: tuple[Ticket, ...]

    @cached_property
    def deadline(self) -> float:
        """When the first of its requests has to be answered."""
        return min(ticket.deadline for ticket in self.tickets)

    @cached_property
    def rank(self) -> tuple[int, float]:
        """Priority, then deadline, of the first of its requests."""
        return min((ticket.priority, ticket.deadline) for ticket in self.tickets)

    def joined(self, ticket: Ticket) -> "Sweep":
        """Return the sweep with one request more."""
        return replace(self, tickets=(*self.tickets, ticket))

    def without(self, ticket: Ticket) -> "Sweep":
        """Return the sweep without one of its requests."""
        return replace(self, tickets=tuple(each for each in self.tickets if each is not ticket))

    def split(self, lanes: int) -> tuple["Sweep", "Sweep"]:
        """Return a sweep of its first ``lanes`` requests by rank, and one of the others."""
        if len(self.tickets) <= lanes:
            return self, replace(self, tickets=())
        ranked = sorted(self.tickets, key=lambda ticket: (ticket.priority, ticket.deadline))
        first, others = ranked[:lanes], ranked[lanes:]
        return replace(self, tickets=(*first,)), replace(self, tickets=(*others,))


@dataclass(frozen=True)
class Batching:
    """How requests to one model share sweeps.

    ``lanes``: so many requests a sweep at most. ``delay_seconds``: how long a sweep that could carry more
    waits for them. ``preferred``: sizes at which it does not wait; none: only the largest.
    """

    lanes: int = 1
    preferred: tuple[int, ...] = ()
    delay_seconds: float = 0.0

    def within(self, lanes: int) -> "Batching":
        """Return the same with at most ``lanes`` requests a sweep."""
        return replace(self, lanes=min(self.lanes, lanes))

    def ready_at(self, sweep: Sweep) -> float:
        """Return until when ``sweep`` waits for more requests."""
        size = len(sweep.tickets)
        if size >= self.lanes or size in self.preferred:
            return 0.0
        return min(ticket.arrived for ticket in sweep.tickets) + self.delay_seconds


ALONE = Batching()
