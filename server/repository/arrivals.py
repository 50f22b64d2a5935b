"""Requests that wait for a model which is away for a moment: it was evicted, or is being replaced."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from pipeline.execution.errors import DeadlineError
from server.errors import BusyError, LateError, NotServingError
from server.repository.entry import Entry, Use
from server.repository.models import Models


class Arrivals:
    """Lets requests wait: at most ``limit`` for a model, all of them for one ``fetch`` of it.

    ``fetch`` loads an evicted model, and returns whether it did. These cold starts are counted: a request
    that has less time than they usually take is refused at once, and the model is loaded for the next.
    """

    def __init__(
        self,
        models: Models,
        fetch: Callable[[Entry], Coroutine[Any, Any, bool]],
        limit: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._fetch = fetch
        self._limit = limit
        self._clock = clock
        self._fetching: set[asyncio.Task[None]] = set()
        # When the loads of entries that are fetched were sent for, by name.
        self._started_at: dict[str, float] = {}

    async def use(self, model: str, version: str | None, limit_seconds: float) -> Use:
        """Return a use of a model; as Repository.acquire."""
        until = self._clock() + limit_seconds
        while True:
            entry = self._models.find(model, version)
            if entry.instance is not None:
                return entry.use()
            uses = entry.uses
            uses.begin()
            try:
                await self._wait(entry, until)
                # It may have been loaded and evicted again, or another version may answer by now.
                has_come = uses is entry.uses and not entry.evicted
                if has_come and entry is self._models.find(model, version):
                    return entry.use()
            finally:
                uses.end()

    async def close(self) -> None:
        """Cancel all loads."""
        for task in self._fetching:
            task.cancel()
        if self._fetching:
            await asyncio.wait(self._fetching)

    async def _wait(self, entry: Entry, until: float) -> None:
        """Wait until the model of ``entry`` is there, if it is to come; raises the errors of its load."""
        if entry.coming is None and entry.evicted:
            self._send_for(entry)
        coming = entry.coming
        if coming is None:
            return
        if len(entry.uses) > self._limit:
            raise BusyError(
                f"model {entry.name!r}: {self._limit} requests wait for it to be loaded"
            )
        left, rest = until - self._clock(), self._rest_seconds(entry)
        if left < rest:
            entry.desired_until = max(entry.desired_until, until)
            raise LateError(f"model {entry.name!r}: evicted, and loaded again now", rest)
        done, _ = await asyncio.wait({coming}, timeout=max(left, 0))
        if not done:
            raise DeadlineError(f"model {entry.name!r} was not loaded again in time")
        if coming.cancelled():
            raise NotServingError("the server is stopping")
        coming.result()

    def _rest_seconds(self, entry: Entry) -> float:
        """Return how long the load of ``entry`` still takes by the mean of those before; 0: unknown."""
        started_at = self._started_at.get(entry.name)
        if started_at is None or not entry.cold_starts:
            return 0.0
        mean_seconds = entry.cold_start_seconds / entry.cold_starts
        return max(started_at + mean_seconds - self._clock(), 0.0)

    def _send_for(self, entry: Entry) -> None:
        self._started_at[entry.name] = self._clock()
        task = asyncio.create_task(self._timed(entry))
        coming = entry.coming = asyncio.get_running_loop().create_future()
        self._fetching.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self._fetching.discard(task)
            self._started_at.pop(entry.name, None)
            exc = None if task.cancelled() else task.exception()
            if entry.coming is not coming:  # it was loaded, and the requests were told
                return
            entry.coming = None
            if task.cancelled():
                coming.cancel()
            elif exc is None:
                coming.set_result(None)
            else:
                coming.set_exception(exc)
                coming.exception()  # else asyncio logs an error that no request waits for

        task.add_done_callback(ended)

    async def _timed(self, entry: Entry) -> None:
        started_at = self._clock()
        if await self._fetch(entry):
            entry.cold_starts += 1
            entry.cold_start_seconds += self._clock() - started_at
