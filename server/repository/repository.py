"""The models of the service: which packs there are, which are loaded, and what each holds.

Invariant: a model is loaded exactly when it has a worker, and then its plan is reserved in the budget.
Loaded is not serving: its worker may have met a fault that lasts (the file was changed, the disk is gone).

All models are planned together (server/memory/sharing.py). One that comes takes what others have beyond
their least, as far as it needs; when one goes, the others grow again, in the background.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Iterator

from loader.errors import LoaderError
from loader.pool.pool import ReadPool
from models.errors import ModelError
from models.packs.leftovers import clear_repository
from models.packs.pack import Pack
from models.runtime.heap import trim_heap
from pipeline.devices.base import Device, DeviceError
from pipeline.execution.errors import DrainError
from pipeline.fitting.frontier import FrontierPoint
from pipeline.planning.plan import PlanError
from server.errors import NotFoundError, NotServingError, RefusedError, few, shown
from server.memory.budget import Budget
from server.memory.minima import Minima, least_together
from server.memory.sharing import Sharer
from server.repository.entry import Absence, Entry, Loading, Lost, Unloaded
from server.repository.loaded_models import LoadedModels
from server.repository.model_folders import model_names
from server.repository.opening import Opener
from server.repository.presence import Presence, is_folder
from server.repository.worker import Worker
from server.settings.per_model import ALL
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

# What is wrong with one pack, or with the disk or the device under it.
_FAILURES = (ModelError, LoaderError, PlanError, DeviceError, DrainError)
# Of the disk and of the system's memory: at the next try these may be gone.
_MAY_PASS = (LoaderError, NotServingError)


class Repository:
    """Loads and unloads packs under ``settings.repository``; one load or unload at a time."""

    def __init__(self, settings: Settings, budget: Budget, device: Device, pool: ReadPool) -> None:
        self._settings = settings
        self._budget = budget
        self._opener = Opener(settings, budget, device, pool)
        self._entries: dict[str, Entry] = {}
        self._lock = asyncio.Lock()
        self._growth: asyncio.Task[None] | None = None
        self._closed = False
        self._minima = Minima(self._opener.least)
        self._loaded = LoadedModels(self._entries, budget, self._opener, self._absent)
        self.presence = Presence(settings.repository)
        self.refusals: dict[str, int] = {}

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def names(self) -> list[str]:
        """Return the models on disk, by name.

        Raises:
            NotFoundError: the repository does not exist.
        """
        return model_names(self._settings.repository)

    def set_aside(self) -> None:
        """Take the memory of requests out of the budget, before models share the rest; blocks.

        Raises:
            RefusedError: there is not as much.
        """
        # What is wrong with one is said when it is loaded.
        found = [self._minima.of(self._settings.repository / name) for name in self._served()]
        minima = [minimum for minimum in found if minimum is not None]
        together = least_together(minima, self._opener.activations != "own")
        needs = [minimum.need for minimum in minima]
        self._budget.set_aside(self._settings.request_memory, needs, together)
        trim_heap()

    async def load_all(self) -> None:
        """Load the models that the settings name; one that fails is noted and the others go on."""
        for folder in await asyncio.to_thread(clear_repository, self._settings.repository):
            _log.warning("%s: removed: left by a compilation that was killed", folder)
        self._warn_of_names()
        for name in self._served():
            try:
                await self.load(name)
            except (*_FAILURES, RefusedError, NotServingError):
                _log.error("not served: %s", self._entries[name].message)

    def _warn_of_names(self) -> None:
        """Say which names of settings by model are no model's."""
        for setting in ("workers", "deadline", "lanes", "preferred_lanes", "lane_delay"):
            unknown = sorted(set(getattr(self._settings, setting)) - {ALL, *self.names()})
            if unknown:
                names = few(list(map(shown, unknown)))
                _log.warning("%s: not in the repository: %s", setting, names)

    async def load(self, name: str) -> Entry:
        """Load the latest version of ``name`` within its share of the budget.

        Loaded models whose share it needs are closed and opened again with a smaller plan, one by one;
        requests to them wait in line. Models that are served and not loaded keep what they need at least,
        as far as it is there.

        Raises:
            NotFoundError: no such model. RefusedError: it does not fit. NotServingError: the system has
            not the memory, or refuses its files. ModelError, LoaderError, DeviceError: its pack is
            damaged. What was loaded before is as it was.
        """
        async with self._changing():
            folder = self._settings.repository / name
            if not name or name[0] == "." or "/" in name or not is_folder(folder):
                raise NotFoundError(f"model {shown(name)}: not in the repository")
            entry = self._entries.setdefault(name, Entry(name))
            if entry.serves:
                return entry
            # What left service holds its memory until here.
            await self._loaded.close(entry, entry.reason)
            if isinstance(entry.condition, Lost):
                raise NotServingError(f"{entry.message}; restart the server")
            entry.condition = Loading()
            try:
                changed = await self._loaded.admit(entry, folder)
                if changed:
                    self._grow_later()
            except (Exception, asyncio.CancelledError) as exc:
                entry.condition = self._not_loaded(name, exc)
                if entry.absence == "refused":
                    self.refusals[name] = self.refusals.get(name, 0) + 1
                raise
            return entry

    def _not_loaded(self, name: str, exc: BaseException) -> Unloaded | Lost:
        """Return what becomes of a model whose loading ended with ``exc``."""
        # Where it was another model's read, this one holds nothing.
        if isinstance(exc, DrainError) and name in self._budget.held():
            return Lost(str(exc))
        why = str(exc) or "loading was cancelled"
        cause: Absence = "refused" if isinstance(exc, RefusedError) else "failed"
        return Unloaded(why, cause, isinstance(exc, _MAY_PASS))

    async def unload(self, name: str) -> None:
        """Let ``name`` finish its requests and give its memory back.

        Raises:
            NotFoundError: no such model is known.
        """
        async with self._changing():
            if name not in self._entries:
                raise NotFoundError(f"model {shown(name)}: not in the repository")
            was_loaded = self._entries[name].worker is not None
            await self._loaded.close(self._entries[name], "unloaded", "unloaded")
            if was_loaded:
                self._grow_later()

    def get(self, name: str, version: str | None = None) -> tuple[Entry, Pack]:
        """Return a model that has been loaded or tried, and its pack.

        Raises:
            NotFoundError: unknown name or version. RefusedError, NotServingError: it is not loaded.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise NotFoundError(f"model {shown(name)}: not found")
        if version is not None and entry.version is not None and version != entry.version:
            raise NotFoundError(f"model {shown(name)}: version {shown(version)} not found")
        if not entry.serves or entry.pack is None:
            raise (RefusedError if entry.absence == "refused" else NotServingError)(entry.message)
        return entry, entry.pack

    def worker(self, name: str, version: str | None = None) -> tuple[Worker, Pack]:
        """Return the worker and pack of a ready model; raises as ``get``."""
        entry, pack = self.get(name, version)
        assert entry.worker is not None
        return entry.worker, pack

    async def replan(self, name: str, most_bytes: int | None) -> Entry:
        """Serve a loaded model in at most ``most_bytes`` (None: in what the budget leaves it) from now on.

        Requests to it wait in line meanwhile, as those to models that shrink for it. The limit stays until
        the model is unloaded.

        Raises:
            NotFoundError, NotServingError: it is not loaded. RefusedError: it needs more at least; nothing
            has changed. Otherwise as ``load``.
        """
        async with self._changing():
            entry, _ = self.get(name)
            await self._loaded.replan(entry, most_bytes)
            self._grow_later()
            return entry

    async def frontier(self, name: str) -> list[FrontierPoint]:
        """Return the plans that a loaded model may have, ascending in memory.

        Raises:
            PlanError, ProfileError: it has none. NotServingError: the server ends. Otherwise as ``get``.
        """
        return await self._loaded.frontier(self.get(name)[0])

    async def close(self) -> None:
        """Drain and close every model; a load that is still planning ends with an error."""
        self._closed = True
        self._loaded.planning.close()
        async with self._changing():
            for entry in self.entries():
                await self._loaded.close(entry, "unloaded", "unloaded")
        await asyncio.to_thread(self._opener.close)

    @contextlib.asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Be alone in changing what is loaded; growth that is under way stops, and goes on afterwards."""
        growth, self._growth = self._growth, None
        try:
            if growth is not None:
                growth.cancel()
                await asyncio.wait({growth})
            async with self._lock:
                yield
        finally:
            if growth is not None and (growth.cancelled() or not growth.done()):
                self._grow_later()

    def _grow_later(self) -> None:
        """Let the loaded models use what is free, in the background."""
        if not self._closed and (self._growth is None or self._growth.done()):
            self._growth = asyncio.create_task(self._grow())

    async def _grow(self) -> None:
        async with self._lock:
            await self._loaded.grow()

    def _served(self) -> list[str]:
        """Return the models that the settings name, or all on disk."""
        return list(self._settings.models) or self.names()

    def _absent(self, present: Collection[str]) -> Iterator[Sharer]:
        """Yield models that are served but not ``present``, and that nobody has unloaded; blocks."""
        for name in self._served():
            entry = self._entries.get(name)
            if name not in present and not (entry and _stays_away(entry)):
                least = self._minima.of(self._settings.repository / name)
                if least is not None and least.has_room(self._budget.request_bytes):
                    yield Sharer(name, least.memory, alone=least.alone)


def _stays_away(entry: Entry) -> bool:
    """Return whether a model keeps no place for later: somebody unloaded it, or it can never come back."""
    return entry.absence == "unloaded" or isinstance(entry.condition, Lost)
