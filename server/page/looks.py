"""What the page shows of one model on request: its arena over time, its memory against its delay."""

import asyncio
import weakref
from dataclasses import asdict
from typing import Any

from models.packs.pack import Pack
from pipeline.fitting.frontier import FrontierPoint
from server.plots.boxes import arena_boxes
from server.repository.repository import Repository

Rows = list[dict[str, Any]]


class Looks:
    """Looks at models of ``repository``. One frontier is planned at a time, and kept while its pack is."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._planning = asyncio.Lock()
        self._frontiers: dict[str, tuple[weakref.ref[Pack], Rows]] = {}

    def arena(self, name: str, version: str | None = None) -> dict[str, Any]:
        """Return the arena of a loaded model as boxes; raises as Repository.get."""
        entry, pack = self._repository.get(name, version)
        assert entry.fitted is not None
        plan = entry.fitted.plan
        return {
            "arena_bytes": plan.arena_bytes,
            "boxes": [asdict(box) for box in arena_boxes(pack.manifest, plan)],
        }

    async def frontier(self, name: str) -> Rows:
        """Return the plans of a loaded model, ascending in memory, with their delays.

        Raises:
            As Repository.frontier.
        """
        async with self._planning:
            _, pack = self._repository.get(name)
            of, rows = self._frontiers.get(name, (None, []))
            if of is None or of() is not pack:
                rows = [_shown(point) for point in await self._repository.frontier(name)]
                self._frontiers[name] = weakref.ref(pack), rows
            return rows


def _shown(point: FrontierPoint) -> dict[str, Any]:
    return {
        "plan_bytes": point.plan.total_bytes,
        "weight_bytes": point.plan.weight_bytes,
        "arena_bytes": point.plan.arena_bytes,
        "seconds": point.seconds,
        "estimated": point.estimated,
    }
