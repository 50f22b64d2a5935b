"""The state of the server as events: one look a second for all who watch, sent where it has changed."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from server.errors import BusyError
from server.protocol.event_stream import STILL_HERE, written

#: Each is a connection that stays.
MOST_WATCHERS = 16
_SECONDS = 1.0
#: So many looks in a row that find nothing new are followed by a sign of life.
_SILENT = 15


class Watchers:
    """Those who watch what ``look`` returns; ``ended`` ends all of them."""

    def __init__(
        self,
        look: Callable[[], Awaitable[Any]],
        ended: asyncio.Event,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._ended = ended
        self._seconds = seconds
        self._clock = clock
        self._count = 0
        self._last: asyncio.Task[bytes] | None = None
        self._looks_again_at = 0.0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[AsyncGenerator[bytes]]:
        """Be one more that watches; yield its events: the state as JSON, once a second where it is new.

        Raises:
            BusyError: too many watch.
        """
        if self._count >= MOST_WATCHERS:
            raise BusyError(f"{MOST_WATCHERS} pages are open")
        self._count += 1
        try:
            yield self._events()
        finally:
            self._count -= 1

    async def _events(self) -> AsyncGenerator[bytes]:
        said, silent = b"", 0
        while True:
            now = await self._now()
            silent = 0 if now != said else silent + 1
            if now != said:
                said = now
                yield written("state", now)
            elif silent % _SILENT == 0:
                yield STILL_HERE
            if await self._over():
                return

    async def _now(self) -> bytes:
        """Return the state as it was within the last second; who comes while it is looked at waits."""
        last = self._last
        if last is None or (last.done() and self._clock() >= self._looks_again_at):
            self._looks_again_at = self._clock() + self._seconds
            last = self._last = asyncio.create_task(self._looked())
        return await asyncio.shield(last)  # who leaves takes it from no other

    async def _looked(self) -> bytes:
        return orjson.dumps(await self._look())

    async def _over(self) -> bool:
        """Wait for the next look; return whether there is none."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._ended.wait()
        except TimeoutError:
            return False
