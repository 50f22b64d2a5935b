"""What is scheduled: requests, and the batches that carry them."""

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

    ``deadline``: by when its batch has to end. ``arrived``: when it came.
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
        """Return the batch with one request more."""
        return replace(self, tickets=(*self.tickets, ticket))

    def without(self, ticket: Ticket) -> "Sweep":
        """Return the batch without one of its requests."""
        return replace(self, tickets=tuple(each for each in self.tickets if each is not ticket))

    def split(self, batch_size: int) -> tuple["Sweep", "Sweep"]:
        """Return a batch of its first ``batch_size`` requests by rank, and one of the others."""
        if len(self.tickets) <= batch_size:
            return self, replace(self, tickets=())
        ranked = sorted(self.tickets, key=lambda ticket: (ticket.priority, ticket.deadline))
        first, others = ranked[:batch_size], ranked[batch_size:]
        return replace(self, tickets=(*first,)), replace(self, tickets=(*others,))


@dataclass(frozen=True)
class Batching:
    """How requests to one model share batches.

    ``lanes``: so many requests a batch at most. ``delay_seconds``: how long a batch that could carry more
    waits for them. ``preferred``: sizes at which it does not wait; none: only the largest.
    """

    lanes: int = 1
    preferred: tuple[int, ...] = ()
    delay_seconds: float = 0.0

    def within(self, batch_size: int) -> "Batching":
        """Return the same with at most ``batch_size`` requests a batch."""
        return replace(self, lanes=min(self.lanes, batch_size))

    def ready_at(self, batch: Sweep) -> float:
        """Return until when ``batch`` waits for more requests."""
        size = len(batch.tickets)
        if size >= self.lanes or size in self.preferred:
            return 0.0
        return min(ticket.arrived for ticket in batch.tickets) + self.delay_seconds


ALONE = Batching()
