"""Models that go for one that does not fit beside them (budget_policy = evict-lru)."""

import logging
import math
from collections.abc import Callable, Mapping

from server.memory.budget import Budget
from server.memory.eviction import Resident, victims
from server.memory.sharing import Activations, Sharer
from server.repository.closing import Closing
from server.repository.entry import Entry
from server.repository.layout.slots import Slot
from server.repository.loaded_models import Absent, LoadedModels

_log = logging.getLogger(__name__)

#: Returns what is in a slot as one that takes its least, None where it cannot be served. Blocks.
Least = Callable[[Slot], Sharer | None]

_EVICTED = "evicted; the next request loads it again"


class Evicting:
    """Lets loaded models go for others.

    ``absent``: as LoadedModels has it; ``least``: what comes, as it is known before it is prepared: that
    takes memory as well; ``may_go``: whether a model may be evicted; ``patience_seconds``: how long a
    request that was let in takes at most.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        budget: Budget,
        loaded: LoadedModels,
        closing: Closing,
        *,
        absent: Absent,
        least: Least,
        activations: Activations,
        may_go: Callable[[str], bool],
        patience_seconds: float,
    ) -> None:
        self._entries = entries
        self._budget = budget
        self._loaded = loaded
        self._closing = closing
        self._absent = absent
        self._least = least
        self._activations = activations
        self._may_go = may_go
        self._patience = patience_seconds
        #: How often each has gone for another.
        self.evictions: dict[str, int] = {}

    async def make_room(self, slot: Slot) -> bool:
        """Let those models go without which what is in ``slot`` fits; return whether any went."""
        gone = await self.chosen(slot) or []
        for name in gone:
            entry = self._entries[name]
            if entry.serves:
                _log.info("model %s: evicted, %s comes", name, slot.name)
                await self._closing.close(entry, _EVICTED, "evicted", self._patience)
                self.evictions[name] = self.evictions.get(name, 0) + 1
            else:
                await self._closing.close(entry, entry.reason)
        return bool(gone)

    async def chosen(self, slot: Slot, replaced: str = "") -> list[str] | None:
        """Return who goes so that what is in ``slot`` fits, None where it does not.

        ``replaced`` goes in any case.
        """
        return await self._loaded.planning.run(lambda: self._victims(slot, replaced))

    def _victims(self, slot: Slot, replaced: str) -> list[str] | None:
        newcomer = self._least(slot)
        if newcomer is None:
            return None
        loaded = [name for name, each in self._entries.items() if each.worker and name != replaced]
        absent = list(self._absent({*loaded, newcomer.name}))
        room = self._budget.without([*loaded, replaced])
        return victims(
            *(newcomer, [self._resident(each) for each in loaded], absent, room),
            self._activations,
        )

    def _resident(self, name: str) -> Resident:
        entry, sharer = self._entries[name], self._loaded.sharer(name)
        if not entry.serves:  # it answers nobody, and holds its memory
            return Resident(sharer, -math.inf)
        return Resident(
            *(sharer, entry.uses.used_at),
            is_used=len(entry.uses) > 0,
            may_go=self._may_go(entry.model),
        )
