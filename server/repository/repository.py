"""The models of the service: which packs there are, which are loaded, and what each holds.

Invariant: a model is loaded exactly when it has a worker, and then its plan is reserved in the budget.
Loaded is not serving: its worker may have met a fault that lasts (the file was changed, the disk is gone).

All models are planned together (server/memory/sharing.py). One that comes takes what others have beyond
their least, as far as it needs; when one goes, the others grow again, in the background.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from loader.errors import LoaderError
from loader.pool.pool import ReadPool
from models.errors import ModelError
from models.packs.leftovers import clear_repository
from models.packs.pack import Pack, read_pack
from pipeline.devices.base import Device, DeviceError
from pipeline.execution.errors import DrainError
from pipeline.planning.plan import PlanError
from pipeline.program.stopping import Tell
from server.errors import (
    ConflictError,
    NotFoundError,
    NotLoadedError,
    NotServingError,
    RefusedError,
    shown,
)
from server.memory.budget import Budget
from server.memory.minima import Minima
from server.repository.changing import Changing
from server.repository.closing import Closing
from server.repository.entries import Entries
from server.repository.entry import Entry, Lost, Unloaded, how_to_load
from server.repository.expected import Expected
from server.repository.layout.model_folders import is_model
from server.repository.layout.presence import Presence
from server.repository.layout.slots import Missing, Slot, missing_versions
from server.repository.layout.wholeness import check_whole
from server.repository.loaded_models import LoadedModels
from server.repository.opening import Opener
from server.repository.planning.preparing import Preparer
from server.repository.remarks import IgnoredFields, warn_of_names
from server.repository.turnover.arrivals import Arrivals
from server.repository.turnover.bringing import Bringing
from server.repository.turnover.evicting import Evicting
from server.repository.turnover.replacing import Replacing
from server.repository.uses import Away, Use
from server.repository.worker import Worker
from server.settings.per_model import ALL
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

# What is wrong with one pack, or with the disk or the device under it.
_FAILURES = (ModelError, LoaderError, PlanError, DeviceError, DrainError)
# What requests are told of a model that the start has not come to yet.
_COMING = Unloaded("waits for its turn to be loaded", "loading")


class Repository:
    """Loads and unloads packs under ``settings.repository``; one load or unload at a time."""

    def __init__(self, settings: Settings, budget: Budget, device: Device, pool: ReadPool) -> None:
        self._settings = settings
        preparer = Preparer(settings, budget, device)
        self._opener = Opener(settings, budget, device, pool)
        self._entries = Entries()
        self._expected = Expected(settings, budget, self._entries, Minima(preparer.least))
        # Reading a request and computing may each take the time limit.
        self._patience = 2 * settings.request_timeout
        self._evicts = settings.budget_policy == "evict-lru"
        self._closing = Closing(budget)
        self._loaded = LoadedModels(
            *(self._entries, budget, preparer, self._opener, self._closing, self._expected.absent)
        )
        self._changing = Changing(self._loaded.grow)
        self._evicting = Evicting(
            *(self._entries, budget, self._loaded, self._closing),
            absent=self._expected.absent,
            least=self._expected.least,
            activations=self._opener.activations,
            may_go=lambda model: bool({model, ALL}.intersection(settings.evictable)),
            patience_seconds=self._patience,
        )
        replacing = Replacing(
            *(budget, self._opener, self._loaded, self._closing, self._evicting, self._patience)
        )
        self._bringing = Bringing(
            *(self._entries, budget, self._loaded, self._closing, self._evicting, replacing)
        )
        self._arrivals = Arrivals(self._entries, self._fetch, settings.queue_limit)
        self._reading: dict[Path, asyncio.Task[Pack]] = {}
        self._ignored = IgnoredFields()
        self.presence = Presence(settings.repository)

    @property
    def root(self) -> Path:
        """The folder of all models."""
        return self._settings.repository

    def entries(self) -> list[Entry]:
        """Return what is known of each slot (layout/slots.py)."""
        return list(self._entries.values())

    def leaving(self) -> list[Worker]:
        """Return the workers of what was loaded that still have requests to answer."""
        return list(self._closing.leaving)

    def left_behind(self) -> list[Worker]:
        """Return the workers of what was given up and has not ended."""
        return list(self._closing.left_behind)

    def names(self) -> list[str]:
        """Return the models on disk, by name.

        Raises:
            NotFoundError: the repository does not exist.
        """
        return self._expected.on_disk()

    def served(self) -> list[str]:
        """Return the models that the settings name, or all on disk; raises as ``names``."""
        return self._expected.names()

    async def set_aside(self) -> None:
        """Take the memory of requests out of the budget, before models share the rest.

        Raises:
            RefusedError: there is not as much. NotServingError: the server ends.
        """
        activations = self._opener.activations
        await self._loaded.planning.run(lambda: self._expected.set_aside(activations))

    async def load_all(self, set_aside: Callable[[], Awaitable[None]]) -> None:
        """Load the models that the settings name; one that fails is noted and the others go on.

        ``set_aside`` comes before the first: it takes out of the budget what models do not share. Nothing
        else changes what is loaded meanwhile. Raises what that raises; NotFoundError: no repository.
        """
        for folder in await asyncio.to_thread(clear_repository, self._settings.repository):
            _log.warning("%s: removed: left by a compilation that was killed", folder)
        warn_of_names(self._settings, self.names())
        async with self._changing.alone():
            for slot in await asyncio.to_thread(lambda: [*self._expected.slots()]):
                self._entries.known(slot.name, slot.model).condition = _COMING
            await set_aside()
            await self._load_served()

    async def _load_served(self) -> None:
        for name in self.served():
            with contextlib.suppress(*_FAILURES, RefusedError, NotServingError):
                await self._load(name, evicts=False)
            for entry in self._entries.of(name):
                may_come = self._evicts and entry.absence == "refused"
                if may_come and await asyncio.to_thread(
                    self._expected.fits_alone, entry.name, entry.model
                ):
                    entry.condition = Unloaded(entry.reason, "evicted")
                    _log.info("model %s: no room now, a request to it makes some", entry.name)
                elif not entry.serves:
                    _log.error("not served: %s", entry.message)

    async def load(self, name: str) -> Entry:
        """Load what the repository has of ``name`` now, within its share of the budget.

        Loaded models whose share it needs are closed and opened again with a smaller plan, one by one;
        requests to them wait in line. Models that are served and not loaded keep what they need at least,
        as far as it is there. What is loaded stays, unless its files are others now: then these take its
        place, and no request is lost. Versions that are not to be served any more go.

        Raises:
            NotFoundError: no such model. RefusedError: it does not fit. NotServingError: the system has
            not the memory, or refuses its files. ModelError, LoaderError, DeviceError: its pack or its
            configuration is damaged. What was loaded before is as it was. Of several versions, the others
            are tried all the same.
        """
        async with self._changing.alone():
            entry = await self._load(name, self._evicts)
        for each in self._entries.of(name):
            if not each.serves:
                _log.warning("not served: %s", each.message)
        return entry

    async def _load(self, name: str, evicts: bool) -> Entry:
        """Do as ``load``, alone in changing what is loaded."""
        try:
            found = await asyncio.to_thread(self._expected.slots_of, name)
        except (*_FAILURES, NotServingError) as exc:
            self.note(name, exc)
            raise
        self._ignored.say(name, found[0].config)
        missing = missing_versions(found)
        await self._remove(name, {*missing, *(slot.name for slot in found)})
        for each in missing.values():
            await self._miss(each)
        failures = [failure for slot in found if (failure := await self._try(slot, evicts))]
        if failures:
            raise failures[0]
        return self._entries.find(name)

    def note(self, name: str, exc: Exception) -> None:
        """Note why nothing of ``name`` can be loaded as it is on disk now; what is loaded serves on."""
        why = exc.strerror if isinstance(exc, OSError) else None
        self._entries.note(name, why or str(exc))

    async def _try(self, slot: Slot, evicts: bool) -> Exception | None:
        """Let ``slot`` be served; return why it cannot be."""
        try:
            if await self._bringing.bring(slot, evicts):
                self._changing.grow_later()
        except (*_FAILURES, RefusedError, NotServingError) as exc:
            return exc
        return None

    async def unload(self, name: str) -> None:
        """Let all versions of ``name`` finish their requests and give their memory back.

        Raises:
            NotFoundError: no such model is known.
        """
        async with self._changing.alone():
            known = self._entries.of(name)
            if not known:
                error = NotFoundError(f"model {shown(name)}: not in the repository")
                raise await self._explained(name, error)
            was_loaded = any(entry.worker is not None for entry in known)
            for entry in known:
                await self._closing.close(entry, "unloaded", "unloaded")
                entry.most_bytes = None
            if was_loaded:
                self._changing.grow_later()

    async def remove(self, name: str) -> None:
        """Let ``name``, which is not in the repository any more, finish its requests, and forget it."""
        async with self._changing.alone():
            await self._remove(name, ())

    async def _remove(self, name: str, kept: Collection[str]) -> None:
        """Close the slots of ``name`` but those ``kept``, and forget those whose memory is free."""
        gone = "its versions are others now" if kept else "not in the repository any more"
        for entry in self._entries.of(name):
            if entry.name in kept:
                continue
            if entry.worker is not None:
                _log.info("model %s: %s", entry.name, gone)
                self._changing.grow_later()
            await self._closing.close(entry, gone, patience_seconds=self._patience)
            if not isinstance(entry.condition, Lost):
                self._entries.forget(entry.name)

    async def _miss(self, missing: Missing) -> None:
        """Note a version that shall be served and is not on disk; one that was goes."""
        entry = self._entries.known(missing.name, missing.model)
        if entry.worker is not None:
            self._changing.grow_later()
        await self._closing.close(entry, missing.why, patience_seconds=self._patience)
        entry.version = missing.version

    def get(self, name: str, version: str | None = None) -> tuple[Entry, Pack]:
        """Return a model that has been loaded or tried, and its pack.

        Raises:
            NotFoundError: unknown name or version. RefusedError, NotServingError: it is not loaded.
        """
        return self._entries.serving(name, version)

    def find(self, name: str, version: str | None = None) -> Entry:
        """Return what is known of the slot that answers requests to ``version``, or to the latest.

        Raises:
            NotFoundError: unknown name or version.
        """
        return self._entries.find(name, version)

    async def described(self, name: str, version: str | None = None) -> tuple[Entry, Pack]:
        """Return as ``get``; of a model that is away for a moment, what is on disk. Raises as ``use``."""
        try:
            entry = self._entries.find(name, version)
        except NotFoundError as exc:
            raise await self._explained(name, exc) from None
        if entry.serves or not entry.answers or entry.slot is None:
            return self.get(name, version)
        return entry, await self._on_disk(entry.slot.folder)

    async def _on_disk(self, folder: Path) -> Pack:
        """Return the pack in ``folder``; those who ask at once share one reading. Raises as read_pack."""
        reading = self._reading.get(folder)
        if reading is None:
            reading = asyncio.create_task(asyncio.to_thread(read_pack, folder))
            self._reading[folder] = reading

            def ended(task: "asyncio.Task[Pack]") -> None:
                del self._reading[folder]
                if not task.cancelled():
                    task.exception()  # seen, also where nobody waits any more

            reading.add_done_callback(ended)
        return await asyncio.shield(reading)

    def worker(self, name: str, version: str | None = None) -> tuple[Worker, Pack]:
        """Return the worker and pack of a ready model; raises as ``get``."""
        entry, pack = self.get(name, version)
        assert entry.worker is not None
        return entry.worker, pack

    def versions(self, name: str) -> list[str]:
        """Return the versions of ``name`` that answer, lowest first."""
        return self._entries.versions(name)

    async def check_answers(self, name: str, version: str | None = None) -> None:
        """Check that a request would be answered, if need be after a load; raises as ``use``."""
        try:
            entry = self._entries.find(name, version)
        except NotFoundError as exc:
            raise await self._explained(name, exc) from None
        if not entry.answers:
            self.get(name, version)

    async def away(self, name: str, version: str | None) -> Away | None:
        """Return what a request would bring back, as it is on disk; None where there is nothing such.

        What is wrong with it is for ``use`` to tell.
        """
        with contextlib.suppress(NotFoundError, OSError, *_FAILURES):
            entry = self._entries.find(name, version)
            if entry.evicted and entry.slot is not None:
                return Away(await self._on_disk(entry.slot.folder), entry.timeout_seconds)
        return None

    async def use(self, name: str, version: str | None, limit_seconds: float) -> Use:
        """Return a ready model, which does not go before its use ends; waits for one that comes back.

        Raises:
            As ``get``, and, of a model that was evicted, as ``load``. BusyError: too many wait for it.
            DeadlineError: it has not come within ``limit_seconds``. NotLoadedError: nobody has asked for it
            since the start, and the repository has it.
        """
        try:
            return await self._arrivals.use(name, version, limit_seconds)
        except NotFoundError as exc:
            raise await self._explained(name, exc) from None

    async def _explained(self, name: str, error: NotFoundError) -> NotFoundError:
        """Return ``error``, or, of a model that lies in the repository unknown, that it is not loaded."""
        if self._entries.of(name):
            return error
        if not await self.presence.has(lambda root: is_model(root, name)):
            return error
        remedy = how_to_load(name) if self._settings.model_control != "none" else ""
        return NotLoadedError(f"model {shown(name)}: in the repository, and not loaded{remedy}")

    @property
    def refusals(self) -> Mapping[str, int]:
        """How often each slot was refused for want of budget."""
        return self._bringing.refusals

    @property
    def evictions(self) -> Mapping[str, int]:
        """How often each slot has gone for another."""
        return self._evicting.evictions

    @property
    def cold_starts(self) -> Mapping[str, tuple[int, float]]:
        """How often each slot was loaded for a request, and the seconds that took."""
        return self._arrivals.cold_starts

    async def restore(self, entry: Entry, given_up: Worker, why: str) -> bool:
        """Serve a model with another engine in place of one that was given up, and say ``why`` it was.

        Where there is no room for it, and models go for others, the next request tries again. Return
        whether it is served; not where somebody loaded or unloaded it meanwhile. Raises as ``load``.
        """
        async with self._changing.alone():
            if entry.worker is not given_up:
                return False
            await self._closing.close(entry, why, "evicted" if self._evicts else "failed")
            await self._bring_back(entry)
            return True

    async def _fetch(self, entry: Entry) -> None:
        """Load an evicted model again; raises as ``load``."""
        async with self._changing.alone():
            if entry.evicted:  # or somebody loaded or unloaded it before this had its turn
                await self._bring_back(entry)

    async def _bring_back(self, entry: Entry) -> None:
        """Load again what has left service without anybody's wish; raises as ``load``.

        Nobody has said that what is on disk by now is whole: what is not as it was is read first.
        """
        found = await asyncio.to_thread(self._expected.slots_of, entry.model)
        for slot in found:
            known = self._entries.get(slot.name)
            if known is None or known.slot is None or known.slot.seen != slot.seen:
                await asyncio.to_thread(check_whole, slot.folder)
        await self._remove(entry.model, {slot.name for slot in found})
        # Where its versions are laid out otherwise by now, all of them are what it was.
        for slot in [each for each in found if each.name == entry.name] or found:
            if await self._bringing.bring(slot, self._evicts):
                self._changing.grow_later()

    async def replan(self, name: str, most_bytes: int | None) -> Entry:
        """Serve a loaded model in at most ``most_bytes`` (None: in what the budget leaves it) from now on.

        Requests to it wait in line meanwhile, as those to models that shrink for it. A plan is there at
        once, and the best one follows when it is found. The limit stays until the model is unloaded.

        Raises:
            NotFoundError, NotServingError: it is not loaded. ConflictError: it was evicted. RefusedError:
            it needs more at least; nothing has changed. Otherwise as ``load``.
        """
        async with self._changing.alone():
            if (entry := self._entries.find(name)).evicted:
                raise ConflictError(entry.message)
            entry.serving()
            await self._loaded.replan(entry, most_bytes)
            self._changing.grow_later()
            return entry

    @property
    def search(self) -> str | None:
        """How far the search is for better plans than the loaded models have; None: there is none."""
        search = self._loaded.search
        return None if search is None else search.said

    async def frontier(self, name: str, heard: Tell) -> list[dict[str, Any]]:
        """Return the plans that a loaded model may have, ascending in memory, in figures.

        ``heard``: told how far that is, on another thread. When this is cancelled, the search ends.

        Raises:
            PlanError, ProfileError: it has none. NotServingError: the server ends. Otherwise as ``get``.
        """
        return await self._loaded.frontier(self.get(name)[0], heard)

    async def close(self) -> None:
        """Drain and close every model; a load that is still planning ends with an error."""
        self._changing.close()
        self._loaded.planning.close()
        await self._arrivals.close()
        async with self._changing.alone():
            for entry in self.entries():
                await self._closing.close(entry, "the server is stopping")
        await asyncio.to_thread(self._opener.close)

    def has(self, slot: Slot) -> bool:
        """Return whether ``slot`` is served as it is on disk."""
        entry = self._entries.get(slot.name)
        return entry is not None and entry.has(slot)

    def is_unloaded(self, name: str) -> bool:
        """Return whether somebody has unloaded ``name``."""
        return any(entry.absence == "unloaded" for entry in self._entries.of(name))

    def is_evicted(self, name: str) -> bool:
        """Return whether all of ``name`` went for others: the next request takes what is on disk then."""
        known = self._entries.of(name)
        return bool(known) and all(entry.evicted for entry in known)

    def refused(self) -> list[str]:
        """Return the models that are not loaded for want of memory."""
        return sorted({each.model for each in self.entries() if each.absence == "refused"})
