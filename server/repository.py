"""The models of the service: which packs there are, which are loaded, and what each holds.

Invariant: a model is loaded exactly when it has a worker, and then its plan is reserved in the budget.
"""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loader.errors import LoaderError
from loader.files import open_reader
from loader.pool import ReadPool
from models.errors import ModelError
from models.heap import trim_heap
from models.pack import Pack, open_pack, versions
from pipeline.architectures import ARCHITECTURES
from pipeline.devices.base import Device, DeviceError
from pipeline.engine import Engine
from pipeline.planning.plan import Plan, PlanError
from server.budget import Budget, fit, smallest_plan
from server.errors import NotFoundError, NotServingError, RefusedError
from server.settings import Settings
from server.worker import Worker

_log = logging.getLogger(__name__)

Opened = tuple[Pack, Plan, Worker]
State = Literal["READY", "LOADING", "UNAVAILABLE"]


@dataclass
class Entry:
    """One model by name. ``reason`` says why it is not ready; ``refused`` that the budget is why."""

    name: str
    state: State = "UNAVAILABLE"
    reason: str = "not loaded"
    refused: bool = False
    pack: Pack | None = None
    plan: Plan | None = None
    worker: Worker | None = None


class Repository:
    """Loads and unloads packs under ``settings.repository``; one load or unload at a time."""

    def __init__(self, settings: Settings, budget: Budget, device: Device, pool: ReadPool) -> None:
        self._settings = settings
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
        smallest = {name: self._smallest(name) for name in names}
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
                raise NotFoundError(f"model {name!r}: not in the repository")
            entry = self._entries.setdefault(name, Entry(name))
            if entry.worker is not None and entry.worker.engine.broken:
                raise NotServingError(f"model {name!r}: {entry.worker.engine.broken}")
            if entry.worker is not None:
                return entry
            entry.state, entry.reason, entry.refused = "LOADING", "loading", False
            try:
                opened = await self._opened(name, folder, share)
            except (Exception, asyncio.CancelledError) as exc:
                entry.state, entry.reason = "UNAVAILABLE", str(exc) or "loading was cancelled"
                entry.refused = isinstance(exc, RefusedError)
                if entry.refused:
                    self.refusals[name] = self.refusals.get(name, 0) + 1
                raise
            entry.pack, entry.plan, entry.worker = opened
            entry.state, entry.reason = "READY", ""
            return entry

    async def unload(self, name: str) -> None:
        """Let ``name`` finish its requests and give its memory back.

        Raises:
            NotFoundError: no such model is known.
        """
        async with self._lock:
            if name not in self._entries:
                raise NotFoundError(f"model {name!r}: not in the repository")
            entry = self._entries[name]
            worker, entry.worker = entry.worker, None
            entry.state, entry.reason = "UNAVAILABLE", "unloaded"
            if worker is not None:
                await worker.close()
            entry.plan = None
            # The memory of a broken engine is still the disk's: it stays reserved.
            if worker is None or not worker.engine.broken:
                self._budget.release(name)
            trim_heap()

    def get(self, name: str, version: str | None = None) -> tuple[Entry, Pack]:
        """Return a model that has been loaded or tried, and its pack.

        Raises:
            NotFoundError: unknown name or version. RefusedError, NotServingError: it is not loaded.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise NotFoundError(f"model {name!r}: not found")
        if entry.pack is not None and version not in (None, entry.pack.version):
            raise NotFoundError(f"model {name!r}: version {version!r} not found")
        if entry.worker is not None and entry.worker.engine.broken:
            entry.state, entry.reason = "UNAVAILABLE", entry.worker.engine.broken
            raise NotServingError(f"model {name!r}: {entry.reason}")
        if entry.worker is None or entry.pack is None:
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

    def _smallest(self, name: str) -> int:
        """Return what ``name`` needs at least; 0 where its pack cannot be opened."""
        try:
            manifest = open_pack(self._settings.repository / name).manifest
            return smallest_plan(manifest, ARCHITECTURES[self._settings.architecture]).total_bytes
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
        pack = open_pack(folder)
        architecture = ARCHITECTURES[self._settings.architecture]
        limit = self._budget.free_bytes if share is None else share
        plan = fit(pack.manifest, architecture, name, self._budget, limit)
        self._budget.reserve(name, plan)
        try:
            reader = open_reader(pack.weights_path)
            verify = self._settings.verify == "always"
            try:
                engine = Engine(pack, plan, self._device, self._pool, reader, verify)
            except BaseException:
                reader.close()
                raise
            try:
                engine.open()
            except BaseException:
                engine.close()
                raise
        except BaseException:
            self._budget.release(name)
            raise
        return pack, plan, Worker(engine, self._settings.queue_limit)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name longer than the file system has
        return False
