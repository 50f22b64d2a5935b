"""Models that go for one that does not fit beside them (budget_policy = evict-lru)."""

import logging
from collections.abc import Callable, Mapping

from server.memory.budget import Budget
from server.memory.eviction import Resident, victims
from server.memory.sharing import Activations
from server.repository.closing import Closing
from server.repository.entry import Entry
from server.repository.loaded_models import Absent, LoadedModels
from server.repository.planning.preparing import Prepared

_log = logging.getLogger(__name__)

_EVICTED = "evicted; the next request loads it again"


class Evicting:
    """Lets loaded models go for others.

    ``absent``: as LoadedModels has it; ``may_go``: whether a model may be evicted; ``patience_seconds``:
    how long a request that was let in takes at most.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        budget: Budget,
        loaded: LoadedModels,
        closing: Closing,
        *,
        absent: Absent,
        activations: Activations,
        may_go: Callable[[str], bool],
        patience_seconds: float,
    ) -> None:
        self._entries = entries
        self._budget = budget
        self._loaded = loaded
        self._closing = closing
        self._absent = absent
        self._activations = activations
        self._may_go = may_go
        self._patience = patience_seconds
        #: How often each has gone for another.
        self.evictions: dict[str, int] = {}

    async def make_room(self, model: Prepared) -> bool:
        """Let those models go without which ``model`` fits; return whether any went."""
        gone = await self.chosen(model) or []
        for name in gone:
            _log.info("model %s: evicted, %s comes", name, model.slot.name)
            await self._closing.close(self._entries[name], _EVICTED, "evicted", self._patience)
            self.evictions[name] = self.evictions.get(name, 0) + 1
        return bool(gone)

    async def chosen(self, model: Prepared, replaced: str = "") -> list[str] | None:
        """Return who goes so that ``model`` fits, None where it does not; ``replaced`` goes in any case."""
        return await self._loaded.planning.run(lambda: self._victims(model, replaced))

    def _victims(self, model: Prepared, replaced: str) -> list[str] | None:
        name = model.slot.name
        loaded = [each for each in self._loaded.places() if each != replaced]
        absent = list(self._absent({*loaded, name}))
        room = self._budget.without([*loaded, replaced])
        return victims(
            *(model.sharer, [self._resident(each) for each in loaded], absent, room),
            self._activations,
        )

    def _resident(self, name: str) -> Resident:
        entry = self._entries[name]
        assert entry.prepared is not None
        return Resident(
            *(entry.prepared.sharer, entry.uses.used_at),
            is_used=len(entry.uses) > 0,
            may_go=self._may_go(entry.model),
        )
