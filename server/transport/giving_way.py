"""Which connection gives way to one that finds no place: rules and an order, over what connections say.

Decisions only; the clock is an argument. A connection whose client waits for it never gives way, nor one
that holds bytes which were not read yet, nor one on which something was answered within the last second.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from server.transport.limits import FRESH_SECONDS, GRACE_SECONDS

# An order is good for so long, and for so much a connection: with many, sorting them for each that
# comes would be all that is done.
_ORDER_SECONDS = 0.02
_ORDER_SECONDS_EACH = 20e-6


@dataclass(frozen=True, slots=True)
class Peer:
    """Whose connections are counted together; those of a proxy carry the requests of many clients."""

    name: str
    is_proxy: bool = False


class Worth(IntEnum):
    """What is lost with a connection that is silent, least first."""

    ANSWERED = 0  # it has had its answer, and the rest of a refused body comes
    EMPTY = 1  # nothing of a request has ever come
    UNANSWERED = 2  # a part of its first request has come
    KEPT = 3  # idle between two requests
    BEGINNING = 4  # a part of a further request has come
    FRESH = 5  # it has come within the last second, and its first request may be on its way


_UNUSED = (Worth.EMPTY, Worth.UNANSWERED)


class CountedConnection(Protocol):
    """What the registry sees of a connection."""

    @property
    def peer(self) -> Peer: ...

    @property
    def worth(self) -> Worth: ...

    def silence(self, now: float) -> float | None:
        """Seconds that it has been waiting for its client; None while the client waits for it."""

    def overdue(self, now: float) -> bool:
        """It has been silent for longer than it may."""

    def drop(self) -> bool:
        """Close it, or cut it off where it was closed before; False where a request has just come."""

    def give_way(self) -> bool:
        """End it for another; False where a request has just come."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a newcomer may ask others to leave.

    ``holds``: how many places its peer counts as having; ``fair``: places that each peer would have if
    all had as many.
    """

    peer: Peer
    holds: int
    fair: int

    def reaches(self, worth: Worth, peer: Peer, holds: int) -> bool:
        """Return whether a silent connection of ``peer``, which ``holds`` so many places, gives way.

        What serves no request goes for any newcomer. What may be used goes for another peer alone, one with
        fewer places, and no peer falls below its fair share so but by first requests that do not come on.
        """
        if worth <= Worth.EMPTY:
            return True
        if peer == self.peer or holds <= self.holds:
            return False
        return worth == Worth.UNANSWERED or peer.is_proxy or holds >= self.fair


class Leavers:
    """The silent ones of ``members``, in the order in which they give way."""

    def __init__(self, members: Collection[CountedConnection]) -> None:
        self._members = members
        self._order: list[tuple[Worth, CountedConnection]] = []
        self._ordered_at = float("-inf")

    def next(
        self, now: float, may: Callable[[Worth, CountedConnection], bool]
    ) -> CountedConnection | None:
        """Return the first that ``may`` go; it has been told to. None: none can.

        Least worth first, then the longest silent.
        """
        lasts = max(_ORDER_SECONDS, len(self._members) * _ORDER_SECONDS_EACH)
        if not 0 <= now - self._ordered_at < lasts:
            self._order, self._ordered_at = _ordered(self._members, now), now
        for index, (worth, member) in enumerate(self._order):
            if member not in self._members or not may(worth, member):
                continue
            # What was asked something since the order was made is no longer silent.
            rank = _rank(member, now)
            if rank is not None and rank[0] == worth and member.give_way():
                del self._order[index]
                return member
        return None


def _rank(member: CountedConnection, now: float) -> tuple[Worth, float] | None:
    """Return what is lost with ``member``, then the longest silence first; None: it cannot go."""
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
