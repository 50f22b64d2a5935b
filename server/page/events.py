"""Server-sent events: the state of the server, once a second where it has changed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson

from server.errors import BusyError

#: Each is a connection that stays, and a state a second.
MOST_WATCHERS = 16
_SECONDS = 1.0
# A line that means nothing, so that a connection through which nobody listens any more is found.
_STILL_HERE = b":\n\n"
_EVERY = 15


class Watchers:
    """Those who watch; ``ended`` ends all of them."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended
        self._count = 0

    def watch(self, look: Callable[[], Awaitable[Any]]) -> AsyncIterator[bytes]:
        """Return the events of one more: what ``look`` returns, as JSON, once a second where it is new.

        Raises:
            BusyError: too many watch.
        """
        if self._count >= MOST_WATCHERS:
            raise BusyError(f"{MOST_WATCHERS} pages are open")
        return self._events(look)

    async def _events(self, look: Callable[[], Awaitable[Any]]) -> AsyncIterator[bytes]:
        if self._count >= MOST_WATCHERS:  # they came at once
            return
        self._count += 1
        try:
            said, silent = b"", 0
            while True:
                now = orjson.dumps(await look())
                silent = 0 if now != said else silent + 1
                if now != said:
                    said = now
                    yield b"event: state\ndata: " + now + b"\n\n"
                elif silent % _EVERY == 0:
                    yield _STILL_HERE
                if await self._over():
                    return
        finally:
            self._count -= 1

    async def _over(self) -> bool:
        """Wait for the next look; return whether there is none."""
        try:
            async with asyncio.timeout(_SECONDS):
                return await self._ended.wait()
        except TimeoutError:
            return False
