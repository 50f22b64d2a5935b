"""One slot as it is on disk is brought to serve: loaded, or in the place of what it serves."""

import asyncio
import contextlib
import logging

from pipeline.program.stopping import telling
from server.errors import NotServingError, RefusedError
from server.failures import may_pass
from server.memory.budget import Budget
from server.repository.closing import Closing
from server.repository.entries import Entries
from server.repository.entry import Absence, Entry, Loading, Lost, Unloaded
from server.repository.layout.slots import Slot
from server.repository.loaded_models import LoadedModels
from server.repository.turnover.evicting import Evicting
from server.repository.turnover.replacing import Replacing

_log = logging.getLogger(__name__)


class Bringing:
    """Brings slots to serve, one at a time."""

    def __init__(
        self,
        entries: Entries,
        budget: Budget,
        loaded: LoadedModels,
        closing: Closing,
        evicting: Evicting,
        replacing: Replacing,
    ) -> None:
        self._entries = entries
        self._budget = budget
        self._loaded = loaded
        self._closing = closing
        self._evicting = evicting
        self._replacing = replacing
        #: How often each slot was refused for want of budget.
        self.refusals: dict[str, int] = {}

    async def bring(self, slot: Slot, evicts: bool) -> bool:
        """Let ``slot`` be served as it is on disk; return whether there may be better plans.

        ``evicts``: where it does not fit, those of the others go that may. Raises as Repository.load.
        """
        entry = self._entries.known(slot.name, slot.model)
        if entry.has(slot):
            return False
        if not entry.serves:
            with entry.coming_back() if entry.evicted else contextlib.nullcontext():
                return await self._anew(entry, slot, evicts)
        _log.info("model %s: changed on disk, version %s comes", slot.name, slot.folder.name)
        try:
            return await self._replacing.replace(entry, slot, evicts)
        except Exception as exc:
            if isinstance(entry.condition, Unloaded):  # nothing was there to go back to
                entry.condition = self._not_loaded(slot.name, exc, was_evicted=False)
            raise

    async def _anew(self, entry: Entry, slot: Slot, evicts: bool) -> bool:
        """Load what ``entry``, which does not serve, shall; return whether there may be better plans."""
        was_evicted = entry.evicted
        # What left service holds its memory until here.
        await self._closing.close(entry, entry.reason)
        if isinstance(entry.condition, Lost):
            raise NotServingError(f"{entry.message}; restart the server")
        loading = Loading()
        entry.condition, entry.slot = loading, slot
        try:
            with telling(loading.progress):
                # Before it is prepared, which takes memory, too.
                gone = evicts and await self._evicting.make_room(slot)
                model = await self._loaded.prepared(slot)
                return await self._loaded.admit(entry, model) or gone
        except (Exception, asyncio.CancelledError) as exc:
            entry.condition = self._not_loaded(entry.name, exc, was_evicted)
            if isinstance(exc, RefusedError):
                self.refusals[entry.name] = self.refusals.get(entry.name, 0) + 1
            raise

    def _not_loaded(self, name: str, exc: BaseException, was_evicted: bool) -> Unloaded | Lost:
        """Return what becomes of a model whose loading ended with ``exc``."""
        why, passes = str(exc) or "loading was cancelled", may_pass(exc)
        if name in self._budget.held():  # what was opened for it could not be closed
            return Lost(why)
        cause: Absence = "refused" if isinstance(exc, RefusedError) else "failed"
        if was_evicted and (cause == "refused" or passes):
            cause = "evicted"  # the next request tries again
        return Unloaded(why, cause, passes)
