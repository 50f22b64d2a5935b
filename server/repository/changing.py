"""One change of what is loaded at a time; in between, models grow into what is free."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class Changing:
    """Lets one change what is loaded; ``grow`` goes on in the background while nobody does."""

    def __init__(self, grow: Callable[[], Awaitable[None]]) -> None:
        self._grow = grow
        self._lock = asyncio.Lock()
        self._growth: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Be alone in changing what is loaded; growth that is under way stops, and goes on afterwards."""
        growth, self._growth = self._growth, None
        try:
            if growth is not None:
                growth.cancel()
                await asyncio.wait({growth})
            async with self._lock:
                yield
        finally:
            if growth is not None and (growth.cancelled() or not growth.done()):
                self.grow_later()

    def grow_later(self) -> None:
        """Let the loaded models use what is free, once nobody changes them."""
        if not self._closed and (self._growth is None or self._growth.done()):
            self._growth = asyncio.create_task(self._grown())

    def close(self) -> None:
        """Let nothing grow any more."""
        self._closed = True

    async def _grown(self) -> None:
        async with self._lock:
            await self._grow()
