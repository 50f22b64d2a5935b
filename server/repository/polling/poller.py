"""Looks at the repository every few seconds and has the service follow it (model_control = poll).

Looking is a stat for each file: a few microseconds each, and the same on every file system. The kernel's
notices (inotify, what watchfiles is for) are lost where a repository is shared over a network, and say of a
copy when it began, not when it is whole.
"""

import asyncio
import logging
from collections.abc import Collection

from server.failures import FAILURES, may_pass
from server.repository.entry import Entry
from server.repository.polling.changes import Changes, Changing
from server.repository.polling.sight import look_at_all
from server.repository.repository import Repository

_log = logging.getLogger(__name__)

#: After so many looks at the latest what could not be loaded is tried again.
_MOST_LOOKS = 64


class Poller:
    """Has ``repository`` follow its folder; ``chosen``: only these models, none: all.

    Made before the models are loaded: what changes while they are is seen. Blocks for the first look.
    """

    def __init__(self, repository: Repository, chosen: Collection[str]) -> None:
        self._repository = repository
        self._chosen = chosen
        self._changing = Changing(look_at_all(repository.root, chosen) or {})
        self._looks = 0
        #: Models whose load failed for what may pass: at which look they are tried again, after how many.
        self._retries: dict[str, tuple[int, int]] = {}

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
        entries = self._followed()
        now = await asyncio.to_thread(look_at_all, self._repository.root, self._chosen)
        if now is None:
            return Changes()
        changes = self._changing.look(now, {entry.model for entry in entries if not entry.is_lost})
        self._looks += 1
        again = {entry.model for entry in entries if entry.may_pass and not entry.evicted}
        again.difference_update(self._retries, changes.gone)
        again.update(name for name, (look, _) in self._retries.items() if look <= self._looks)
        for name in changes.gone:
            await self._repository.remove(name)
            self._retries.pop(name, None)
        if changes.gone:  # there may be room now
            again.update(self._repository.refused())
        for name in (*changes.come, *sorted(again.difference(changes.gone, changes.come))):
            await self._bring(name)
        return changes

    def _followed(self) -> list[Entry]:
        """Return what is known of the models that are looked at, also of those that never were seen."""
        entries = self._repository.entries()
        return [entry for entry in entries if not self._chosen or entry.model in self._chosen]

    async def _bring(self, name: str) -> None:
        """Load what is there of ``name`` now, unless somebody has unloaded it; the log has what fails.

        What may pass is tried again, after twice as many looks each time.
        """
        _, waited = self._retries.pop(name, (0, 0))
        if self._repository.is_unloaded(name):
            return
        try:
            await self._repository.take(name)
        except FAILURES as exc:
            _log.warning("model %s: not taken: %s", name, exc)
            if may_pass(exc):
                looks = min(max(2 * waited, 1), _MOST_LOOKS)
                self._retries[name] = self._looks + looks, looks
