"""Models that shall be served, loaded or not: those that the settings name, as they are on disk."""

import contextlib
from collections.abc import Collection, Iterator

from server.errors import NotServingError
from server.failures import FAILURES
from server.memory.budget import Budget
from server.memory.minima import Minima, Minimum, least_together
from server.memory.sharing import Activations, Sharer
from server.repository.entries import Entries
from server.repository.entry import Entry
from server.repository.model_config import ModelConfig
from server.repository.on_disk import Slot, model_names, slots
from server.settings.settings import Settings


class Expected:
    """The models to serve, and what each needs at least (``minima``)."""

    def __init__(
        self, settings: Settings, budget: Budget, entries: Entries, minima: Minima[Minimum]
    ) -> None:
        self._settings = settings
        self._budget = budget
        self._entries = entries
        self._minima = minima

    def on_disk(self) -> list[str]:
        """Return the models in the repository, by name; NotFoundError where there is none."""
        return model_names(self._settings.repository)

    def names(self) -> list[str]:
        """Return the models that the settings name, or all on disk; raises as ``on_disk``."""
        return list(self._settings.models) or self.on_disk()

    def slots_of(self, name: str, config: ModelConfig | None = None) -> list[Slot]:
        """Return the slots of the model ``name`` as they are on disk; ``config``: as slots; blocks.

        Raises:
            As layout.slots.slots; NotServingError: no access.
        """
        try:
            return slots(self._settings.repository, name, config)
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            raise NotServingError(f"model {name!r}: {where}{exc.strerror or exc}") from exc

    def set_aside(self, activations: Activations) -> None:
        """Take the memory of requests out of the budget, before models share the rest; blocks.

        Raises:
            RefusedError: there is not as much.
        """
        found = [self._minima.of(slot.name, slot.folder) for slot in self.slots()]
        minima = [minimum for minimum in found if minimum is not None]
        together = least_together(minima, activations != "own")
        needs = [minimum.need for minimum in minima]
        self._budget.set_aside(self._settings.request_memory, needs, together)

    def absent(self, present: Collection[str]) -> Iterator[Sharer]:
        """Yield models that are not ``present`` and that nobody has unloaded; blocks."""
        for slot in self.slots():
            entry = self._entries.get(slot.name)
            if slot.name not in present and not (entry and _stays_away(entry)):
                least = self.least(slot)
                if least is not None:
                    yield least

    def least(self, slot: Slot) -> Sharer | None:
        """Return what is in ``slot`` as one that takes its least; None: it cannot be served. Blocks."""
        least = self._minima.of(slot.name, slot.folder)
        if least is None or not least.has_room(self._budget.request_bytes):
            return None
        return Sharer(slot.name, least.memory, alone=least.alone)

    def fits_alone(self, slot: Slot) -> bool:
        """Return whether what is in ``slot`` has room where no other is loaded; blocks."""
        room = self._budget.total_bytes - self._budget.request_bytes
        least = self._minima.of(slot.name, slot.folder)
        return least is None or sum(least.memory.values()) <= room

    def slots(self) -> Iterator[Slot]:
        """Yield the slots of all models, as far as they can be read; blocks."""
        for name in self.names():
            with contextlib.suppress(*FAILURES):  # said when it is loaded
                yield from self.slots_of(name)


def _stays_away(entry: Entry) -> bool:
    """Return whether a model keeps no place for later: somebody unloaded it, or it can never come back."""
    return entry.absence == "unloaded" or entry.is_lost
