"""The memory that all requests in flight share: bodies, tensors, pictures while they are decoded, answers.

Invariant: what is held never exceeds the capacity. Who finds too little waits his turn, first come first
served: those who hold some already, then the newcomers. A deadline around the call ends the wait.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Self

from server.errors import TooLargeError
from server.sizes import format_size


@dataclass(frozen=True, eq=False)
class _Place:
    """In line for ``n_bytes``; ``turn`` is done when they are taken."""

    n_bytes: int
    turn: asyncio.Future[None]


class RequestMemory:
    """A pool of ``capacity_bytes``; counts, and allocates nothing."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._holders: deque[_Place] = deque()
        self._newcomers: deque[_Place] = deque()

    @property
    def waiting(self) -> int:
        """Requests that wait for memory."""
        return len(self._holders) + len(self._newcomers)

    def has(self, n_bytes: int, first: bool) -> bool:
        """Return whether ``take`` would give ``n_bytes`` at once."""
        return (first or not self.waiting) and self.used_bytes + n_bytes <= self.capacity_bytes

    async def take(self, n_bytes: int, first: bool = False) -> None:
        """Take ``n_bytes`` as soon as they are free; who is ``first`` goes before all who are not."""
        if self.has(n_bytes, first):
            self.used_bytes += n_bytes
            return
        line = self._holders if first else self._newcomers
        place = _Place(n_bytes, asyncio.get_running_loop().create_future())
        line.append(place)
        try:
            await place.turn
        except asyncio.CancelledError:
            if not place.turn.cancelled():
                self.give(n_bytes)
            else:
                # Whoever gave memory back meanwhile has taken it out of the line.
                if place in line:
                    line.remove(place)
                self._serve()
            raise

    def give(self, n_bytes: int) -> None:
        """Give ``n_bytes`` back."""
        self.used_bytes -= n_bytes
        self._serve()

    def _serve(self) -> None:
        while line := self._holders or self._newcomers:
            if self.used_bytes + line[0].n_bytes > self.capacity_bytes:
                return
            place = line.popleft()
            if not place.turn.done():
                self.used_bytes += place.n_bytes
                place.turn.set_result(None)


class Lease:
    """What one request holds of ``memory``; a context manager that gives it back."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.held_bytes = 0
        #: It waits for more.
        self.waiting = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.give(self.held_bytes)
        self.held_bytes = 0

    @property
    def room_bytes(self) -> int:
        """The most that this lease could ever hold."""
        return self._memory.capacity_bytes

    def fits(self, n_bytes: int) -> bool:
        """Return whether ``n_bytes`` can be held without waiting."""
        return n_bytes <= self.held_bytes or self._memory.has(
            n_bytes - self.held_bytes, self._first
        )

    @property
    def _first(self) -> bool:
        return self.held_bytes > 0

    async def hold(self, n_bytes: int) -> None:
        """Hold ``n_bytes`` from now on, waiting for what is missing.

        Raises:
            TooLargeError: more than there is for all requests together.
        """
        if n_bytes > self.room_bytes:
            raise TooLargeError(
                f"the request needs {format_size(n_bytes)} of memory; all requests together may "
                f"take {format_size(self.room_bytes)} (setting request_memory)"
            )
        if n_bytes <= self.held_bytes:
            self._memory.give(self.held_bytes - n_bytes)
        else:
            self.waiting = True
            try:
                await self._memory.take(n_bytes - self.held_bytes, first=self._first)
            finally:
                self.waiting = False
        self.held_bytes = n_bytes
