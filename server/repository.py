"""The models of the service: which packs there are, which are loaded, and what each holds.

Invariant: a model is loaded exactly when it has a worker, and then its plan is reserved in the budget.
Loaded is not serving: its worker may have met a fault that lasts (the file was changed, the disk is gone).
"""

import asyncio
import logging
from pathlib import Path

from loader.errors import LoaderError
from loader.files import open_reader
from loader.pool import ReadPool
from models.errors import ModelError
from models.heap import trim_heap
from models.pack import Pack, open_pack, versions
from pipeline.architectures import ARCHITECTURES
from pipeline.devices.base import Device, DeviceError, DeviceMemoryError
from pipeline.engine import Engine
from pipeline.planning.fit import Fitted
from pipeline.planning.plan import PlanError
from pipeline.planning.thumb import smallest_plan
from pipeline.profile import Profile, plan_key
from pipeline.watch import BoundWatch
from server.budget import Budget, fit
from server.entry import Entry
from server.errors import NotFoundError, NotServingError, RefusedError, shown
from server.profiles import prepared
from server.settings import Settings
from server.worker import Worker

_log = logging.getLogger(__name__)

Opened = tuple[Pack, Fitted, Worker]


class Repository:
    """Loads and unloads packs under ``settings.repository``; one load or unload at a time."""

    def __init__(self, settings: Settings, budget: Budget, device: Device, pool: ReadPool) -> None:
        self._settings = settings
        self._architecture = ARCHITECTURES[settings.architecture]
        self._budget = budget
        self._device = device
        self._pool = pool
        self._entries: dict[str, Entry] = {}
        self._lock = asyncio.Lock()
        self.refusals: dict[str, int] = {}

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def names(self) -> list[str]:
        """Return the models on disk, by name.

        Raises:
            NotFoundError: the repository does not exist.
        """
        root = self._settings.repository
        if not root.is_dir():
            raise NotFoundError(f"repository {root}: no such folder")
        found = (path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
        return sorted(path.name for path in found if versions(path))

    async def load_all(self) -> None:
        """Load the models that the settings name; one that fails is noted and the others go on.

        Each gets at least its smallest ring where all of those fit together, and an even share of
        the rest.
        """
        names = list(self._settings.models) or self.names()
        smallest = {name: await asyncio.to_thread(self._smallest, name) for name in names}
        for position, name in enumerate(names):
            needed = sum(smallest[other] for other in names[position:])
            rest = max(self._budget.free_bytes - needed, 0)
            share = smallest[name] + rest // (len(names) - position)
            try:
                await self.load(name, share)
            except (ModelError, LoaderError, PlanError, DeviceError, RefusedError, OSError) as exc:
                _log.error("model %s is not served: %s", name, exc)

    async def load(self, name: str, share: int | None = None) -> Entry:
        """Load the latest version of ``name`` within ``share`` bytes of the budget (None: all free).

        Raises:
            NotFoundError: no such model. RefusedError: it does not fit. ModelError, LoaderError,
            DeviceError: its pack is damaged. What was loaded before stays as it is.
        """
        async with self._lock:
            folder = self._settings.repository / name
            if not name or name[0] == "." or "/" in name or not _is_folder(folder):
                raise NotFoundError(f"model {shown(name)}: not in the repository")
            entry = self._entries.setdefault(name, Entry(name))
            if entry.serves:
                return entry
            # What left service holds its memory until here.
            await self._close(entry, entry.reason)
            if entry.lost:
                raise NotServingError(f"model {name!r}: {entry.lost}; restart the server")
            entry.loading, entry.why, entry.refused = True, "loading", False
            try:
                opened = await self._opened(name, folder, share)
            except (Exception, asyncio.CancelledError) as exc:
                entry.why = str(exc) or "loading was cancelled"
                entry.refused = isinstance(exc, RefusedError)
                if entry.refused:
                    self.refusals[name] = self.refusals.get(name, 0) + 1
                raise
            finally:
                entry.loading = False
            entry.pack, entry.fitted, entry.worker = opened
            return entry

    async def unload(self, name: str) -> None:
        """Let ``name`` finish its requests and give its memory back.

        Raises:
            NotFoundError: no such model is known.
        """
        async with self._lock:
            if name not in self._entries:
                raise NotFoundError(f"model {shown(name)}: not in the repository")
            await self._close(self._entries[name], "unloaded")

    async def _close(self, entry: Entry, why: str) -> None:
        """Let ``entry``, if it is loaded, finish its requests, and give its memory back."""
        worker, entry.worker, entry.why = entry.worker, None, why
        entry.refused = False
        if worker is None:
            return
        await worker.close()
        entry.fitted = None
        # The memory of a broken engine is still the disk's: it stays reserved.
        entry.lost = worker.engine.broken
        if not entry.lost:
            self._budget.release(entry.name)
        trim_heap()

    def get(self, name: str, version: str | None = None) -> tuple[Entry, Pack]:
        """Return a model that has been loaded or tried, and its pack.

        Raises:
            NotFoundError: unknown name or version. RefusedError, NotServingError: it is not loaded.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise NotFoundError(f"model {shown(name)}: not found")
        if version is not None and entry.pack is not None and version != entry.pack.version:
            raise NotFoundError(f"model {shown(name)}: version {shown(version)} not found")
        if not entry.serves or entry.pack is None:
            error = RefusedError if entry.refused else NotServingError
            raise error(entry.reason if entry.refused else f"model {name!r}: {entry.reason}")
        return entry, entry.pack

    def worker(self, name: str, version: str | None = None) -> tuple[Worker, Pack]:
        """Return the worker and pack of a ready model; raises as ``get``."""
        entry, pack = self.get(name, version)
        assert entry.worker is not None
        return entry.worker, pack

    async def close(self) -> None:
        """Drain and close every model."""
        for entry in self.entries():
            await self.unload(entry.name)

    def _pack(self, folder: Path) -> Pack:
        return open_pack(folder, self._device.target, self._settings.recompile)

    def _smallest(self, name: str) -> int:
        """Return what ``name`` needs at least; 0 where its pack cannot be opened."""
        try:
            manifest = self._pack(self._settings.repository / name).manifest
            return smallest_plan(manifest, self._device.adapt(self._architecture)).total_bytes
        except (ModelError, PlanError, OSError):
            return 0

    async def _opened(self, name: str, folder: Path, share: int | None) -> Opened:
        """Run ``_open`` in a thread; cancelled, wait for it and undo it."""
        loading = asyncio.create_task(asyncio.to_thread(self._open, name, folder, share))
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            await asyncio.wait({loading})
            if not loading.cancelled() and loading.exception() is None:
                await loading.result()[2].close()
                self._budget.release(name)
            raise

    def _open(self, name: str, folder: Path, share: int | None) -> Opened:
        """Reserve, read and start one model; blocks. On an error nothing stays reserved."""
        pack, profile = prepared(self._pack(folder), self._device)
        architecture = self._device.adapt(self._architecture)
        limit = self._budget.free_bytes if share is None else share
        fitted = fit(pack.manifest, architecture, name, self._budget, limit, profile=profile)
        self._budget.reserve(name, fitted.plan)
        try:
            reader = open_reader(pack.weights_path)
            verify = self._settings.verify == "always"
            try:
                engine = Engine(pack, fitted.plan, self._device, self._pool, reader, verify)
            except BaseException:
                reader.close()
                raise
            try:
                engine.open()
            except BaseException:
                engine.close()
                raise
        except DeviceMemoryError as exc:
            self._budget.release(name)
            raise RefusedError(f"model {name!r}: {exc}") from exc
        except BaseException:
            self._budget.release(name)
            raise
        watch = _watch(fitted, profile)
        return pack, fitted, Worker(engine, self._settings.queue_limit, reader, watch)


def _watch(fitted: Fitted, profile: Profile | None) -> BoundWatch | None:
    """Return a judge of sweeps where the limits of exactly this plan were measured."""
    limits = profile.limits.get(plan_key(fitted.plan)) if profile is not None else None
    return BoundWatch(fitted.plan, limits) if limits is not None else None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name longer than the file system has
        return False
