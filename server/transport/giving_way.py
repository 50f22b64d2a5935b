"""Which connection gives way to one that finds no place: the one that serves least.

Decisions only, over what connections say of themselves; the clock is an argument.
"""

from collections import deque
from collections.abc import Collection
from enum import IntEnum
from typing import Protocol

from server.transport.limits import GRACE_SECONDS

# An order is good for so long, and for so much a connection: with many, sorting them for each that
# comes would be all that is done.
_ORDER_SECONDS = 0.02
_ORDER_SECONDS_EACH = 20e-6


class Member(Protocol):
    """What the registry sees of a connection."""

    @property
    def address(self) -> str: ...

    @property
    def used(self) -> bool:
        """It has had an answer."""

    @property
    def beginning(self) -> bool:
        """A part of a request has come, and the rest is waited for."""

    def silence(self, now: float) -> float | None:
        """Seconds that it has been waiting for its client; None while the client waits for it."""

    def overdue(self, now: float) -> bool:
        """It has been silent for longer than it may."""

    def drop(self) -> bool:
        """Close it, or cut it off where it was closed before; False where a request has just come."""

    def give_way(self) -> bool:
        """Close it at once, for another; False where a request has just come."""


class _Worth(IntEnum):
    """What is lost with a connection, least first."""

    NEVER_USED = 0
    KEPT = 1
    BEGINNING = 2  # part of a further request, of which the rest may come yet
    IN_USE = 3  # its client asks now and then, and may be about to


class Leavers:
    """Who of ``members`` gives way, one after the other: least worth first, then the longest silent."""

    def __init__(self, members: Collection[Member]) -> None:
        self._members = members
        self._order: deque[tuple[_Worth, Member]] = deque()
        self._ordered_at = 0.0

    def next(self, now: float) -> Member | None:
        """Return who goes; it has been told to. None: nobody can."""
        age, lasts = now - self._ordered_at, len(self._members) * _ORDER_SECONDS_EACH
        if 0 <= age < max(_ORDER_SECONDS, lasts) and (found := self._first(now)):
            return found
        self._order, self._ordered_at = _ordered(self._members, now), now
        return self._first(now)

    def _first(self, now: float) -> Member | None:
        while self._order:
            worth, member = self._order.popleft()
            found = _rank(member, now) if member in self._members else None
            if found is not None and found[0] == worth and member.give_way():
                return member
        return None


def _ordered(members: Collection[Member], now: float) -> deque[tuple[_Worth, Member]]:
    silent = [
        (rank, index, member)
        for index, member in enumerate(members)
        if (rank := _rank(member, now)) is not None
    ]
    return deque((rank[0], member) for rank, _, member in sorted(silent, key=lambda each: each[:2]))


def _rank(member: Member, now: float) -> tuple[_Worth, float] | None:
    """Return what would be lost with ``member`` and since when, the least first; None: it cannot go."""
    silence = member.silence(now)
    if silence is None:
        return None
    if not member.used:
        worth = _Worth.NEVER_USED
    elif silence >= GRACE_SECONDS:
        worth = _Worth.KEPT
    else:
        worth = _Worth.BEGINNING if member.beginning else _Worth.IN_USE
    return worth, -silence
