"""Looks at the repository every few seconds and has the service follow it (model_control = poll).

Looking is a stat for each file: a few microseconds each, and the same on every file system. The kernel's
notices (inotify, what watchfiles is for) are lost where a repository is shared over a network, and say of a
copy when it began, not when it is whole.
"""

import asyncio
import logging
from collections.abc import Collection

from server.failures import FAILURES
from server.repository.polling.changes import Changes, Changing
from server.repository.polling.sight import look_at_all
from server.repository.repository import Repository

_log = logging.getLogger(__name__)


class Poller:
    """Has ``repository`` follow its folder; ``chosen``: only these models, none: all.

    Made before the models are loaded: what changes while they are is seen. Blocks for the first look.
    """

    def __init__(self, repository: Repository, chosen: Collection[str]) -> None:
        self._repository = repository
        self._chosen = chosen
        self._changing = Changing(look_at_all(repository.root, chosen) or {})

    async def run(self, interval_seconds: float) -> None:
        """Look every ``interval_seconds``; runs until cancelled."""
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                await self.step()
            except Exception:  # noqa: BLE001  what it may be: the service goes on, and looks again
                _log.exception("the repository cannot be followed")

    async def step(self) -> Changes:
        """Look once, and follow what has changed; return that."""
        now = await asyncio.to_thread(look_at_all, self._repository.root, self._chosen)
        if now is None:
            return Changes()
        changes = self._changing.look(now)
        for name in changes.gone:
            await self._repository.remove(name)
        for name in changes.come:
            await self._bring(name)
        if changes.gone:  # there may be room now
            for name in self._repository.refused():
                await self._bring(name)
        return changes

    async def _bring(self, name: str) -> None:
        """Load what is there of ``name`` now, unless somebody has unloaded it; the log has what fails."""
        if self._repository.is_unloaded(name):
            return
        try:
            await self._repository.take(name)
        except FAILURES as exc:
            _log.warning("model %s: not taken: %s", name, exc)
