"""Requests that use a model, from when they find it to their end: it does not go before them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from models.packs.pack import Pack
from server.repository.worker import Worker


class Uses:
    """Counts the requests that use one model as it is loaded now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._count = 0
        self._over: asyncio.Future[None] | None = None
        #: When a request began or ended last; before the first, when the model came.
        self.used_at = clock()

    def __len__(self) -> int:
        return self._count

    def begin(self) -> None:
        """Count one more."""
        self._count += 1
        self.used_at = self._clock()

    def end(self) -> None:
        """Count one less."""
        self._count -= 1
        self.used_at = self._clock()
        if not self._count and self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def over(self, limit_seconds: float) -> None:
        """Wait until nobody uses it any more, but no longer than ``limit_seconds``."""
        if not self._count or not limit_seconds:
            return
        self._over = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._over}, timeout=limit_seconds)


@dataclass(frozen=True)
class Away:
    """A model that the next right request loads again; ``default_timeout_seconds`` as of a Use."""

    pack: Pack
    default_timeout_seconds: float | None = None


@dataclass
class Use:
    """One request's use of a model: ``end`` it once.

    ``default_timeout_seconds``: of requests that name none, by the model's configuration; None: the
    server's.
    """

    worker: Worker
    pack: Pack
    uses: Uses
    default_timeout_seconds: float | None = None

    def end(self) -> None:
        """Let the model go, if it was waited for."""
        self.uses.end()
