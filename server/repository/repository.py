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
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from models.packs.manifest import Manifest
from models.packs.pack import Pack
from pipeline.budget.budget import Budget
from pipeline.budget.errors import RefusedError
from pipeline.budget.request_needs import short_infer_bytes
from pipeline.program.program import letting_go
from pipeline.program.stopping import Tell, telling
from server.causes import because
from server.codec.messages import signature_of
from server.errors import (
    NotFoundError,
    NotLoadedError,
    NotServingError,
    shown,
)
from server.faults import FAILURES, Code, Fault
from server.repository.applying import Applier
from server.repository.arrivals import Arrivals
from server.repository.balancing import Balancer
from server.repository.catalog import Catalog
from server.repository.changes import (
    OF_MODEL,
    Change,
    CloseIdle,
    Fetch,
    Generation,
    Limit,
    Load,
    Relieve,
    Remove,
    Restore,
    Start,
    Unload,
)
from server.repository.entry import Absence, Entry, Use, how_to_load
from server.repository.environment import RepositoryEnvironment
from server.repository.executor import Executor
from server.repository.instances import Instance, State
from server.repository.models import Models
from server.repository.on_disk import (
    Presence,
    Slot,
    is_model,
)
from server.repository.opening import Opener
from server.repository.planning_threads import PlanningThreads
from server.repository.preparing import Preparer
from server.repository.reconciling import Reconciler
from server.repository.worker import Worker
from server.settings.per_model import of_model
from server.settings.settings import Settings

if TYPE_CHECKING:
    from server.repository.tuning import Tuner

_log = logging.getLogger(__name__)

_STOPPING = Fault(Code.NOT_SERVING, "the server is stopping")


@dataclass(frozen=True)
class Lack:
    """What a model lacks that does not serve as it shall: ``workers`` have left service.

    ``packs``: it fails as long as they are the same; none: it may be loaded as things are.
    """

    workers: frozenset[Worker] = frozenset()
    packs: tuple[Slot, ...] = ()

    @classmethod
    def of(cls, entries: Collection[Entry], *, may_pass: bool) -> Self:
        """Return what the model of ``entries`` lacks; ``may_pass``: it may be loaded in any case."""
        workers = frozenset(entry.worker for entry in entries if entry.worker is not None)
        if may_pass or any(entry.may_pass for entry in entries):
            return cls(workers)
        return cls(workers, tuple(entry.slot for entry in entries if entry.slot is not None))


NOTHING_LACKS = Lack()


