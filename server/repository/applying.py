"""Applies one change at a time of what is desired: which slots it concerns, and what becomes of each."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from functools import partial
from typing import Any

from models.packs.folders import clear_repository
from models.sizes import format_size
from pipeline.budget.budget import Budget
from server.causes import attribution, because
from server.errors import AwayError, ConflictError, NotFoundError, shown
from server.faults import FAILURES, Code, Fault
from server.repository.balancing import Balancer
from server.repository.catalog import Catalog
from server.repository.changes import (
    Change,
    CloseIdle,
    Fetch,
    Limit,
    Load,
    Relieve,
    Remove,
    Restore,
    Start,
    Unload,
)
from server.repository.entry import Absence, Entry, Unloaded
from server.repository.environment import RepositoryEnvironment
from server.repository.executor import Executor, log_gone
from server.repository.model_config import ModelConfig, ModelConfigError
from server.repository.models import Models
from server.repository.on_disk import Slot, missing_versions
from server.repository.opening import Opener
from server.repository.planning_threads import PlanningThreads
from server.repository.preparing import naming
from server.repository.worker import Worker
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

# The state of a model while the start loads others before it.
_COMING = Unloaded(Fault(Code.LOADING, "waits for its turn to be loaded"), "loading")
_IDLE = Fault(
    Code.NOT_SERVING, "closed, since no request came; the next one loads it again", permanent=False
)
_UNLOADED = Fault(Code.NOT_LOADED, "unloaded")


class Applier:
    """Applies changes to ``models``.

    ``grow_later``: called when models may use memory of ``budget`` that is free now.
    """

    def __init__(
        self,
        settings: Settings,
        models: Models,
        *,
        catalog: Catalog,
        planning: PlanningThreads,
        environment: RepositoryEnvironment,
        opener: Opener,
        executor: Executor,
        balancer: Balancer,
        budget: Budget,
        grow_later: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._models = models
        self._catalog = catalog
        self._planning = planning
        self._environment = environment
        self._opener = opener
        self._executor = executor
        self._balancer = balancer
        self._budget = budget
        self._grow_later = grow_later
        self._evicts = settings.budget_policy == "evict-lru"

    async def apply(self, change: Change) -> Any:
        """Apply ``change``, while no other is applied.

        Returns:
            Of Start the slots of all models; of Load the entry; of Limit the entries, lowest version first;
            of Fetch and Restore whether the model was loaded; of CloseIdle whether it was closed.

        Raises:
            As Repository has it of the calls that desire them.
        """
        work: Coroutine[Any, Any, Any]
        match change:
            case Start(reserve):
                work = self._start(reserve)
            case Load(name, unless, is_first):
                work = self._load_unless(name, unless, is_first=is_first)
            case Unload(name):
                work = self._unload(name)
            case Remove(name):
                work = self._remove(name, ())
            case Limit(name, max_bytes):
                work = self._limit(name, max_bytes)
            case Fetch(slot):
                work = self._fetch(slot)
            case CloseIdle(slot, seconds):
                work = self._close_idle(slot, seconds)
            case Relieve():
                work = self._balancer.relieve(evicts=self._evicts)
            case Restore(slot, worker, reason):
                work = self._restore(slot, worker, reason)
        free_bytes = self._budget.free_bytes
        try:
            return await work
        finally:
            # What an idle model leaves, or pressure takes, is the system's, and not of others.
            is_of_system = isinstance(change, CloseIdle | Relieve)
            if self._budget.free_bytes > free_bytes and not is_of_system:
                self._grow_later()
            if not (isinstance(change, Load) and change.is_first):
                self._opener.log_unprofiled()

    async def _start(self, reserve: Callable[[], Awaitable[None]]) -> list[Slot]:
        """Return the slots of all models; what a killed process has left is gone."""
        root = self._settings.repository
        for path in await self._planning.run(lambda: clear_repository(root)):
            _log.warning("%s: removed: left by a process that was killed", path)
        slots = await self._planning.run(lambda: [*self._catalog.slots()])
        for slot in slots:
            self._models.known(slot.name, slot.model).become(_COMING)
        with self._catalog.scanned(slots):
            await reserve()
        return slots

    async def _load_first(self, name: str) -> None:
        try:
            await self._load(name, evicts=False)
        except NotFoundError as exc:
            if not self._models.of(name):  # it was never there
                raise
            for entry in self._models.of(name):
                entry.become(Unloaded.after(exc))
        except FAILURES:  # its entry has the error
            pass
        for entry in self._models.of(name):
            slot = entry.slot if self._evicts and entry.absence == "refused" else None
            if slot is not None and await self._planning.run(
                partial(self._catalog.fits_alone, slot)
            ):
                assert entry.fault is not None
                entry.become(Unloaded(entry.fault, "evicted"))
                _log.info("model %s: no room now, a request to it makes some", entry.name)

    async def _load_unless(
        self, name: str, unless: Collection[Absence], *, is_first: bool
    ) -> Entry | None:
        is_absent = "unloaded" in unless and self._models.is_unloaded(name)
        is_absent |= "evicted" in unless and self._models.is_evicted(name)
        if is_absent:
            return self._models.find(name)
        return await (self._load_first(name) if is_first else self._load(name))

    async def _load(self, name: str, *, evicts: bool = True) -> Entry:
        """Do as ``load``; ``evicts``: others may go for it, if settings allow it."""
        with self.noting(name):
            slots = await self._planning.run(lambda: self._catalog.slots_of(name))
        self._catalog.say_ignored(name, slots[0].config)
        missing = missing_versions(slots)
        await self._remove(name, {*missing, *(slot.name for slot in slots)})
        for slot_name, why in missing.items():
            # It is to be served and is not on disk; it is closed if it was loaded.
            entry = self._models.known(slot_name, name)
            with because(why):
                fault = Fault(Code.MISSING, why, permanent=False)
                await self._unserve(entry, fault)
            entry.version = slot_name.rpartition("/")[2]
        failures = []
        for slot in slots:
            try:
                await self._balancer.bring(slot, evicts and self._evicts)
            except FAILURES as exc:
                failures.append(exc)
        if failures:
            raise failures[0]
        return self._models.find(name)

    async def _unload(self, name: str) -> None:
        entries = self._models.of(name)
        if not entries:
            raise NotFoundError(f"model {shown(name)}: not in the repository")
        for entry in entries:
            log_gone(entry, "unloaded")
            await self._executor.close(entry, _UNLOADED, "unloaded")
            entry.most_bytes = None

    async def _remove(self, name: str, kept: Collection[str]) -> None:
        """Close the slots of ``name`` but those ``kept``, and drop their entries unless memory is lost."""
        gone = "its versions are others now" if kept else "not in the repository any more"
        for entry in self._models.of(name):
            if entry.name in kept:
                continue
            with because(gone):
                await self._unserve(entry, Fault(Code.MISSING, gone))
            if not entry.is_lost:
                del self._models[entry.name]

    async def _unserve(self, entry: Entry, fault: Fault) -> None:
        """Close ``entry``, which is not to be served any more, after the requests that have found it."""
        log_gone(entry, "unloaded")
        await self._executor.close(entry, fault, patiently=True)

    async def _restore(self, slot: str, worker: Worker, reason: str) -> bool:
        entry = self._models.get(slot)
        if entry is None or entry.worker is not worker:
            return False
        fault = Fault(Code.ENGINE_FAILED, reason, permanent=False)
        await self._executor.close(entry, fault, "evicted" if self._evicts else "failed")
        with because(reason):
            await self._reload(entry)
        return True

    async def _fetch(self, slot: str) -> bool:
        """Load an evicted model again, if it is desired; return whether. Raises as ``load``."""
        entry = self._models.get(slot)
        # It may have been loaded or unloaded before this had its turn.
        if entry is None or not entry.evicted or not entry.is_desired:
            return False
        with because("a request to it"):
            await self._reload(entry)
        return True

    async def _close_idle(self, slot: str, seconds: float) -> bool:
        """Close a model that nobody uses; return whether."""
        entry = self._models.get(slot)
        if entry is None or not entry.is_idle(seconds):
            return False
        with because(f"no request for {seconds:g} s"):
            log_gone(entry, "evicted")
            await self._executor.close(entry, _IDLE, "evicted", patiently=True)
        entry.evictions += 1
        return True

    async def _reload(self, entry: Entry) -> None:
        """Load a model again that was evicted or given up; raises as ``load``.

        Its files are checked, since a new version may be being copied just now.
        """
        try:
            slots = await self.verified(entry.model)
        except (
            ModelConfigError
        ) as exc:  # a wrong configuration never changes a model that is served
            if entry.slot is None:
                raise
            _log.warning("model %s: served as it was configured before: %s", entry.name, exc)
            slots = await self.verified(entry.model, entry.slot.config)
        await self._remove(entry.model, {slot.name for slot in slots})
        # If its slots have other names now, as with another version_policy, all of them take its place.
        for slot in [each for each in slots if each.name == entry.name] or slots:
            await self._balancer.bring(slot, self._evicts)

    async def _limit(self, name: str, max_bytes: int | None) -> list[Entry]:
        if (latest := self._models.find(name)).evicted:
            raise ConflictError(latest.message)
        latest.serving()
        loaded = [entry for entry in self._models.of(name) if entry.serves]
        loaded.sort(key=lambda entry: entry is latest)
        await self._balancer.replan(loaded, max_bytes)
        limit = "no limit" if max_bytes is None else f"at most {format_size(max_bytes)}"
        _log.info("model %s: limit of its memory: %s", name, limit, extra=attribution())
        return loaded

    @contextlib.contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Note in the entries of ``name`` an error that is raised inside, unless all ends.

        Where the whole repository is away, it is not known whether there is such a model.
        """
        try:
            yield
        except FAILURES as exc:
            if not (self._planning.is_closed or isinstance(exc, NotFoundError)):
                entries = self._models.of(name)
                if not (entries or isinstance(exc, AwayError)):
                    entries = [self._models.known(name, name)]
                for entry in entries:
                    entry.note(exc)
            raise

    async def verified(self, name: str, config: ModelConfig | None = None) -> list[Slot]:
        """Return the slots of ``name``, after a check of all bytes of those that were not tried before."""
        slots = await self._planning.run(lambda: self._catalog.slots_of(name, config))
        for slot in slots:
            entry = self._models.get(slot.name)
            if entry is None or entry.slot is None or entry.slot.seen != slot.seen:
                with naming(name):
                    await self._planning.run(partial(self._environment.check_complete, slot.folder))
        return slots
