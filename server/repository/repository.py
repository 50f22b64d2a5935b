"""The models of the service: which packs there are, which are loaded, and what each holds.

Invariant: a model is loaded exactly when it has a worker, and then its plan is reserved in the budget. A
loaded model may not serve: its worker may have met a fault that lasts (the file was changed, the disk is
gone).

All models are planned together (server/memory/sharing.py). A new one takes memory that others have beyond
their least, as far as it needs; when one goes, the others grow again, in the background.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.packs.folders import clear_repository
from models.packs.pack import Pack
from models.sizes import format_size
from pipeline.budget.budget import Budget
from pipeline.budget.request_needs import short_infer_bytes
from pipeline.program.program import letting_go
from pipeline.program.stopping import Tell, telling
from server.causes import attribution, because
from server.codec.messages import Signature
from server.errors import (
    ConflictError,
    NotFoundError,
    NotLoadedError,
    shown,
)
from server.faults import FAILURES, Code, Fault
from server.repository.entry import Entry, Unloaded, Use, how_to_load
from server.repository.environment import Environment
from server.repository.executor import Executor
from server.repository.model_config import ModelConfig, ModelConfigError
from server.repository.models import Arrivals, Models
from server.repository.on_disk import (
    Presence,
    Slot,
    is_model,
    missing_versions,
)
from server.repository.opening import Opener
from server.repository.preparing import Preparer, naming
from server.repository.wishes import Wishes
from server.repository.worker import Worker
from server.settings.settings import Settings

if TYPE_CHECKING:
    from server.repository.tuning import Tuner

_log = logging.getLogger(__name__)

# The state of a model while the start loads others before it.
_COMING = Unloaded(Fault(Code.LOADING, "waits for its turn to be loaded"), "loading")
_UNLOADED = Fault(Code.NOT_LOADED, "unloaded")
_STOPPING = Fault(Code.NOT_SERVING, "the server is stopping")


class Repository:
    """Loads and unloads packs under ``settings.repository``; one load or unload at a time."""

    def __init__(self, settings: Settings, budget: Budget, environment: Environment) -> None:
        self._settings = settings
        self._environment = environment
        self._preparer = Preparer(settings, budget, environment)
        self._opener = Opener(settings, budget, environment)
        self.models = Models(settings, budget, self._preparer.least)
        self._evicts = settings.budget_policy == "evict-lru"
        # Reading a request and computing may each take the time limit.
        patience = 2 * settings.request_timeout
        self._budget = budget
        self._executor = Executor(self.models, budget, self._opener, environment, patience)
        self._wishes = Wishes(
            *(self.models, budget, self._preparer, self._executor, environment),
            activations=self._opener.activations,
            evictable=settings.evictable,
        )
        self._arrivals = Arrivals(self.models, self._fetch, settings.queue_limit)
        self._reading: dict[Path, asyncio.Task[Pack]] = {}
        self.presence = Presence(settings.repository)

    @property
    def root(self) -> Path:
        """The folder of all models."""
        return self._settings.repository

    def entries(self) -> list[Entry]:
        """Return the entries of all slots (on_disk.py)."""
        return list(self.models.values())

    def leaving(self) -> list[Worker]:
        """Return the workers of models that were unloaded or replaced and still have requests to answer."""
        return list(self._executor.leaving)

    def left_behind(self) -> list[Worker]:
        """Return the stuck workers that were given up and have not ended."""
        return list(self._executor.left_behind)

    async def set_aside(self) -> None:
        """Take the memory of requests out of the budget, before models share the rest.

        Raises:
            RefusedError: there is not as much. NotServingError: the server ends.
        """
        activations = self._opener.activations
        await self._wishes.run_in_thread(lambda: self.models.set_aside(activations))

    async def load_all(self, set_aside: Callable[[], Awaitable[None]]) -> None:
        """Load the models that the settings name; one that fails is noted, for the caller to tell of.

        ``set_aside`` is called before the first: it reserves memory that models do not share. No other call
        changes what is loaded meanwhile. Raises the errors of ``set_aside``; NotFoundError: no repository.
        """
        async with self._exclusive():
            root = self._settings.repository
            for path in await self._wishes.run_in_thread(lambda: clear_repository(root)):
                _log.warning("%s: removed: left by a process that was killed", path)
            slots = await self._wishes.run_in_thread(lambda: [*self.models.slots()])
            for slot in slots:
                self.models.known(slot.name, slot.model).become(_COMING)
            with self.models.scanned(slots):
                await set_aside()
                await self._load_served()

    async def _load_served(self) -> None:
        for name in self.models.names():
            try:
                with because("start"):
                    await self._load(name, evicts=False)
            except NotFoundError as exc:
                if not self.models.of(name):  # it was never there
                    raise
                for entry in self.models.of(name):
                    entry.become(Unloaded.after(exc))
            except FAILURES:  # its entry has the error
                pass
            for entry in self.models.of(name):
                slot = entry.slot if self._evicts and entry.absence == "refused" else None
                if slot is not None and await self._wishes.run_in_thread(
                    partial(self.models.fits_alone, slot)
                ):
                    assert entry.fault is not None
                    entry.become(Unloaded(entry.fault, "evicted"))
                    _log.info("model %s: no room now, a request to it makes some", entry.name)

    async def load(
        self,
        name: str,
        *,
        is_whole: bool = True,
        unless: Callable[[str], bool] = lambda name: False,
    ) -> Entry:
        """Load ``name`` as it is on disk now, within its share of the budget.

        ``is_whole``: the caller knows that all its bytes are there; else it is read once before, and its
        entry has the error if they are not. ``unless``: where it says so of the name when this call has
        its turn, nothing is loaded: a client may have unloaded the model while this waited.

        Loaded models whose share it needs are closed and opened again with a smaller plan, one by one;
        requests to them wait in line. The least memory of models that are served and not loaded stays free,
        as far as it is there. A version that is loaded stays, unless its files have changed: then the new
        ones replace it, and no request is lost. Versions that are not to be served any more are closed.

        Raises:
            NotFoundError: no such model. RefusedError: it does not fit. NotServingError: the system has
            not the memory, or refuses its files. ModelError, LoaderError, DeviceError: its pack or its
            configuration is damaged. Models that were loaded stay as they were. Of several versions, the
            others are tried all the same.
        """
        if not is_whole:
            with self._noting(name):
                await self._whole(name)
        async with self._exclusive():
            if unless(name):
                return self.models.find(name)
            entry = await self._load(name, self._evicts)
        for each in self.models.of(name):
            if not each.serves:
                _log.warning("not served: %s", each.message)
        return entry

    async def _load(self, name: str, evicts: bool) -> Entry:
        """Do as ``load``; no other call changes what is loaded meanwhile."""
        with self._noting(name):
            slots = await self._wishes.run_in_thread(lambda: self.models.slots_of(name))
        self.models.say_ignored(name, slots[0].config)
        missing = missing_versions(slots)
        await self._remove(name, {*missing, *(slot.name for slot in slots)})
        for slot_name, why in missing.items():
            # It is to be served and is not on disk; it is closed if it was loaded.
            entry = self.models.known(slot_name, name)
            with because(why):
                fault = Fault(Code.MISSING, why, permanent=False)
                await self._wishes.let_go(entry, fault, patiently=True)
            entry.version = slot_name.rpartition("/")[2]
        failures = []
        for slot in slots:
            try:
                await self._wishes.bring(slot, evicts)
            except FAILURES as exc:
                failures.append(exc)
        if failures:
            raise failures[0]
        return self.models.find(name)

    async def retry(self, name: str) -> None:
        """Load ``name`` again, which was lost or could not be loaded, as it is on disk now.

        Nothing is done if a client has unloaded it meanwhile, or if the next request to it will do so.

        Raises:
            As ``load``.
        """
        with self._noting(name):
            await self._whole(name)
        async with self._exclusive():
            if not (self.models.is_unloaded(name) or self.models.is_evicted(name)):
                with because("another try"):
                    await self._load(name, self._evicts)

    @contextlib.asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Let no other call change what is loaded; then log which models have no profile."""
        async with self._wishes.alone():
            try:
                yield
            finally:
                self._opener.log_unprofiled()

    @contextlib.contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """Note in the entries of ``name`` an error that is raised inside, unless all ends."""
        try:
            yield
        except FAILURES as exc:
            if not self._wishes.is_closed:
                self.models.note(name, exc)
            raise

    async def _whole(self, name: str, config: ModelConfig | None = None) -> list[Slot]:
        """Return the slots of ``name``, after a check of all bytes of those that were not tried before."""
        slots = await self._wishes.run_in_thread(lambda: self.models.slots_of(name, config))
        for slot in slots:
            entry = self.models.get(slot.name)
            if entry is None or entry.slot is None or entry.slot.seen != slot.seen:
                with naming(name):
                    await self._wishes.run_in_thread(
                        partial(self._environment.check_complete, slot.folder)
                    )
        return slots

    async def unload(self, name: str) -> None:
        """Let all versions of ``name`` finish their requests and give their memory back.

        Raises:
            NotFoundError: no such model is known.
        """
        async with self._exclusive():
            entries = self.models.of(name)
            if not entries:
                error = NotFoundError(f"model {shown(name)}: not in the repository")
                raise await self._explained(name, error)
            for entry in entries:
                await self._wishes.let_go(entry, _UNLOADED, "unloaded")
                entry.most_bytes = None

    async def remove(self, name: str) -> None:
        """Let ``name``, which is not in the repository any more, finish its requests; drop its entries."""
        async with self._exclusive():
            await self._remove(name, ())

    async def _remove(self, name: str, kept: Collection[str]) -> None:
        """Close the slots of ``name`` but those ``kept``, and drop their entries unless memory is lost."""
        gone = "its versions are others now" if kept else "not in the repository any more"
        for entry in self.models.of(name):
            if entry.name in kept:
                continue
            with because(gone):
                await self._wishes.let_go(entry, Fault(Code.MISSING, gone), patiently=True)
            if not entry.is_lost:
                del self.models[entry.name]

    async def described(self, name: str, version: str | None = None) -> tuple[Entry, Pack]:
        """Return an entry and its pack, as Models.serving; of a model that is away, the pack on disk.

        Raises:
            As ``use``.
        """
        entry = await self._find(name, version)
        if entry.serves or not entry.answers or entry.slot is None:
            return self.models.serving(name, version)
        return entry, await self._on_disk(entry.slot.folder)

    async def _find(self, name: str, version: str | None) -> Entry:
        """Return as Models.find; raises as ``use``."""
        try:
            return self.models.find(name, version)
        except NotFoundError as exc:
            raise await self._explained(name, exc) from None

    async def _on_disk(self, folder: Path) -> Pack:
        """Return the pack in ``folder``; concurrent calls share one reading. Raises as read_pack."""
        reading = self._reading.get(folder)
        if reading is None:
            reading = asyncio.create_task(asyncio.to_thread(self._environment.read_pack, folder))
            self._reading[folder] = reading

            def ended(task: "asyncio.Task[Pack]") -> None:
                del self._reading[folder]
                if not task.cancelled():
                    task.exception()  # else asyncio logs an error that no request waits for

            reading.add_done_callback(ended)
        return await asyncio.shield(reading)

    async def check_answers(self, name: str, version: str | None = None) -> None:
        """Check that a request would be answered, maybe after a load; raises as ``use``."""
        if not (await self._find(name, version)).answers:
            self.models.serving(name, version)

    async def found(self, name: str, version: str | None, limit_seconds: float) -> Use:
        """Return as ``use`` of a model that is not loaded; of an evicted one a use of its pack on disk."""
        try:
            entry = self.models.find(name, version)
            if entry.evicted and entry.slot is not None:
                pack = await self._on_disk(entry.slot.folder)
                signature = Signature(pack.manifest.inputs, pack.manifest.outputs)
                n_bytes = short_infer_bytes(pack.manifest)
                return Use(pack, signature, n_bytes, entry.timeout_seconds)
        except FAILURES:  # which ``use`` tells
            pass
        return await self.use(name, version, limit_seconds)

    async def use(self, name: str, version: str | None, limit_seconds: float) -> Use:
        """Return a use of a loaded model, which stays until the use ends; an evicted one is loaded first.

        Raises:
            As Models.serving; of a model that was evicted, as ``load``. BusyError: too many wait for it.
            DeadlineError: it was not loaded within ``limit_seconds``. NotLoadedError: it is in the
            repository, but was never loaded.
        """
        try:
            return await self._arrivals.use(name, version, limit_seconds)
        except NotFoundError as exc:
            raise await self._explained(name, exc) from None

    async def _explained(self, name: str, error: NotFoundError) -> NotFoundError:
        """Return ``error``, or one that says that the model is in the repository but was never loaded."""
        if self.models.of(name):
            return error
        if not await self.presence.has(lambda root: is_model(root, name)):
            return error
        remedy = how_to_load(name) if self._settings.model_control != "none" else ""
        return NotLoadedError(f"model {shown(name)}: in the repository, and not loaded{remedy}")

    async def restore(self, entry: Entry, given_up: Worker, why: str) -> bool:
        """Load a model again, whose worker was ``given_up``, for the reason ``why``.

        Where there is no room for it and the setting ``budget_policy`` is evict-lru, the next request tries
        again. Return whether it was loaded: False if a client has loaded or unloaded it meanwhile. Raises
        as ``load``.
        """
        async with self._exclusive():
            if entry.worker is not given_up:
                return False
            fault = Fault(Code.ENGINE_FAILED, why, permanent=False)
            await self._executor.close(entry, fault, "evicted" if self._evicts else "failed")
            with because(why):
                await self._bring_back(entry)
            return True

    async def _fetch(self, entry: Entry) -> bool:
        """Load an evicted model again, if a request waits for it; return whether. Raises as ``load``."""
        async with self._exclusive():
            # It may have been loaded or unloaded before this call had its turn.
            is_wanted = entry.evicted and len(entry.uses) > 0
            if is_wanted:
                with because("a request to it"):
                    await self._bring_back(entry)
            return is_wanted

    async def _bring_back(self, entry: Entry) -> None:
        """Load a model again that was evicted or given up; raises as ``load``.

        Its files are checked, since a new version may be being copied just now.
        """
        try:
            slots = await self._whole(entry.model)
        except (
            ModelConfigError
        ) as exc:  # a wrong configuration never changes a model that is served
            if entry.slot is None:
                raise
            _log.warning("model %s: served as it was configured before: %s", entry.name, exc)
            slots = await self._whole(entry.model, entry.slot.config)
        await self._remove(entry.model, {slot.name for slot in slots})
        # If its slots have other names now, as with another version_policy, all of them take its place.
        for slot in [each for each in slots if each.name == entry.name] or slots:
            await self._wishes.bring(slot, self._evicts)

    async def replan(self, name: str, most_bytes: int | None) -> list[Entry]:
        """Serve a loaded model in at most ``most_bytes`` (None: in what the budget leaves it) from now on.

        Each of several loaded versions keeps this limit; they are returned, lowest first. Requests wait in
        line meanwhile, also those to models that shrink for it. It gets a plan at once, and the best one
        when that is found. The limit stays until the model is unloaded.

        Raises:
            NotFoundError, NotServingError: it is not loaded, or its files have changed. ConflictError: it
            is evicted. RefusedError: its least plan is larger. After an error nothing has changed.
            Otherwise as ``load``.
        """
        async with self._exclusive():
            if (latest := self.models.find(name)).evicted:
                raise ConflictError(latest.message)
            latest.serving()
            loaded = [entry for entry in self.models.of(name) if entry.serves]
            loaded.sort(key=lambda entry: entry is latest)
            await self._wishes.replan(loaded, most_bytes)
            limit = "no limit" if most_bytes is None else f"at most {format_size(most_bytes)}"
            _log.info("model %s: limit of its memory: %s", name, limit, extra=attribution())
            return loaded

    def tuner(self) -> "Tuner":
        """Return what races plans of the loaded models in idle time."""
        from server.repository.tuning import Tuner

        return Tuner(
            *(self.models, self._budget, self._wishes, self._preparer, self._executor),
            limit_seconds=self._settings.request_timeout,
        )

    @property
    def search(self) -> str | None:
        """How far the search for better plans of the loaded models is; None: there is none."""
        search = self._wishes.search
        return None if search is None else search.said

    async def frontier(self, name: str, heard: Tell) -> list[dict[str, Any]]:
        """Return the plans that a loaded model may have, ascending in memory, in figures.

        ``heard``: called with the progress, on another thread. When this is cancelled, the search ends.

        Raises:
            PlanError: it has no plans. NotServingError: the server ends, or it is not loaded.
        """
        model = self.models.find(name).serving().prepared

        def planned() -> list[dict[str, Any]]:
            try:
                with telling(heard), letting_go(model.program):
                    return self._preparer.frontier(model)
            finally:
                self._environment.give_back()

        return await self._wishes.planning.run(planned)

    async def close(self) -> None:
        """Drain and close every model; a load that is still planning ends with an error."""
        self._wishes.close()
        await self._arrivals.close()
        async with self._exclusive():
            for entry in self.entries():
                await self._executor.close(entry, _STOPPING)
        await asyncio.to_thread(self._opener.close)
