"""Which connection gives way to a new one when there is no place: the rules and the order.

docs/explanation/architecture/connections.md names for each rule the attack that needs it. Decisions only;
the clock is an argument. Three kinds of connections never give way: those whose clients wait for an answer,
those with bytes that were not read yet, and those with an answer in the last second.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from server.transport.limits import FRESH_SECONDS, GRACE_SECONDS

# An order is used for so long, and longer with many connections: sorting thousands of them for each
# newcomer would take all of the event loop's time.
_ORDER_SECONDS = 0.02
_ORDER_SECONDS_EACH = 20e-6


@dataclass(frozen=True, slots=True)
class Peer:
    """A client address whose connections count together, or a proxy, which passes on many clients."""

    name: str
    is_proxy: bool = False


class Worth(IntEnum):
    """How much is lost with a silent connection, least first."""

    ANSWERED = 0  # it has had its answer, and only the rest of a refused body comes
    EMPTY = 1  # nothing of a request has ever come
    UNANSWERED = 2  # a part of its first request has come
    KEPT = 3  # it is idle between two requests
    BEGINNING = 4  # a part of a further request has come
    FRESH = 5  # it was opened within the last second, and its first request may be on its way


_UNUSED = (Worth.EMPTY, Worth.UNANSWERED)


class WaitingConnection(Protocol):
    """A connection as the registry sees it while it waits for a place."""

    @property
    def peer(self) -> Peer: ...

    def has_request(self) -> bool:
        """Return whether it has sent the head of a request; nothing is read."""

    def admit(self) -> "CountedConnection":
        """Begin, and return what has the place."""

    def reject(self) -> None:
        """Refuse its request: it has found no place."""


class CountedConnection(Protocol):
    """A connection as the registry sees it, with a place or ending."""

    @property
    def peer(self) -> Peer: ...

    @property
    def worth(self) -> Worth: ...

    def silence(self, now: float) -> float | None:
        """Return for how many seconds it has waited for its client; None while the client waits for it."""

    def overdue(self, now: float) -> bool:
        """Return whether it has been silent for longer than it may."""

    def drop(self) -> bool:
        """Close it, or cut it off if it is closing already; return False where a request has just come."""

    def give_way(self) -> bool:
        """End it for another connection; return False where a request has just come."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A newcomer's claim to the place of another connection.

    ``holds``: how many places its peer counts as having; ``fair``: how many each peer would have if all had
    equally many; ``has_request``: whether the newcomer has sent the head of a request.
    """

    peer: Peer
    holds: int
    fair: int
    has_request: bool = False

    def reaches(self, worth: Worth, peer: Peer, holds: int) -> bool:
        """Return whether a silent connection of ``peer``, which ``holds`` so many places, gives way.

        A connection without a request gives way to any newcomer, and every one that is silent to a request
        of its own peer, which is there now. To a different peer it gives way only if that has fewer places,
        and no peer falls below its fair share by that, except for a first request that has stalled.
        """
        if worth <= Worth.EMPTY:
            return True
        if peer == self.peer:
            return self.has_request and worth < Worth.FRESH
        if holds <= self.holds:
            return False
        return worth == Worth.UNANSWERED or peer.is_proxy or holds >= self.fair


class Leavers:
    """The silent connections among ``members``, in the order in which they give way."""

    def __init__(self, members: Collection[CountedConnection]) -> None:
        self._members = members
        self._order: list[tuple[Worth, CountedConnection]] = []
        self._ordered_at = float("-inf")

    def next(
        self, now: float, may: Callable[[Worth, CountedConnection], bool]
    ) -> CountedConnection | None:
        """End the first connection that ``may`` give way, and return it; None: none can.

        Connections of the least worth come first, among these the one that has been silent for longest.
        """
        lasts = max(_ORDER_SECONDS, len(self._members) * _ORDER_SECONDS_EACH)
        if not 0 <= now - self._ordered_at < lasts:
            self._order, self._ordered_at = _ordered(self._members, now), now
        for index, (worth, member) in enumerate(self._order):
            if member not in self._members or not may(worth, member):
                continue
            # A connection with a request since the order was made is no longer silent.
            rank = _rank(member, now)
            if rank is not None and rank[0] == worth and member.give_way():
                del self._order[index]
                return member
        return None


def _rank(member: CountedConnection, now: float) -> tuple[Worth, float] | None:
    """Return the place of ``member`` in the order: worth, then negative silence; None: it cannot go."""
    silence = member.silence(now)
    if silence is None or silence < FRESH_SECONDS:
        return None
    if silence >= GRACE_SECONDS:
        return member.worth, -silence
    return (Worth.FRESH, -silence) if member.worth in _UNUSED else None


def _ordered(
    members: Collection[CountedConnection], now: float
) -> list[tuple[Worth, CountedConnection]]:
    silent = [
        (*rank, index, member)
        for index, member in enumerate(members)
        if (rank := _rank(member, now)) is not None
    ]
    return [(worth, member) for worth, _, _, member in sorted(silent, key=lambda each: each[:3])]
