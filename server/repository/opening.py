"""From a plan to a model that serves: reserve memory, read weights, start the worker."""

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path

from loader.cores import cores_for
from loader.pool.pool import ReadPool
from loader.readers.files import ReplaceableReader, open_reader
from loader.readers.interface import Reader
from models.runtime.heap import trim_heap
from pipeline.devices.base import Device
from pipeline.execution.errors import DrainError
from pipeline.execution.leases import ArenaLease, SharedArena
from pipeline.execution.opened import open_engine, open_pipeline
from pipeline.fitting.wanted import Fitted
from pipeline.planning.plan import PipelinePlan, Plan
from pipeline.profiles.delay_limits import BoundWatch
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import FILE
from pipeline.program.program import Program
from server.memory.budget import Budget
from server.memory.sharing import Activations, shared_space
from server.repository.fleet import Place
from server.repository.on_disk import Slot
from server.repository.preparing import Prepared, batching_of, naming
from server.repository.served_engine import Running
from server.repository.worker import Worker
from server.requests.waiting import in_thread, to_its_end
from server.scheduling.dispatcher import Dispatcher
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

# The message does not say how much a profile gains: that depends on the machine.
_NO_PROFILE = (
    "model %s has no profile: its memory is planned by rules of thumb and its delay is not predicted; "
    "`layerstream profile %s` measures this machine, load the model again afterwards"
)


class Opener:
    """Opens packs on ``device``, as the settings say, inside ``budget``."""

    def __init__(self, settings: Settings, budget: Budget, device: Device, pool: ReadPool) -> None:
        self._settings = settings
        self._budget = budget
        self._device = device
        self._pool = pool
        self._dispatcher = Dispatcher()
        self._arena = self._shared_arena()
        #: The first core for the partitions of the next model: cores are given out in turn.
        self._next_core = 0
        #: Packs without a profile that the log has named.
        self._unprofiled: set[Path] = set()
        #: As the settings say, but "own" if the device cannot share activations.
        self.activations: Activations = settings.activations if self._arena else "own"

    async def open(self, key: str, model: Prepared, place: Place) -> Worker:
        """Reserve memory under ``key``, read ``model`` and start it with the plan ``place``.

        When this is cancelled, and on all errors but DrainError, only the memory of an engine that cannot
        be closed stays reserved; no thread is left.

        Raises:
            RefusedError: it does not fit. NotServingError: the system has not the memory, or refuses its
            files. LoaderError, DeviceError: its pack is damaged, or is not for this machine. DrainError: a
            read never ended; its memory stays reserved.
        """
        opening = asyncio.create_task(in_thread(self._open, key, model, place))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await to_its_end(self._undone(key, opening))
            raise

    async def _undone(self, key: str, opening: "asyncio.Task[Worker]") -> None:
        """Wait for ``opening``; if it succeeds, close the worker and give its memory back."""
        await asyncio.wait({opening})
        if opening.cancelled() or opening.exception() is not None:
            return
        worker = opening.result()
        try:
            await worker.close()
        except Exception:  # noqa: BLE001  its memory stays reserved
            _log.exception("model %s cannot be closed", worker.served.name)
        else:
            if not worker.engine.broken:  # the disk may still write to the memory of a broken one
                self._budget.release(key)

    def _open(self, key: str, model: Prepared, place: Place) -> Worker:
        """Do as ``open``; blocks."""
        name = model.slot.name
        with naming(name):
            self._budget.reserve(key, place.fitted.plan.memory, place.in_turns)
            try:
                worker = self._started(self._running(model, place), model.slot)
            except DrainError:
                raise  # the disk may still write to the reserved memory
            except BaseException:
                self._budget.release(key)
                raise
        with contextlib.suppress(OSError):  # a file that only a log line needs
            self._tell_of_profile(name, model.pack.folder)
        return worker

    def _started(self, running: Running, slot: Slot) -> Worker:
        """Return a worker of ``running``; if it cannot start, close the engine.

        Raises:
            RuntimeError: the system gives no thread. DrainError: a read of the engine never ended.
        """
        limit, batching = self._settings.queue_limit, batching_of(self._settings, slot)
        try:
            return Worker(running, limit, self._dispatcher, batching)
        except BaseException as exc:
            running.engine.close()
            if running.engine.broken:
                raise DrainError(running.engine.broken) from exc
            raise

    def _tell_of_profile(self, name: str, folder: Path) -> None:
        """Log that there is none, once for each pack: one that is evicted is opened again and again."""
        if not (folder / FILE).exists() and folder not in self._unprofiled:
            self._unprofiled.add(folder)
            _log.info(_NO_PROFILE, name, folder)

    def reopen(self, name: str, model: Prepared, place: Place) -> Running:
        """Open ``model``, whose engine has been closed, with another plan; blocks.

        Raises:
            As ``open``; the reservation may be that of the new plan or of the one before.
        """
        trim_heap()
        with naming(name):
            self._budget.change(name, place.fitted.plan.memory, place.in_turns)
            return self._running(model, place)

    def close(self) -> None:
        """Give back the arena that models share, after all of them were closed."""
        if self._arena is not None:
            self._arena.close()

    def _running(self, model: Prepared, place: Place) -> Running:
        """Open an engine with the plan ``place``."""
        program, plan = model.program, place.fitted.plan
        if model.profile is not None:  # other models may have been prepared since
            self._device.tune(model.profile.tuning)
        if isinstance(plan, PipelinePlan):
            return self._pipeline(program, plan)
        reader = ReplaceableReader(open_reader(program.pack.weights_path))
        verify = self._settings.verify == "always"
        lease = partial(self._lease, plan) if place.in_turns else None
        engine = open_engine(program, plan, self._device, self._pool, reader, verify, lease=lease)
        watch, fitted = _watch(place.fitted, model.profile), place.fitted
        return Running(engine, reader, watch, fitted.predicted_seconds, fitted.bound_seconds)

    def _pipeline(self, program: Program, plan: PipelinePlan) -> Running:
        """Open an engine for each partition, each on a core of its own if there are so many."""
        workers = len(plan.partitions)
        cores = cores_for(workers, self._next_core)
        if not cores:
            _log.warning(
                "model %s: %d workers share fewer cores: it answers no faster",
                program.name,
                workers,
            )
        else:
            on = ", ".join(map(str, cores))
            _log.info("model %s: %d workers, on cores %s", program.name, workers, on)
        readers: list[Reader] = []

        def open_weights() -> Reader:
            readers.append(ReplaceableReader(open_reader(program.pack.weights_path)))
            return readers[-1]

        verify = self._settings.verify == "always"
        pipeline = open_pipeline(
            *(program, plan, [self._device] * workers, self._pool, open_weights),
            verify=verify,
            cores=cores,
        )
        self._next_core += workers
        return Running(pipeline, readers[0])

    def _lease(self, plan: Plan) -> ArenaLease:
        assert self._arena is not None
        return self._arena.join(plan.arena_bytes)

    def _shared_arena(self) -> SharedArena | None:
        """Reserve addresses for activations that models share, as many as the budget has bytes."""
        space, why = shared_space(
            self._device, self._budget.total_bytes, self._settings.activations
        )
        if why:
            _log.warning("%s", why)
        return None if space is None else SharedArena(space)


def _watch(fitted: Fitted, profile: Profile | None) -> BoundWatch | None:
    """Return a watch over the bound of sweeps, if the limits of exactly this plan were measured."""
    limits = profile.limits_of(fitted.plan) if profile is not None else None
    return BoundWatch(fitted.plan, limits) if limits is not None else None