class Repository:
    """Loads and unloads packs under ``settings.repository``; one load or unload at a time."""

    def __init__(
        self, settings: Settings, budget: Budget, environment: RepositoryEnvironment
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._preparer = Preparer(settings, budget, environment)
        self._opener = Opener(settings, budget, environment)
        self.models = Models(settings)
        self.catalog = Catalog(settings, budget, self._preparer.least)
        # Reading a request and computing may each take the time limit.
        patience = 2 * settings.request_timeout
        self._budget = budget
        self._planning = PlanningThreads()
        self._reconciler = Reconciler(self._apply, self._grow, self._planning)
        self._executor = Executor(self.models, budget, self._opener, environment, patience)
        self._balancer = Balancer(
            self.models,
            catalog=self.catalog,
            budget=budget,
            preparer=self._preparer,
            executor=self._executor,
            environment=environment,
            planning=self._planning,
            grow_later=self._reconciler.grow_later,
            activations=self._opener.activations,
            settings=settings,
        )
        self._applier = Applier(
            settings,
            self.models,
            catalog=self.catalog,
            planning=self._planning,
            environment=environment,
            opener=self._opener,
            executor=self._executor,
            balancer=self._balancer,
        )
        self._arrivals = Arrivals(self.models, self._sent_for, settings.queue_limit)
        #: Whether the system lacks memory.
        self._is_pressed = False
        #: Models that the server itself could not load, and that may be loaded later; what serves of them
        #: is not what they shall be.
        self._failed: set[str] = set()
        self._reading: dict[Path, asyncio.Task[Pack]] = {}
        self.presence = Presence(settings.repository)

    @property
    def root(self) -> Path:
        """The folder of all models."""
        return self._settings.repository

    def entries(self) -> list[Entry]:
        """Return the entries of all slots (on_disk.py)."""
        return list(self.models.values())

    def generation(self, model: str) -> Generation:
        """Return how many changes were desired of ``model``, and up to which they were made."""
        return self._reconciler.generations.get(model, Generation())

    def instances(self) -> list[Instance]:
        """Return all instances that hold memory."""
        return list(self._executor.instances)

    def lacking(self) -> dict[str, Lack]:
        """Return what models lack that do not serve as they shall, and may if they are tried."""
        lost: dict[str, list[Entry]] = {name: [] for name in self._failed}
        for entry in self.entries():
            if entry.may_pass or entry.may_change:
                lost.setdefault(entry.model, []).append(entry)
        return {
            name: Lack.of(entries, may_pass=name in self._failed) for name, entries in lost.items()
        }

    def workers(self, state: State) -> list[Worker]:
        """Return what answers requests to the instances in ``state``."""
        workers = [item.worker for item in self.instances() if item.state is state]
        return [worker for worker in workers if worker is not None]

    async def set_aside(self) -> None:
        """Take the memory of requests out of the budget, before models share the rest.

        Raises:
            RefusedError: there is not as much. NotServingError: the server ends.
        """
        activations = self._opener.activations
        await self._planning.run(lambda: self.catalog.set_aside(activations))

    async def load_all(self, reserve: Callable[[], Awaitable[None]]) -> None:
        """Load the models that the settings name; one that fails is noted, for the caller to tell of.

        ``reserve`` is called before the first: it reserves memory that models do not share. Raises its
        errors; NotFoundError: no repository.
        """
        with self._reconciler.growing_afterwards():
            slots = await self._reconciler.reached(Start(reserve))
            with self.catalog.scanned(slots), because("start"):
                for name in self.catalog.names():
                    load = Load(name, frozenset({"unloaded"}), is_first=True)
                    await self._reconciler.reached(load)
        self._opener.log_unprofiled()

    async def load(
        self,
        name: str,
        *,
        is_whole: bool = True,
        unless: Collection[Absence] = (),
    ) -> Entry:
        """Load ``name`` as it is on disk now, within its share of the budget.

        ``is_whole``: the caller knows that all its bytes are there; else it is read once before, and its
        entry has the error if they are not. ``unless``: where it is absent for one of these reasons when
        this call has its turn, nothing is loaded: a client may have unloaded the model while this waited.

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
        with self._trying(name) if unless else contextlib.nullcontext():
            if not is_whole:
                with self._applier.noting(name):
                    await self._applier.verified(name)
            entry: Entry = await self._reconciler.reached(Load(name, frozenset(unless)))
        for each in self.models.of(name):
            if not each.serves:
                _log.warning("not served: %s", each.message)
        return entry

    async def retry(self, name: str) -> None:
        """Load ``name`` again, which was lost or could not be loaded, as it is on disk now.

        Nothing is done if a client has unloaded it meanwhile, or if the next request to it will do so.

        Raises:
            As ``load``.
        """
        with self._trying(name):
            with self._applier.noting(name):
                await self._applier.verified(name)
            with because("another try"):
                await self._reconciler.reached(Load(name, frozenset({"unloaded", "evicted"})))

    @contextlib.contextmanager
    def _trying(self, name: str) -> Iterator[None]:
        """Note what comes of a load that no client has requested.

        Where there is no room, another model may give some later.
        """
        self._failed.discard(name)
        try:
            yield
        except FAILURES as exc:
            fault = Fault.of(exc).settled
            if isinstance(exc, RefusedError) or not fault.permanent:
                self._failed.add(name)
            raise

    async def unload(self, name: str) -> None:
        """Let all versions of ``name`` finish their requests and give their memory back.

        Raises:
            NotFoundError: no such model is known.
        """
        self._failed.discard(name)
        try:
            await self._reconciler.reached(Unload(name))
        except NotFoundError as exc:
            raise await self._explained(name, exc) from None

    async def remove(self, name: str) -> None:
        """Let ``name``, which is not in the repository any more, finish its requests; drop its entries."""
        self._failed.discard(name)
        await self._reconciler.reached(Remove(name))

    async def described(self, name: str, version: str | None = None) -> tuple[Entry, Pack]:
        """Return an entry and its pack, as Models.find; of a model that is away, the pack on disk.

        Raises:
            As ``acquire``.
        """
        entry = await self._find(name, version)
        if entry.serves or not entry.answers or entry.slot is None:
            return entry, entry.serving().prepared.pack
        return entry, await self._next_pack(entry.slot)

    async def _find(self, name: str, version: str | None) -> Entry:
        """Return as Models.find; raises as ``acquire``."""
        try:
            return self.models.find(name, version)
        except NotFoundError as exc:
            raise await self._explained(name, exc) from None

    async def _next_pack(self, slot: Slot) -> Pack:
        """Return the pack in ``slot``, as the next load finds it: of another version where that is gone.

        Raises:
            As Catalog.slots_of and read_pack.
        """
        try:
            return await self._on_disk(slot.folder)
        except FAILURES:
            there = await asyncio.to_thread(self.catalog.slots_of, slot.model)
            folders = [other.folder for other in there if other.name == slot.name]
            if slot.folder in folders or not folders:
                raise
        return await self._on_disk(folders[-1])

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
        """Check that a request would be answered, maybe after a load; raises as ``acquire``."""
        entry = await self._find(name, version)
        if not entry.answers:
            entry.serving()

    async def find(self, name: str, version: str | None, limit_seconds: float) -> Use:
        """Return a use of a model, which begins now; of one that the next request loads, its pack on disk.

        So a request to a model that was evicted, or comes back, is read before it waits, in ``acquire``:
        its body may say for how long. Where no version can be read it waits here.

        Raises:
            As ``acquire``.
        """
        entry = await self._find(name, version)
        if entry.instance is not None:
            return entry.use()
        if entry.answers and entry.slot is not None:
            with contextlib.suppress(*FAILURES):
                pack = await self._next_pack(entry.slot)
                signature = signature_of(pack)
                n_bytes = short_infer_bytes(pack.manifest)
                return Use(pack, signature, n_bytes, entry.timeout_seconds)
        return await self._loaded(name, version, limit_seconds)

    async def acquire(self, use: Use, name: str, version: str | None, limit_seconds: float) -> Use:
        """Return a use of the model that was found as ``use``, where a worker answers until it ends.

        An evicted model is loaded first.

        Raises:
            As Entry.serving; of a model that was evicted, as ``load``. BusyError: too many wait for it.
            DeadlineError: it was not loaded within ``limit_seconds``. NotLoadedError: it is in the
            repository, but was never loaded. NotServingError: it takes other requests than when it was
            found.
        """
        if use.worker is not None:
            return use
        acquired = await self._loaded(name, version, limit_seconds)
        if not _take_the_same(use.pack, acquired.pack):
            acquired.end()
            raise NotServingError(f"model {name!r}: its files were changed meanwhile; ask again")
        return acquired

    async def _loaded(self, name: str, version: str | None, limit_seconds: float) -> Use:
        """Return a use of a loaded model; raises as ``acquire``."""
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
        is_back: bool = await self._reconciler.reached(Restore(entry.name, given_up, why))
        return is_back

    async def close_idle(self) -> list[str]:
        """Close the models that nobody has used for as long as the settings say; return their names."""
        closed = []
        for entry in self.entries():
            seconds = of_model(self._settings.close_after, entry.model, None)
            is_pinned = entry.prepared is not None and entry.prepared.sharer.is_pinned
            if seconds is None or is_pinned or not entry.is_idle(seconds):
                continue
            if await self._reconciler.reached(CloseIdle(entry.name, seconds)):
                closed.append(entry.name)
        return closed

    async def relieve(self, ceiling_bytes: int) -> None:
        """Let models hold no more than ``ceiling_bytes`` of the budget, as far as they can; see Balancer.

        Until ``ease`` none grows. From now on others are loaded within the ceiling only.

        Raises:
            NotServingError: the server ends.
        """
        self._budget.ceiling_bytes = ceiling_bytes
        self._is_pressed = True
        await self._reconciler.reached(Relieve())

    def ease(self, ceiling_bytes: int) -> None:
        """Let models use memory up to ``ceiling_bytes`` again: the system does not lack it now."""
        self._budget.ceiling_bytes = ceiling_bytes
        self._is_pressed = False
        self._reconciler.grow_later()

    async def sleep_idle(self) -> list[str]:
        """Have the engines sleep that nobody has used for as long as the settings say; return their names.

        Each keeps its plan and what it reserves; its pages are the system's until the next request.

        Raises:
            NotServingError: the server ends.
        """
        asleep = []
        for entry in self.entries():
            seconds = of_model(self._settings.idle_after, entry.model, None)
            is_pinned = entry.prepared is not None and entry.prepared.sharer.is_pinned
            if seconds is None or is_pinned or not entry.is_idle(seconds):
                continue
            worker = entry.worker
            if worker is None or worker.engine.is_asleep or self._planning.is_closed:
                continue
            with contextlib.suppress(NotServingError):  # it is closed just now
                if await worker.sleep():
                    _log.info("model %s: asleep: no request for %g s", entry.name, seconds)
                    asleep.append(entry.name)
        return asleep

    async def _sent_for(self, entry: Entry) -> bool:
        is_back: bool = await self._reconciler.reached(Fetch(entry.name))
        return is_back

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
        loaded: list[Entry] = await self._reconciler.reached(Limit(name, most_bytes))
        return loaded

    async def _apply(self, change: Change) -> Any:
        free_bytes = self._budget.free_bytes
        try:
            return await self._applier.apply(change)
        finally:
            # What an idle model leaves, or pressure takes, is the system's, and not of others.
            is_of_system = isinstance(change, CloseIdle | Relieve)
            if self._budget.free_bytes > free_bytes and not is_of_system:
                self._reconciler.grow_later()
            if isinstance(change, OF_MODEL) and not self.models.of(change.model):
                self._reconciler.forget(change.model)

    async def _grow(self) -> None:
        if self._is_pressed:  # until it is over, what models have is good enough
            return
        with because("a better plan", by_server=True):
            await self._balancer.grow()

    def tuner(self) -> "Tuner":
        """Return what races plans of the loaded models in idle time."""
        from server.repository.tuning import Tuner

        return Tuner(
            self.models,
            budget=self._budget,
            reconciler=self._reconciler,
            planning=self._planning,
            preparer=self._preparer,
            executor=self._executor,
            limit_seconds=self._settings.request_timeout,
        )

    @property
    def search(self) -> str | None:
        """How far the search for better plans of the loaded models is; None: there is none."""
        search = self._balancer.search
        return None if search is None else search.said

    async def frontier(self, name: str, heard: Tell) -> list[dict[str, Any]]:
        """Return the plans that a loaded model may have, ascending in memory, in figures.

        ``heard``: called with the progress, on another thread. When this is cancelled, the search ends.

        Raises:
            PlanError: it has no plans. NotServingError: the server ends, or it is not loaded.
        """
        model = self.models.find(name).serving().prepared

        def planned() -> list[dict[str, Any]]:
            started = time.monotonic()
            try:
                with telling(heard), letting_go(model.program):
                    return self._preparer.frontier(model)
            finally:
                self._environment.give_back(time.monotonic() - started)

        return await self._planning.run(planned)

    async def at_rest(self) -> None:
        """Wait until all changes are made, and nothing grows."""
        await self._reconciler.at_rest()

    async def close(self) -> None:
        """Drain and close every model; a load that is still planning ends with an error."""
        await self._reconciler.close()
        await self._arrivals.close()
        for entry in self.entries():
            await self._executor.close(entry, _STOPPING)
        await asyncio.to_thread(self._opener.close)


def _take_the_same(pack: Pack, other: Pack) -> bool:
    """Return whether a request that is right for ``pack`` means the same to ``other``."""
    packs = (pack, *pack.others), (other, *other.others)
    one, two = ([_signature(shape.manifest) for shape in shapes] for shapes in packs)
    return one == two


def _signature(manifest: Manifest) -> tuple[object, ...]:
    one = manifest
    return one.inputs, one.outputs, one.preprocess, one.text, one.sound, one.embedding
