"""Figures of one model for the page: its arena over time, its memory against its delay."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from models.packs.pack import Pack
from server.errors import BusyError
from server.page.memory_boxes import arena_boxes
from server.requests.waiting import in_thread
from server.service import Service

Rows = list[dict[str, Any]]

#: Searches at a time: each takes a process.
MOST_SEARCHES = 2
# How often clients are told how far it is: only sending shows that one has left.
_SAID_SECONDS = 0.25


@dataclass(frozen=True)
class LookStep:
    """The progress of a search: ``done`` of so many parts of ``step``."""

    step: str
    done: int
    of: int


@dataclass(eq=False)
class _Search:
    """A frontier that is planned for all requests that ``wait`` for it."""

    task: "asyncio.Task[Rows]"
    step: LookStep = LookStep("begins", 0, 1)
    waiting: int = 0


class Looks:
    """Looks at models of ``service``. A frontier is planned once, and kept while its pack is.

    A request that comes while it is planned waits for the same; when none waits any more, the search ends.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._frontiers: dict[str, tuple[weakref.ref[Pack], Rows]] = {}
        self._searches: dict[tuple[str, int], _Search] = {}

    async def arena(self, name: str, version: str | None = None) -> dict[str, Any]:
        """Return the arena of a loaded model as boxes; raises as Repository.get."""
        instance = self._service.repository.models.find(name, version).serving()
        plan = instance.place.fitted.plan
        # Thousands of calls take a tenth of a second.
        boxes = await in_thread(arena_boxes, instance.prepared.program, plan)
        return {"arena_bytes": plan.arena_bytes, "boxes": list(map(asdict, boxes))}

    async def frontier(self, name: str) -> AsyncGenerator[LookStep | Rows]:
        """Yield how far planning a frontier is, at the end the plans, ascending in memory, with delays.

        Raises:
            BusyError: others are planned. Otherwise as Repository.frontier.
        """
        pack = self._service.repository.models.find(name).serving().prepared.pack
        of, rows = self._frontiers.get(name, (None, []))
        if of is None or of() is not pack:
            async with self._searching(name, pack) as search:
                while not search.task.done():
                    yield search.step
                    await asyncio.wait({search.task}, timeout=_SAID_SECONDS)
                rows = await asyncio.shield(search.task)
            self._frontiers[name] = weakref.ref(pack), rows
        yield rows

    @asynccontextmanager
    async def _searching(self, name: str, pack: Pack) -> AsyncIterator[_Search]:
        """Be one more that waits for the search for the frontier of ``pack``."""
        key = name, id(pack)
        search = self._searches.get(key) or self._begun(name)
        self._searches[key] = search
        search.waiting += 1
        try:
            yield search
        finally:
            search.waiting -= 1
            if not search.waiting:
                self._searches.pop(key, None)
                search.task.cancel()
                await asyncio.gather(search.task, return_exceptions=True)

    def _begun(self, name: str) -> _Search:
        if len(self._searches) >= MOST_SEARCHES:
            raise BusyError(
                f"the plans of {MOST_SEARCHES} other models are being searched for", 10.0
            )

        def heard(*told: Any) -> None:
            search.step = LookStep(*told)

        search = _Search(asyncio.create_task(self._service.repository.frontier(name, heard)))
        return search
