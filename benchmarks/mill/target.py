"""What an attack has: the server, addresses to come from, a seed, a time to end, and a tally."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from benchmarks.load.messages import Response
from benchmarks.mill.wire import Wire

_PATIENCE = 20.0


class AttackedServer:
    """The server as one attack sees it. They end when ``is_over``; what they count is in ``seen``."""

    def __init__(self, port: int, sources: tuple[str, ...], seconds: float, seed: int) -> None:
        self.port = port
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self._sources = sources
        self._end = asyncio.get_running_loop().time() + seconds

    @property
    def left(self) -> float:
        """Return the seconds until the end."""
        return max(0.0, self._end - asyncio.get_running_loop().time())

    @property
    def is_over(self) -> bool:
        """Return whether the time has come to stop."""
        return self.left <= 0

    async def wire(self, has_body: bool = True, receive_buffer: int | None = None) -> Wire:
        """Return a new connection from one of the sources."""
        source = self.random.choice(self._sources)
        return await Wire(has_body).connect(self.port, source, receive_buffer)

    async def ask(self, *parts: bytes, has_body: bool = True) -> Response:
        """Send ``parts`` on a new connection as far as they are taken; count and return the answer."""
        async with await self.wire(has_body) as wire:
            sending = asyncio.ensure_future(_send_all(wire, parts))
            try:
                response = await wire.receive()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        self.count(response)
        return response

    def count(self, response: Response) -> None:
        """Count an answer by its status."""
        self.seen[str(response.status)] += 1

    async def crowd(
        self, size: int, act: Callable[[int], Awaitable[object]], pause: float = 0.02
    ) -> None:
        """Let ``size`` clients ``act`` (called with their number) again and again until the end."""
        await asyncio.gather(*(self._again(index, act, pause) for index in range(size)))

    async def _again(
        self, index: int, act: Callable[[int], Awaitable[object]], pause: float
    ) -> None:
        while not self.is_over:
            try:
                async with asyncio.timeout(min(self.left + 0.5, _PATIENCE)):
                    await act(index)
            except TimeoutError:
                self.seen["no answer"] += 1
            except ConnectionResetError:
                self.seen["reset"] += 1
            except (OSError, ValueError) as exc:
                self.seen["ended" if isinstance(exc, ConnectionError) else type(exc).__name__] += 1
            await asyncio.sleep(min(pause * self.random.uniform(0.5, 1.5), self.left))


async def _send_all(wire: Wire, parts: tuple[bytes, ...]) -> None:
    for part in parts:
        await wire.send(part)
