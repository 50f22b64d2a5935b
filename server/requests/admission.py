"""What goes one by one for want of memory, as tasks: a lock for which a bounded number waits.

Requests to models wait elsewhere (server/scheduling/line.py).
"""

import asyncio
from typing import Literal

from server.errors import BusyError


class Turns(asyncio.Lock):
    """A lock for which ``limit`` may wait."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__()
        self._what = what
        self._limit = limit
        self._waiting = 0

    async def acquire(self) -> Literal[True]:
        """Wait for the lock.

        Raises:
            BusyError: too many wait.
        """
        if self._waiting >= self._limit:
            many = "1 request waits" if self._limit == 1 else f"{self._limit} requests wait"
            raise BusyError(f"{many} for {self._what}")
        self._waiting += 1
        try:
            return await super().acquire()
        finally:
            self._waiting -= 1
