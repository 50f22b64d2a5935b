"""All open connections: which have a place, which wait for one, which have had their last answer.

A connection is in one of three states. In the accept queue nothing is read of it. With a
place its requests are answered. Ending, it has had its last answer and has no place any more, but is read
on so that no reset takes the answer away. A newcomer that finds no place in time is refused, and then ends.

Decisions only, from what connections report; the clock is an argument.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from ipaddress import IPv6Address
from typing import Generic, TypeVar

from server.transport.giving_way import (
    Claim,
    CountedConnection,
    Leavers,
    Peer,
    WaitingConnection,
    Worth,
)
from server.transport.limits import (
    ENDING_CONNECTIONS,
    WAIT_SECONDS,
    ConnectionLimits,
)

_May = Callable[[Worth, CountedConnection], bool]

# An answer that is the last of its connection counts as a place that is about to be free for so long.
_PROMISE_SECONDS = 0.05
#: While newcomers wait, they are checked so often: no event says that a connection has fallen silent.
CHECK_SECONDS = 0.05


class Registry:
    """Gives places to connections; ``limits`` says how many there are."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._members: set[CountedConnection] = set()
        self._leavers = Leavers(self._members)
        # How many places each peer has.
        self._held: Counter[Peer] = Counter()
        #: The newcomers, which wait for a place.
        self.queue: _Lines[WaitingConnection] = _Lines()
        # Those of them that have sent a request.
        self._ready: _Lines[WaitingConnection] = _Lines()
        # Those that were not checked yet, and when all were.
        self._new: list[WaitingConnection] = []
        self._checked_at = float("-inf")
        self._ending: _Lines[CountedConnection] = _Lines()
        # Connections whose current answer is their last one, and when it began.
        self._promised: dict[CountedConnection, float] = {}
        #: Set when a place may have become free, or a newcomer waits.
        self.changed = asyncio.Event()
        #: Whether the server ends: then every wait is short.
        self.draining = False
        #: How many connections gave way to others.
        self.dropped = 0
        #: How many newcomers were refused for want of a place.
        self.refused = 0

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        places, queued, ending = self._held.total(), len(self.queue), len(self._ending)
        return f"<Registry {places} of {self.limits.total} places, {queued} in the queue, {ending} ending>"

    def peer(self, address: str) -> Peer:
        """Return the peer under which connections from ``address`` count."""
        if self.limits.proxies.trusts(address):
            return Peer(address, is_proxy=True)
        return Peer(owner(address))

    # Places

    def add(self, member: CountedConnection) -> None:
        """Give ``member`` a place."""
        self._members.add(member)
        self._held[member.peer] += 1

    def end(self, member: CountedConnection, now: float) -> None:
        """Take the place of ``member``, which has had its last answer; it may be one without a place.

        Where too many are ending, the peer with most of them has its oldest one cut off.
        """
        self._leave(member)
        self._ending.add(member.peer, member, now)
        if len(self._ending) > ENDING_CONNECTIONS:
            self._ending.pop_of_most().drop()

    def discard(self, member: CountedConnection) -> None:
        """Forget ``member``: it is closed."""
        self._leave(member)
        self._ending.remove(member.peer, member)

    def _leave(self, member: CountedConnection) -> None:
        if member in self._members:
            self._members.discard(member)
            self._promised.pop(member, None)
            self._held[member.peer] -= 1
            if not self._held[member.peer]:
                del self._held[member.peer]
            self.changed.set()

    def drain(self) -> None:
        """End: from now on every wait is short, and newcomers for which there is no place are refused."""
        self.draining = True
        self.changed.set()

    # The queue

    @property
    def waiting(self) -> bool:
        """Whether a newcomer waits for a place."""
        return len(self.queue) > 0

    def is_pressed(self, now: float) -> bool:
        """Return whether a newcomer has waited for half of the time after which it is refused."""
        return any(now - self.queue.since(peer) >= WAIT_SECONDS / 2 for peer in self.queue.peers)

    def arrive(self, newcomer: WaitingConnection, now: float) -> None:
        """Let ``newcomer`` in, or wait; where too many wait, one of those that have most is refused."""
        is_free = self._held.total() < self.limits.total and not len(self.queue)
        if is_free and not self._is_at_limit(newcomer.peer):
            self.add(newcomer.admit())
            return
        self.queue.add(newcomer.peer, newcomer, now)
        self._new.append(newcomer)
        self.changed.set()
        if len(self.queue) > self.limits.waiting:
            self.refused += 1
            longest = self.queue.of(self.queue.peer_of_most())
            self._dequeue(min(longest, key=self._is_ready)).reject()

    def withdraw(self, newcomer: WaitingConnection) -> None:
        """Forget ``newcomer``: it waits no more."""
        self._dequeue(newcomer)

    def check(self, now: float) -> None:
        """Let in the newcomers that find a place by now, and refuse those that have waited too long.

        Called when something has ``changed``, and every CHECK_SECONDS while some wait.
        """
        for newcomer in self._unchecked(now):
            is_queued = self.queue.added_at(newcomer.peer, newcomer) is not None
            if is_queued and not self._is_ready(newcomer) and newcomer.has_request():
                self._ready.add(newcomer.peer, newcomer, now)
        self._admit(now)
        for newcomer in self._late(now):
            newcomer.reject()

    def _unchecked(self, now: float) -> Collection[WaitingConnection]:
        """Return the newcomers to check: new ones, regularly all."""
        new, self._new = self._new, []
        if now - self._checked_at < CHECK_SECONDS:
            return new
        self._checked_at = now
        return list(self.queue)

    def _is_ready(self, newcomer: WaitingConnection) -> bool:
        """Return whether ``newcomer`` waits and has sent a request."""
        return self._ready.added_at(newcomer.peer, newcomer) is not None

    def _admit(self, now: float) -> None:
        """Let in the newcomers that find a place.

        Peers with the fewest places come first, of a peer the newcomers with a request. A peer may have all
        places that are free.
        """
        shut: set[Peer] = set()
        lines = self.queue
        while peers := [peer for peer in lines.peers if peer not in shut]:
            peer = min(peers, key=self._priority)
            is_ready = peer in self._ready.peers
            if self._is_at_limit(peer) and not self._is_given_way(now, self._own(peer, is_ready)):
                shut.add(peer)
                continue
            if self._held.total() >= self.limits.total and not self._is_given_way(
                now, self._claim(peer, is_ready)
            ):
                if is_ready:
                    break
                lines = self._ready  # a stalled connection gives way to a request alone
                continue
            newcomer = self._dequeue((self._ready if is_ready else self.queue).first(peer))
            self.add(newcomer.admit())

    def _priority(self, peer: Peer) -> tuple[int, bool, float]:
        """Return a key by which peers are sorted, the first one to be admitted."""
        return self._counted(peer), peer not in self._ready.peers, self.queue.since(peer)

    def _dequeue(self, newcomer: WaitingConnection) -> WaitingConnection:
        """Have ``newcomer`` wait no more, and return it."""
        for line in (self.queue, self._ready):
            line.remove(newcomer.peer, newcomer)
        return newcomer

    def _late(self, now: float) -> list[WaitingConnection]:
        """Return the newcomers that have waited too long, as many as may be ending at a time.

        All of them where the server ends.
        """
        if self.draining:
            return [self._dequeue(newcomer) for newcomer in list(self.queue)]
        refused: list[WaitingConnection] = []
        for peer in list(self.queue.peers):
            while peer in self.queue.peers and self.queue.since(peer) <= now - WAIT_SECONDS:
                if len(self._ending) + len(refused) >= ENDING_CONNECTIONS:
                    break
                refused.append(self._dequeue(self.queue.first(peer)))
        self.refused += len(refused)
        return refused

    def wants_back(self, member: CountedConnection, now: float) -> bool:
        """Return whether the answer that ``member`` begins is its last, so that a newcomer gets its place.

        No more connections give up their places so than newcomers wait, and none does for a peer that has
        more places than its own.
        """
        if self.draining:
            return True
        while self._promised:
            first = next(iter(self._promised))
            if now - self._promised[first] < _PROMISE_SECONDS:
                break
            del self._promised[first]
        if len(self._promised) >= len(self.queue):
            return False
        holds = self._counted(member.peer)
        is_wanted = any(
            self._counted(peer) <= holds and self._would_take(peer, member.peer)
            for peer in self.queue.peers
        )
        if is_wanted:
            self._promised[member] = now
        return is_wanted

    def _would_take(self, visiting: Peer, leaving: Peer) -> bool:
        """Return whether ``visiting`` finds no place now, and finds one when ``leaving`` gives one back."""
        if self._is_at_limit(visiting):
            return visiting == leaving
        return self._held.total() >= self.limits.total

    # Giving way

    def sweep(self, now: float) -> None:
        """End the connections that are overdue."""
        for member in [*self._members, *self._ending]:
            if member.overdue(now):
                member.drop()

    def spare(self, now: float) -> bool:
        """Free a descriptor: that of a connection that is ending, or of a silent one."""
        if len(self._ending):
            self._ending.pop_of_most().drop()
            return True
        return self._is_given_way(now, lambda worth, member: True)

    def _is_given_way(self, now: float, may: _May) -> bool:
        member = self._leavers.next(now, may)
        if member is not None:
            self._leave(member)
            self.dropped += 1
        return member is not None

    def _claim(self, peer: Peer, has_request: bool) -> _May:
        n_peers = len(self._held) + (peer not in self._held)
        fair = self.limits.total // n_peers
        claim = Claim(peer, self._counted(peer), fair, has_request=has_request)
        return lambda worth, member: claim.reaches(worth, member.peer, self._counted(member.peer))

    def _own(self, peer: Peer, has_request: bool) -> _May:
        limit = Worth.BEGINNING if has_request else Worth.EMPTY
        return lambda worth, member: member.peer == peer and worth <= limit

    def _is_at_limit(self, peer: Peer) -> bool:
        limit = self.limits.per_address
        return limit is not None and not peer.is_proxy and self._held[peer] >= limit

    def _counted(self, peer: Peer) -> int:
        """Return how many places ``peer`` counts as having: for a proxy, which has many clients, one."""
        return min(self._held[peer], 1) if peer.is_proxy else self._held[peer]


