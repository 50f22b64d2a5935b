"""From a folder to a model that serves: prepare it for planning, reserve what was planned, read, start."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from loader.pool.pool import ReadPool
from loader.readers.files import open_reader
from loader.readers.reader import Reader
from loader.readers.replaceable import ReplaceableReader
from models.packs.pack import Pack, open_pack
from models.runtime.heap import trim_heap
from pipeline.devices.base import Device, DeviceMemoryError
from pipeline.execution.errors import DrainError
from pipeline.execution.leases import Lease, SharedArena
from pipeline.execution.opened import open_engine, open_pipeline
from pipeline.execution.partitions.cores import cores_for
from pipeline.fitting.frontier import FrontierPoint, frontier
from pipeline.fitting.wanted import Fitted
from pipeline.planning.partitions.plan import PipelinePlan
from pipeline.planning.plan import Plan, PlanError
from pipeline.profiles.delay_watch import BoundWatch
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import FILE, save_found
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from server.errors import NotServingError, RefusedError
from server.memory.budget import Budget, check_requests
from server.memory.minima import Minimum
from server.memory.request_needs import Need
from server.memory.shared_space import shared_space
from server.memory.sharing import Activations, Sharer, partitioned_sharer, sharer
from server.repository.batching import batching_of
from server.repository.layout.slots import Slot, labelled
from server.repository.pack_profiles import prepared
from server.repository.replanning import Place
from server.repository.served_engine import Running
from server.repository.worker import Worker
from server.requests.uninterrupted import to_its_end
from server.scheduling.dispatcher import Dispatcher
from server.settings.settings import Settings
from server.settings.workers import workers_of

_log = logging.getLogger(__name__)

# What only a profile gives; how much it gains depends on the machine, and is not known before.
_NO_PROFILE = (
    "model %s has no profile: its memory is planned by rules of thumb and its delay is not predicted; "
    "`layerstream profile %s` measures this machine, load the model again afterwards"
)


@dataclass(frozen=True)
class Prepared:
    """What is in a slot: a pack as the device runs it, and the model as one that shares the budget."""

    slot: Slot
    pack: Pack
    profile: Profile | None
    sharer: Sharer


class Opener:
    """Opens packs on ``device``, as the settings say, inside ``budget``."""

    def __init__(self, settings: Settings, budget: Budget, device: Device, pool: ReadPool) -> None:
        self._settings = settings
        self._budget = budget
        self._device = device
        self._pool = pool
        self._dispatcher = Dispatcher()
        self._arena = self._shared_arena()
        #: Where the partitions of the next model begin: cores are given out in turn.
        self._next_core = 0
        #: As the settings say, as far as the device can.
        self.activations: Activations = settings.activations if self._arena else "own"

    def least(self, folder: Path) -> Minimum:
        """Return what the pack in ``folder``, a version's, needs at least, as the device is; blocks.

        Raises:
            ModelError, DeviceError, PlanError: its pack is damaged, or not for here. OSError: no access.
        """
        # What is wrong with a profile is said when the pack is opened.
        pack, profile = prepared(self._checked(folder), self._device, logging.DEBUG)
        model = folder.parent if folder.name.isdecimal() else folder
        least = self._sharer(model.name, pack, profile)
        save_found([profile])
        return Minimum(least.least, Need.of(pack.manifest), least.alone)

    def prepare(self, slot: Slot) -> Prepared:
        """Return what is in ``slot``, ready to be planned; blocks.

        Raises:
            ModelError, LoaderError, DeviceError, PlanError: its pack is damaged, or not for here.
            NotServingError: the system refuses its files. RefusedError: no request could be answered.
        """
        with _naming(slot.name):
            pack, profile = prepared(self._checked(slot.folder), self._device)
            check_requests(slot.name, pack.manifest, self._budget)
            lanes = batching_of(self._settings, slot).lanes
            shared = self._sharer(slot.model, pack, profile, lanes)
            return Prepared(slot, labelled(pack, slot), profile, replace(shared, name=slot.name))

    def frontier(self, model: Prepared) -> list[FrontierPoint]:
        """Return the plans that ``model`` may have, ascending in memory; blocks.

        Raises:
            PlanError, ProfileError: it has none.
        """
        resident = self._device.adapt(ARCHITECTURES["pre"])
        return frontier(model.pack.manifest, self._architecture(), resident, model.profile)

    async def open(self, key: str, model: Prepared, place: Place) -> Worker:
        """Reserve under ``key``, read and start ``model`` as it is planned.

        When this is cancelled, and on errors but DrainError, nothing stays reserved; no thread is left.

        Raises:
            RefusedError: it does not fit. NotServingError: the system has not the memory, or refuses its
            files. LoaderError, DeviceError: its pack is damaged, or not for here. DrainError: a read never
            ended; its memory stays reserved.
        """
        opening = asyncio.create_task(asyncio.to_thread(self._open, key, model, place))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await to_its_end(self._undone(key, opening))
            raise

    async def _undone(self, key: str, opening: "asyncio.Task[Worker]") -> None:
        """Close what ``opening`` opens, if it does, and give its memory back."""
        await asyncio.wait({opening})
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()
            self._budget.release(key)

    def _open(self, key: str, model: Prepared, place: Place) -> Worker:
        """Do as ``open`` does; blocks."""
        name = model.slot.name
        with _naming(name):
            self._budget.reserve(key, place.fitted.plan.memory, place.in_turns)
            try:
                running = self._running(model, place)
            except DrainError:
                raise  # the disk may still write to what was reserved
            except BaseException:
                self._budget.release(key)
                raise
        if not (model.pack.folder / FILE).exists():
            _log.info(_NO_PROFILE, name, model.pack.folder)
        return Worker(
            *(running, self._settings.queue_limit, self._dispatcher),
            batching_of(self._settings, model.slot),
        )

    def reopen(self, name: str, model: Prepared, place: Place) -> Running:
        """Open ``model``, whose engine has been closed, with another plan; blocks.

        Raises:
            As ``open``; what was reserved for the plan before may be changed.
        """
        trim_heap()
        with _naming(name):
            self._budget.change(name, place.fitted.plan.memory, place.in_turns)
            return self._running(model, place)

    def close(self) -> None:
        """Give back the arena that models share; all are closed."""
        if self._arena is not None:
            self._arena.close()

    def _sharer(self, name: str, pack: Pack, profile: Profile | None, lanes: int = 1) -> Sharer:
        """Return the model as one of a set, in partitions where the settings say so.

        Raises:
            PlanError: it cannot be cut into as many, or not here.
        """
        workers = workers_of(self._settings.workers, name)
        if workers == 1:
            return sharer(name, pack.manifest, self._architecture(), profile, lanes=lanes)
        if not self._device.computes_on_caller:
            raise PlanError(
                f"{name}: {workers} workers: each computes on a core, not on {self._device.name}"
            )
        return partitioned_sharer(name, pack.manifest, self._architecture(), workers, profile)

    def _running(self, model: Prepared, place: Place) -> Running:
        """Open an engine as it is planned."""
        pack, plan = model.pack, place.fitted.plan
        if model.profile is not None:  # other models may have been prepared since
            self._device.tune(model.profile.tuning)
        if isinstance(plan, PipelinePlan):
            return self._pipeline(pack, plan)
        reader = ReplaceableReader(open_reader(pack.weights_path))
        verify = self._settings.verify == "always"
        lease = partial(self._lease, plan) if place.in_turns else None
        engine = open_engine(pack, plan, self._device, self._pool, reader, verify, lease=lease)
        watch, fitted = _watch(place.fitted, model.profile), place.fitted
        return Running(engine, reader, watch, fitted.predicted_seconds, fitted.bound_seconds)

    def _pipeline(self, pack: Pack, plan: PipelinePlan) -> Running:
        """Open an engine for each partition, each with a core, as far as there are so many."""
        workers = len(plan.partitions)
        cores = cores_for(workers, self._next_core)
        if not cores:
            _log.warning(
                "model %s: %d workers share fewer cores: it answers no faster", pack.name, workers
            )
        else:
            on = ", ".join(map(str, cores))
            _log.info("model %s: %d workers, on cores %s", pack.name, workers, on)
        readers: list[Reader] = []

        def open_weights() -> Reader:
            readers.append(ReplaceableReader(open_reader(pack.weights_path)))
            return readers[-1]

        verify = self._settings.verify == "always"
        pipeline = open_pipeline(
            *(pack, plan, [self._device] * workers, self._pool, open_weights),
            verify=verify,
            cores=cores,
        )
        self._next_core += workers
        return Running(pipeline, readers[0])

    def _lease(self, plan: Plan) -> Lease:
        assert self._arena is not None
        return self._arena.join(plan.arena_bytes)

    def _shared_arena(self) -> SharedArena | None:
        """Reserve addresses for activations that models share: no arena is larger than the budget."""
        space, why = shared_space(
            self._device, self._budget.total_bytes, self._settings.activations
        )
        if why:
            _log.warning("%s", why)
        return None if space is None else SharedArena(space)

    def _architecture(self) -> Architecture:
        return self._device.adapt(ARCHITECTURES[self._settings.architecture])

    def _checked(self, folder: Path) -> Pack:
        return open_pack(folder, self._device.target, self._settings.recompile)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turn what the system and the device say of memory and files into errors that name the model."""
    try:
        yield
    except DeviceMemoryError as exc:
        raise RefusedError(f"model {name!r}: {exc}") from exc
    except MemoryError as exc:
        raise NotServingError(f"model {name!r}: cannot allocate its memory") from exc
    except OSError as exc:
        raise NotServingError(f"model {name!r}: {exc.strerror or exc}") from exc


def _watch(fitted: Fitted, profile: Profile | None) -> BoundWatch | None:
    """Return a judge of sweeps where the limits of exactly this plan were measured."""
    limits = profile.limits_of(fitted.plan) if profile is not None else None
    return BoundWatch(fitted.plan, limits) if limits is not None else None
