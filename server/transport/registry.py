"""All open connections: who must go, and who gives way when there is no place for another.

Decisions only, over what connections say of themselves; the clock is an argument.
"""

import asyncio
from collections import Counter
from ipaddress import IPv6Address

from server.transport.giving_way import Leavers, Member
from server.transport.limits import ConnectionLimits

# What any address may have: one in so many, whatever others take.
_FEW = 32


class Registry:
    """Counts the members; ``limits`` says how many there may be."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._members: set[Member] = set()
        self._leavers = Leavers(self._members)
        self._leaving: set[Member] = set()  # gave way, and are not gone yet
        self._owners: dict[str, _Owner] = {}
        self._coming: Counter[str] = Counter()  # let in, and not counted yet
        self._left = asyncio.Event()
        #: Somebody waits for a place.
        self.waiting = False
        #: The server ends: nobody is waited for longer than need be.
        self.draining = False
        #: Connections that gave way, or found no place for their address.
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Member) -> None:
        """Count ``member``."""
        self._members.add(member)
        self._owners.setdefault(owner(member.address), _Owner()).members.add(member)

    def discard(self, member: Member) -> None:
        """Forget ``member``, if it is counted: its place is free."""
        self._leaving.discard(member)
        if member not in self._members:
            return
        self._members.discard(member)
        name = owner(member.address)
        self._owners[name].members.discard(member)
        if not self._owners[name].members:
            del self._owners[name]
        self._left.set()

    def expect(self, address: str) -> None:
        """Keep a place for one from ``address`` that is let in, until it ``arrived``."""
        self._coming[owner(address)] += 1

    def arrived(self, address: str) -> None:
        """Give the place back that was kept: it is counted as a member by now, or it has left."""
        _less(self._coming, owner(address))
        self._left.set()

    @property
    def _taken(self) -> int:
        return len(self._members) + self._coming.total()

    def admits(self, address: str, now: float) -> bool:
        """Return whether ``address`` may have one more; the longest silent of its own gives way.

        Where no number is set it may have as many as are free: alone it gets half of them, the next one
        half of what is left. So while few addresses take all they can, there is a place for who has none.
        A few it may have in any case: where a hundred others have one each, it would else lose its own.
        """
        name = owner(address)
        few = max(1, self.limits.total // _FEW)
        share = self.limits.per_address or max(few, self.limits.total - self._taken)
        own = self._owners.get(name)
        if (len(own.members) if own else 0) + self._coming[name] < share:
            return True
        return own is not None and self._give_way(own.leavers, now)

    async def place(self) -> None:
        """Wait for a place; the longest silent gives way."""
        loop = asyncio.get_running_loop()
        try:
            while self._taken >= self.limits.total:
                self.waiting = True
                if self._give_way(self._leavers, loop.time()):
                    return
                self._left.clear()
                await self._left.wait()
        finally:
            self.waiting = False

    def sweep(self, now: float) -> None:
        """Drop who is overdue; let one give way where somebody waits."""
        for member in [*self._members, *self._leaving]:
            if member.overdue(now):
                member.drop()
        if self.waiting and self._give_way(self._leavers, now):
            self._left.set()

    def drop_silent(self, now: float) -> bool:
        """Let one give way, if there is one; for want of something else than places."""
        return self._give_way(self._leavers, now)

    def _give_way(self, leavers: Leavers, now: float) -> bool:
        member = leavers.next(now)
        if member is None:
            return False
        self.discard(member)
        self._leaving.add(member)
        self.dropped += 1
        return True


class _Owner:
    """The connections of one address, and which of them goes first."""

    def __init__(self) -> None:
        self.members: set[Member] = set()
        self.leavers = Leavers(self.members)


def owner(address: str) -> str:
    """Return who has ``address``, as far as limits go: of IPv6 one customer gets 2^64."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or found.packed[:8].hex())


def _less(counter: Counter[str], name: str) -> None:
    """Take one off; who has none left is forgotten."""
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]