_Item = TypeVar("_Item")


class _Lines(Generic[_Item]):
    """A line for each peer, in the order of arrival."""

    def __init__(self) -> None:
        self._lines: dict[Peer, dict[_Item, float]] = {}
        #: How many items all lines have.
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[_Item]:
        return (item for line in self._lines.values() for item in line)

    @property
    def peers(self) -> Collection[Peer]:
        """The peers that have a line."""
        return self._lines.keys()

    def of(self, peer: Peer) -> Collection[_Item]:
        """Return the line of ``peer`` as it is now."""
        return list(self._lines.get(peer, ()))

    def first(self, peer: Peer) -> _Item:
        """Return the first item in the line of ``peer``."""
        return next(iter(self._lines[peer]))

    def added_at(self, peer: Peer, item: _Item) -> float | None:
        """Return when ``item`` was added to the line of ``peer``; None: it is not in it."""
        return self._lines.get(peer, {}).get(item)

    def since(self, peer: Peer) -> float:
        """Return when the first item of ``peer`` joined its line."""
        return next(iter(self._lines[peer].values()))

    def add(self, peer: Peer, item: _Item, now: float) -> None:
        """Put ``item`` at the end of the line of ``peer``, unless it is in that line."""
        line = self._lines.setdefault(peer, {})
        self.count += item not in line
        line.setdefault(item, now)

    def pop(self, peer: Peer) -> _Item:
        """Take the first item of ``peer`` out of its line."""
        item = self.first(peer)
        self.remove(peer, item)
        return item

    def peer_of_most(self) -> Peer:
        """Return the peer with the longest line."""
        return max(self._lines, key=lambda peer: len(self._lines[peer]))

    def pop_of_most(self) -> _Item:
        """Take the first item out of the longest line."""
        return self.pop(self.peer_of_most())

    def remove(self, peer: Peer, item: _Item) -> None:
        """Take ``item`` out, if it stands there."""
        line = self._lines.get(peer, {})
        if item in line:
            del line[item]
            self.count -= 1
            if not line:
                del self._lines[peer]


def owner(address: str) -> str:
    """Return the name under which ``address`` counts; of IPv6 the network, since a customer has 2^64."""
    if ":" not in address:
        return address
    try:
        ip = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(ip.ipv4_mapped or ip.packed[:8].hex())
