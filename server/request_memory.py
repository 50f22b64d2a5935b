"""The memory that all requests in flight share: bodies, tensors, pictures while they are decoded, answers.

Invariant: what is held never exceeds the capacity. Who finds too little waits his turn, first come first
served, and before all newcomers who holds some already; a deadline around the call ends the wait.
"""

import asyncio
from collections import deque
from typing import Self

from server.errors import TooLargeError
from server.sizes import format_size


class RequestMemory:
    """A pool of ``capacity_bytes``; counts, and allocates nothing."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that wait for memory."""
        return len(self._line)

    def has(self, n_bytes: int, first: bool) -> bool:
        """Return whether ``take`` would give ``n_bytes`` at once."""
        return (first or not self._line) and self.used_bytes + n_bytes <= self.capacity_bytes

    async def take(self, n_bytes: int, first: bool = False) -> None:
        """Take ``n_bytes`` as soon as they are free; unless ``first``, who came before has his before."""
        if self.has(n_bytes, first):
            self.used_bytes += n_bytes
            return
        place = n_bytes, asyncio.get_running_loop().create_future()
        (self._line.appendleft if first else self._line.append)(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            if place[1].done() and not place[1].cancelled():
                self.give(n_bytes)
            else:
                self._line.remove(place)
                self._serve()
            raise

    def give(self, n_bytes: int) -> None:
        """Give ``n_bytes`` back."""
        self.used_bytes -= n_bytes
        self._serve()

    def _serve(self) -> None:
        while self._line and self.used_bytes + self._line[0][0] <= self.capacity_bytes:
            n_bytes, future = self._line.popleft()
            if not future.done():
                self.used_bytes += n_bytes
                future.set_result(None)


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
