"""The models that are to be served, as they are on disk, and how much each needs at least."""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence

from models.sizes import format_least, format_size
from pipeline.budget.budget import Budget
from pipeline.budget.errors import RefusedError
from pipeline.budget.holdings import Minimum, least_together
from pipeline.budget.sharing import Activations, Sharer
from server.errors import NotServingError, few, shown
from server.faults import FAILURES
from server.repository.model_config import FILE, ModelConfig
from server.repository.on_disk import Seen, Slot, model_names, slots
from server.repository.preparing import pin_of
from server.settings.per_model import ALL
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

# Settings that name models: those with values by model, and others.
_BY_MODEL = (
    "workers",
    "deadline",
    "lanes",
    "preferred_lanes",
    "lane_delay",
    "close_after",
    "idle_after",
)
_NAMING = *_BY_MODEL, "evictable", "pin", "deepstack_model"


class Catalog:
    """The models that the settings name, or all in the repository.

    ``least``: returns how much the pack in a slot needs at least.
    """

    def __init__(
        self, settings: Settings, budget: Budget, least: Callable[[Slot], Minimum]
    ) -> None:
        self._settings = settings
        self._budget = budget
        self._least = least
        #: The least memory of each slot, with the files of which that is true: only of the last version.
        self._minima: dict[str, tuple[Seen, Minimum]] = {}
        #: The slots of all models as they were when a start looked.
        self._scanned: Sequence[Slot] | None = None
        #: Ignored fields of configurations as the log named them last, by model.
        self._ignored: dict[str, str] = {}

    def on_disk(self) -> list[str]:
        """Return the models in the repository, by name; NotFoundError where there is none."""
        return model_names(self._settings.repository)

    def names(self) -> list[str]:
        """Return the models that the settings name, or all on disk; raises as ``on_disk``."""
        return list(self._settings.models) or self.on_disk()

    def slots_of(self, model: str, config: ModelConfig | None = None) -> list[Slot]:
        """Return the slots of ``model`` as they are on disk; ``config``: as on_disk.slots; blocks.

        Raises:
            As on_disk.slots; NotServingError: no access, or a file system that is away.
        """
        try:
            return slots(self._settings.repository, model, config)
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            raise NotServingError(f"model {model!r}: {where}{exc.strerror or exc}") from exc

    @contextlib.contextmanager
    def scanned(self, slots: Sequence[Slot]) -> Iterator[None]:
        """Take ``slots`` for those of all models meanwhile, for a caller that loads one after the other."""
        self._scanned = slots
        try:
            yield
        finally:
            self._scanned = None

    def slots(self) -> Iterator[Slot]:
        """Yield the slots of all models, as far as they can be read; blocks."""
        if self._scanned is not None:
            yield from self._scanned
            return
        for name in self.names():
            with contextlib.suppress(*FAILURES):  # loading it reports the error
                yield from self.slots_of(name)

    def set_aside(self, activations: Activations) -> None:
        """Take the memory of requests out of the budget, before models share the rest; blocks.

        Raises:
            RefusedError: there is not as much.
        """
        minimum_of_slots = [self.minimum(slot) for slot in self.slots()]
        minima = [minimum for minimum in minimum_of_slots if minimum is not None]
        together = least_together(minima, activations != "own")
        needs = [minimum.need for minimum in minima]
        self._budget.set_aside(self._settings.request_memory, needs, together)
        self._check_pins(activations != "own")

    def _check_pins(self, has_one_arena: bool) -> None:
        """Check that the models that are pinned fit together, with an arena each or one for all.

        Raises:
            RefusedError: they do not.
        """
        pinned = [slot for slot in self.slots() if pin_of(self._settings, slot) is not None]
        minima = [minimum for slot in pinned if (minimum := self.minimum(slot)) is not None]
        needed_bytes = least_together(minima, has_one_arena)
        free_bytes = self._budget.total_bytes - self._budget.request_bytes
        if needed_bytes > free_bytes:
            raise RefusedError(
                f"models that are pinned ({few([shown(slot.name) for slot in pinned])}) need "
                f"{format_least(needed_bytes)} ({needed_bytes} bytes), available are "
                f"{format_size(free_bytes)} ({free_bytes} bytes): {needed_bytes - free_bytes} bytes in "
                "excess (setting pin)"
            )

    def others(self, names: Collection[str]) -> Iterator[Sharer]:
        """Yield all slots but those with ``names``: their least memory is kept free for later; blocks."""
        for slot in self.slots():
            least = None if slot.name in names else self.least(slot)
            if least is not None:
                yield least

    def minimum(self, slot: Slot) -> Minimum | None:
        """Return how much the pack in ``slot`` needs at least; None: it cannot be served. Blocks.

        The pack is opened for that once, and again after its files have changed.
        """
        seen, minimum = self._minima.get(slot.name, ((), None))
        if minimum is None or seen != slot.seen:
            try:
                minimum = self._least(slot)
            except FAILURES:  # loading it reports the error
                return None
            self._minima[slot.name] = slot.seen, minimum
        return minimum

    def least(self, slot: Slot) -> Sharer | None:
        """Return the pack in ``slot`` as a sharer of its least; None: it cannot be served. Blocks."""
        least = self.minimum(slot)
        if least is None or not least.has_room(self._budget.request_bytes):
            return None
        return Sharer(slot.name, least.memory, alone=least.alone)

    def fits_alone(self, slot: Slot) -> bool:
        """Return whether the pack in ``slot`` has room where no other model is loaded; blocks."""
        room = self._budget.total_bytes - self._budget.request_bytes
        least = self.minimum(slot)
        return least is None or sum(least.memory.values()) <= room

    # Settings and configurations without an effect

    def unknown(self) -> str:
        """Return which models settings name that are not among those to be served; raises as ``names``."""
        there = {ALL, "", *self.names()}
        said = []
        for setting in _NAMING:
            value = getattr(self._settings, setting)
            unknown = sorted(set([value] if isinstance(value, str) else value) - there)
            if unknown:
                listed = few(list(map(shown, unknown)))
                said.append(f"{setting}: not among the models that are served: {listed}")
        return "; ".join(said)

    def say_ignored(self, model: str, config: ModelConfig) -> None:
        """Log which fields of the configuration of ``model`` are ignored, if that has changed."""
        ignored = ", ".join(f"{name} (line {line})" for name, line in config.ignored.items())
        if self._ignored.get(model, "") != ignored:
            sentence = f"ignored: {ignored}" if ignored else "nothing of it is ignored any more"
            _log.info("model %s: %s: %s", model, FILE, sentence)
        self._ignored[model] = ignored
