"""A pack takes the place of the one that a slot serves, and no request is lost."""

import logging

from models.runtime.heap import trim_heap
from server.errors import NotServingError, RefusedError
from server.memory.budget import Budget
from server.repository.closing import Closing
from server.repository.entry import Entry, Lost
from server.repository.layout.seen import is_still
from server.repository.layout.slots import Slot
from server.repository.loaded_models import LoadedModels
from server.repository.opening import Opener
from server.repository.planning.preparing import Prepared
from server.repository.replanning import Place
from server.repository.turnover.evicting import Evicting
from server.repository.uses import Uses
from server.repository.worker import Worker
from server.requests.uninterrupted import to_its_end

_log = logging.getLogger(__name__)


class Replacing:
    """Replaces what the ``loaded`` models serve.

    ``patience_seconds``: how long a request that was let in takes at most.
    """

    def __init__(
        self,
        budget: Budget,
        opener: Opener,
        loaded: LoadedModels,
        closing: Closing,
        evicting: Evicting,
        patience_seconds: float,
    ) -> None:
        self._budget = budget
        self._opener = opener
        self._loaded = loaded
        self._closing = closing
        self._evicting = evicting
        self._patience = patience_seconds

    async def replace(self, entry: Entry, slot: Slot, evicts: bool) -> bool:
        """Serve what is in ``slot`` in place of what ``entry`` serves now; no request is lost.

        It is opened beside the other where there is room for both, and takes the requests that come from
        then on. Elsewhere the other ends its requests first, and those that come wait. On an error the
        other serves on. ``evicts``: where it does not fit, those of the others go that may. Return and
        raise as LoadedModels.admit.
        """
        model = await self._loaded.prepared(slot)
        before = entry.worker, entry.uses
        key = f"{entry.name} (next)"
        try:
            changed = await self._loaded.admit(entry, model, key)
        except RefusedError:
            return await self._replace_in_turn(entry, model, evicts)
        except BaseException:
            self._keep_lost(key)
            raise
        await to_its_end(self._retire(entry, *before, key))
        return changed

    async def _replace_in_turn(self, entry: Entry, model: Prepared, evicts: bool) -> bool:
        """Close what ``entry`` serves, then open ``model``; requests that come meanwhile wait."""
        before, place = entry.prepared, entry.place
        assert before is not None
        assert place is not None
        others = {name: each for name, each in self._loaded.places().items() if name != entry.name}
        try:
            await self._loaded.room(model, others, entry.name)
        except RefusedError:
            found = await self._evicting.chosen(model.slot, entry.name)
            if not evicts or found is None:
                raise
        return await to_its_end(self._replaced(entry, model, before, place, evicts))

    async def _replaced(
        self, entry: Entry, model: Prepared, before: Prepared, place: Place, evicts: bool
    ) -> bool:
        with entry.coming_back():
            await self._closing.close(
                entry, "its pack is being replaced", patience_seconds=self._patience
            )
            if isinstance(entry.condition, Lost):
                raise NotServingError(f"{entry.message}; restart the server")
            try:
                gone = await self._evicting.make_room(model.slot) if evicts else False
                return await self._loaded.admit(entry, model) or gone
            except Exception:
                self._keep_lost(entry.name)
                await self._go_back(entry, before, place)
                raise

    def _keep_lost(self, key: str) -> None:
        """Keep reserved, beside what comes next, what an engine has that cannot be closed."""
        if key in self._budget.held():
            self._budget.set_apart(key, "lost")

    async def _go_back(self, entry: Entry, before: Prepared, place: Place) -> None:
        """Open again what ``entry`` served, where its files are still there."""
        try:
            if is_still(before.slot.seen, before.pack.weights_path):
                entry.serve(await self._opener.open(entry.name, before, place), before, place)
        except Exception as exc:  # noqa: BLE001  the first error is the reason
            _log.warning("model %s cannot be served as before: %s", entry.name, exc)

    async def _retire(self, entry: Entry, worker: Worker | None, uses: Uses, key: str) -> None:
        """Close ``worker``, whose place another has taken, and let that hold its memory as ``entry``."""
        assert worker is not None
        await uses.over(self._patience)
        lost = await self._closing.ended(entry.name, worker)
        if lost:
            _log.error("model %s: the memory of what it was stays reserved: %s", entry.name, lost)
            self._budget.set_apart(entry.name, "lost")
        else:
            self._budget.release(entry.name)
        self._budget.rename(key, entry.name)
        trim_heap()
