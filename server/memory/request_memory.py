"""The memory that all requests in flight share: bodies, tensors, pictures while they are decoded, answers.

A request takes at once all that it may need, and holds nothing while it waits for that. A request that
turns out to need more (for strings, boxes, outputs of unknown size) may wait while it holds memory, but
only one at a time: all others that hold some do not wait, so they end and free memory. A second one is
refused, or each could wait for what the other holds.

Invariant: the memory held never exceeds the capacity. A request that finds too little waits. First in line
is one that holds some already, then the one whose client (by address) holds least, then the one whose
client was served longest ago, then the one that came first. A request for very little does not wait: a part
of the memory is kept for those. A deadline around the call ends the wait. The line has a limit: if it is
full, the one that comes is refused, at once; unless a client has more than twice as many in it: then that
one's last request is.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from models.runtime.heap import trim_heap
from models.sizes import format_size
from pipeline.budget.budget import Budget
from pipeline.budget.request_needs import SMALL_BYTES, largest_request
from server.errors import BusyError, TooLargeError

# The heap is trimmed: free memory in it goes back to the system, so that later requests have room.
#
# Freed blocks of several requests leave holes between the blocks that stay, and the C library keeps these:
# 8 clients with photographs left 4 MiB. Kernels that take their scratch from the heap leave one of its size
# with each inference, where an answer came between it and the end. They are given back only where the
# process holds too much.

# A smaller gain is not worth it: trimming takes milliseconds, and the pages are soon needed again.
_WORTH_BYTES = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes(statm: str | Path = "/proc/self/statm") -> int:
    """Return the anonymous memory of this process, within a few pages a core; 0 where it is unknown.

    It is read for every photograph, so it must be quicker than reading ``/proc/self/status``.
    """
    try:
        with open(statm, "rb") as file:  # noqa: PTH123  a Path takes as long again
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


class Trimming:
    """Trims the heap where the process holds more than its base and ``budget``.

    ``base_bytes``: returns how much it held before models were loaded.
    """

    def __init__(
        self,
        budget: Budget,
        base_bytes: Callable[[], int],
        held: Callable[[], int] = anonymous_bytes,
        trim: Callable[[], None] = trim_heap,
    ) -> None:
        self._budget = budget
        self._base_bytes = base_bytes
        self._held = held
        self._trim = trim
        #: The least memory held since the last trim.
        self._left_bytes = 0

    def look(self, scratch_bytes: int = 0) -> None:
        """Trim the heap if the process holds too much and a trim may free enough; on any thread.

        ``scratch_bytes``: of the heap that kernels need again, for which no trim is worth its time.
        """
        budget, held_bytes = self._budget, self._held()
        most = self._base_bytes() + budget.ceiling_bytes
        self._left_bytes = min(self._left_bytes, held_bytes)
        if held_bytes > max(most, self._left_bytes + scratch_bytes + _WORTH_BYTES):
            self._trim()
            self._left_bytes = self._held()


# The pool, and leases of it.


@dataclass(eq=False)
class _Waiter:
    n_bytes: int
    client: str
    holds: bool
    granted: asyncio.Future[None]


# The time a byte takes to be free again is a mean over so many grants; each refusal for its sake lowers it.
_MEAN_OF = 8
_DOUBT = 0.99
# A wait may become so many times as long as the mean says.
_HEADROOM = 1.5


class RequestMemory:
    """A pool of ``capacity_bytes`` for which ``limit`` requests may wait. It only counts bytes."""

    def __init__(
        self, capacity_bytes: int, limit: int = 64, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        # Seconds that a byte takes to be free again while requests wait, and since when the first one does.
        self._pace = 0.0
        self._waits_since = 0.0
        self.capacity_bytes = capacity_bytes
        self.limit = limit
        self.used_bytes = 0
        self._held: dict[str, int] = {}
        self._line: list[_Waiter] = []
        # Of clients in line: the number of the grant that was theirs last. So a client that always has
        # requests in line takes turns with others, even if it holds nothing now.
        self._served: dict[str, int] = {}
        self._grants = 0

    @property
    def capacity_bytes(self) -> int:
        return self._capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, n_bytes: int) -> None:
        self._capacity_bytes = n_bytes
        #: The most that one request can ever hold.
        self.room_bytes = largest_request(n_bytes)

    @property
    def waiting(self) -> int:
        """How many requests wait for memory."""
        return len(self._line)

    @property
    def missing_bytes(self) -> int:
        """How many bytes the next request in line lacks; 0 where none waits."""
        if not self._line:
            return 0
        free = self.room_bytes - self.used_bytes
        return max(self._next().n_bytes - free, 0)

    def held_by(self, client: str) -> int:
        """Return what all requests of ``client`` hold."""
        return self._held.get(client, 0)

    def check_room(self, client: str) -> None:
        """Check that a request of ``client`` that has to wait would find a place in line.

        Raises:
            BusyError: it would be refused.
        """
        if self._is_full and self._victim(client) is None:
            raise _busy()

    def wait_seconds(self, n_bytes: int, client: str) -> float:
        """Return how long a request of ``client`` for ``n_bytes`` waits, from above.

        That is until all that wait now have theirs, or as many of each client as there are of this one:
        others may come later and go before it, since clients take turns.
        """
        client_bytes = n_bytes + sum(
            waiter.n_bytes for waiter in self._line if waiter.client == client
        )
        clients = {waiter.client for waiter in self._line} | {client}
        everything = n_bytes + sum(waiter.n_bytes for waiter in self._line)
        return _HEADROOM * min(everything, client_bytes * len(clients)) * self._pace

    def doubt(self) -> None:
        """Note that a request was refused since it would wait for too long: it may be a wrong guess."""
        self._pace *= _DOUBT

    def take_at_once(self, n_bytes: int, client: str, holds: bool) -> bool:
        """Take ``n_bytes`` if no other request comes first; return whether they were taken."""
        may_pass = holds or not self._line or n_bytes <= SMALL_BYTES
        return may_pass and self._grant(n_bytes, client)

    async def take(self, n_bytes: int, client: str = "", holds: bool = False) -> None:
        """Take ``n_bytes`` for a request of ``client``, which ``holds`` some already or not.

        Raises:
            BusyError: too many wait, or it holds some, and so does one that waits already.
        """
        if self.take_at_once(n_bytes, client, holds):
            return
        if not holds:
            self._make_room(client)
        elif len(self._newcomers) < len(self._line):
            raise BusyError("the memory of requests is taken by others (setting request_memory)")
        waiter = _Waiter(n_bytes, client, holds, asyncio.get_running_loop().create_future())
        if not self._line:
            self._waits_since = self._clock()
        self._line.append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if not waiter.granted.cancelled():
                if waiter.granted.exception() is None:
                    self.give(n_bytes, client)
            elif waiter in self._line:  # _serve may have taken it out already
                self._line.remove(waiter)
                self._serve()
            raise

    def give(self, n_bytes: int, client: str = "") -> None:
        """Give ``n_bytes`` back."""
        self.used_bytes -= n_bytes
        remaining_bytes = self._held.get(client, 0) - n_bytes
        if remaining_bytes:
            self._held[client] = remaining_bytes
        else:
            self._held.pop(client, None)
        if self._line:
            self._serve()

    @property
    def _newcomers(self) -> list[_Waiter]:
        """Requests that hold nothing yet: the line has a limit for these."""
        return [waiter for waiter in self._line if not waiter.holds]

    @property
    def _is_full(self) -> bool:
        return len(self._line) >= self.limit and len(self._newcomers) >= self.limit

    def _make_room(self, client: str) -> None:
        """Where the line is full, refuse a request of another client to make room for ``client``.

        Raises:
            BusyError: no other client has more in line.
        """
        if not self._is_full:
            return
        victim = self._victim(client)
        if victim is None:
            raise _busy()
        self._line.remove(victim)
        if not victim.granted.done():
            victim.granted.set_exception(_busy())

    def _victim(self, client: str) -> _Waiter | None:
        """Return the last request of the client with most, if that has over twice what ``client`` would.

        Of clients that ask for about as much, now one has a few more in line and now the other: none of
        them loses a request for that which has waited already.
        """
        newcomers = self._newcomers
        waiting = Counter(waiter.client for waiter in newcomers)
        for greediest, count in waiting.most_common(1):
            if count > 2 * (waiting[client] + 1):
                return next(each for each in reversed(newcomers) if each.client == greediest)
        return None

    def _grant(self, n_bytes: int, client: str) -> bool:
        """Take ``n_bytes`` for ``client`` if they are free; return whether they were."""
        most = self._capacity_bytes if n_bytes <= SMALL_BYTES else self.room_bytes
        if self.used_bytes + n_bytes > most:
            return False
        self.used_bytes += n_bytes
        self._held[client] = self._held.get(client, 0) + n_bytes
        return True

    def _next(self) -> _Waiter:
        return min(self._line, key=self._rank)

    def _rank(self, waiter: _Waiter) -> tuple[bool, int, int]:
        client = waiter.client
        return not waiter.holds, self.held_by(client), self._served.get(client, 0)

    def _serve(self) -> None:
        while self._line:
            waiter = self._next()
            if waiter.granted.done():  # its wait was cancelled
                self._line.remove(waiter)
            elif self._grant(waiter.n_bytes, waiter.client):
                self._line.remove(waiter)
                self._note_turn(waiter.client)
                self._note_pace(waiter.n_bytes)
                waiter.granted.set_result(None)
            else:
                return  # no other may pass, or a large request could wait for ever

    def _note_pace(self, n_bytes: int) -> None:
        """Note that the first in line has its ``n_bytes``."""
        now = self._clock()
        pace, self._waits_since = (now - self._waits_since) / n_bytes, now
        self._pace += (pace - self._pace) / _MEAN_OF if self._pace else pace

    def _note_turn(self, client: str) -> None:
        self._grants += 1
        waiting = {waiter.client for waiter in self._line}
        self._served = {name: at for name, at in self._served.items() if name in waiting}
        if client in waiting:
            self._served[client] = self._grants


def _busy() -> BusyError:
    return BusyError("too many requests wait for memory (setting request_memory)")


class Lease:
    """The part of ``memory`` that one request holds, until it is closed."""

    def __init__(self, memory: RequestMemory, client: str = "") -> None:
        self.memory = memory
        self.client = client
        self.held_bytes = 0

    def close(self) -> None:
        """Give back all of it."""
        if self.held_bytes:
            self.memory.give(self.held_bytes, self.client)
            self.held_bytes = 0

    def check_room(self) -> None:
        """Check that there is a place in line, if it must wait; raises as RequestMemory.check_room."""
        self.memory.check_room(self.client)

    def wait_seconds(self, n_bytes: int) -> float:
        """Return how long it waits to hold ``n_bytes``, as RequestMemory.wait_seconds."""
        return self.memory.wait_seconds(n_bytes - self.held_bytes, self.client)

    def hold_at_once(self, n_bytes: int) -> bool:
        """Hold ``n_bytes`` from now on if no other request comes first; return whether they are held."""
        more, memory, holds = n_bytes - self.held_bytes, self.memory, self.held_bytes > 0
        if more < 0:
            memory.give(-more, self.client)
        elif n_bytes > memory.room_bytes or not memory.take_at_once(more, self.client, holds):
            return False
        self.held_bytes = n_bytes
        return True

    async def hold(self, n_bytes: int) -> None:
        """Hold ``n_bytes`` from now on, waiting for what is missing.

        Raises:
            TooLargeError: one request can never have as much. BusyError: as RequestMemory.take.
        """
        if self.hold_at_once(n_bytes):
            return
        if n_bytes > self.memory.room_bytes:
            raise TooLargeError(
                f"the request needs {format_size(n_bytes)} of memory; all requests together may "
                f"take {format_size(self.memory.room_bytes)} (setting request_memory)"
            )
        await self.memory.take(n_bytes - self.held_bytes, self.client, self.held_bytes > 0)
        self.held_bytes = n_bytes
