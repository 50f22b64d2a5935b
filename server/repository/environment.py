"""What the repository needs from outside: packs on disk, engines, workers, threads, and the process's heap.

Whatever else it does is decisions and the budget. Tests have an imagined environment
(tests/server/repository/imagined.py).
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from loader.cores import cores_for
from loader.pool.pool import ReadPool
from loader.readers.files import ReplaceableReader, open_reader
from loader.readers.interface import Reader
from models.packs.manifest import TOKENIZER
from models.packs.pack import Pack, open_pack, read_pack, read_tokenizer
from models.runtime.heap import give_back, trim_heap
from models.text.tokenizer import HubTokenizer, Tokenizer
from pipeline.budget.request_needs import Need
from pipeline.budget.search import Search
from pipeline.budget.sharing import Sharer, partitioned_sharer, shared_space, sharer
from pipeline.devices.base import Device
from pipeline.execution.leases import ArenaLease, SharedArena
from pipeline.execution.opened import open_answering, open_pipeline
from pipeline.fitting.wanted import EnginePlanResult, PlanResult
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.plan import PartitionedPlan, Plan, PlanError
from pipeline.profiles.delay_limits import BoundWatch
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import find_profile, prepared
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from server.repository.on_disk import check_whole
from server.repository.served_engine import Running
from server.repository.worker import Worker
from server.scheduling.dispatcher import Dispatcher
from server.scheduling.sweeps import Batching
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

#: A look for garbage among the objects of 200 loaded models takes a tenth of it.
_LONG_SECONDS = 1.0


class DevicePack(NamedTuple):
    """A pack as the device runs it, what was measured of it, and the plans that were found for it."""

    program: Program
    profile: Profile | None
    known: FoundPlans


class RepositoryEnvironment:
    """Packs and engines as the settings want them, on ``device``; ``pool`` reads weights."""

    def __init__(self, settings: Settings, device: Device, pool: ReadPool) -> None:
        self.device = device
        self._settings = settings
        self._pool = pool
        #: The first core for the partitions of the next model: cores are given out in turn.
        self._next_core = 0
        self._has_garbage = False

    # Packs; all of it blocks.

    def read_pack(self, folder: Path) -> Pack:
        """Return the record of the pack in ``folder``; raises as models.packs.pack.read_pack."""
        return read_pack(folder)

    def check_complete(self, folder: Path) -> None:
        """Check all bytes of the pack in ``folder``; raises as on_disk.check_whole."""
        check_whole(folder)

    def open_pack(self, folder: Path, level: int) -> DevicePack:
        """Open the pack in ``folder``; ``level``: of log lines about its profile.

        Raises:
            ModelError, LoaderError, DeviceError: it is damaged, or for other machines. OSError: no access.
        """
        pack = open_pack(folder, self.device.target, self._settings.recompile)
        return DevicePack(*prepared(pack, self.device, level), plans_of(pack))

    def profile(self, pack: Pack, level: int = logging.WARNING) -> Profile | None:
        """Return what was measured of ``pack`` on this device; ``level``: as of ``open_pack``."""
        return find_profile(pack, self.device, level)

    def need(self, pack: Pack) -> Need:
        """Return what requests to ``pack`` take."""
        return Need.of(pack.manifest)

    def budget_request(
        self, name: str, opened: DevicePack, batch_size: int, workers: int, search: Search
    ) -> Sharer:
        """Return an opened pack as one of the models that share the budget, in ``workers`` partitions.

        Raises:
            PlanError: it cannot be cut into as many, or the device cannot run partitions.
        """
        program, profile, known = opened
        if workers == 1:
            of = name, program, self.architecture, profile
            return sharer(*of, lanes=batch_size, search=search, known=known)
        if not self.device.computes_on_caller:
            raise PlanError(
                f"{name}: {workers} workers: each computes on a core, not on {self.device.name}"
            )
        return partitioned_sharer(name, program, self.architecture, workers, profile, search)

    @property
    def architecture(self) -> Architecture:
        """That of the settings, as the device can run it."""
        return self.device.adapt(ARCHITECTURES[self._settings.architecture])

    # Engines

    def shared_arena(self, n_bytes: int) -> SharedArena | None:
        """Return addresses for ``n_bytes`` of activations that models share; None: they cannot."""
        space, why = shared_space(self.device, n_bytes, self._settings.activations)
        if why:
            _log.warning("%s", why)
        return None if space is None else SharedArena(space)

    def open_engine(
        self, opened: DevicePack, planned: PlanResult, arena: SharedArena | None
    ) -> Running:
        """Open an engine with the plan ``planned``; blocks. ``arena``: for its activations.

        Raises:
            LoaderError, DeviceError: the pack is damaged, or is not for this machine. MemoryError, OSError,
            RuntimeError: the system has no memory, file or thread for it. DrainError: a read never ended.
        """
        program, plan = opened.program, planned.plan
        if opened.profile is not None:  # other models may have been prepared since
            self.device.tune(opened.profile.tuning)
        if isinstance(plan, PartitionedPlan):
            return self._pipeline(program, plan)
        reader = ReplaceableReader(open_reader(program.pack.weights_path))
        verify = self._settings.verify == "always"
        lease = None if arena is None else partial(_lease, arena, plan)
        engine = open_answering(program, plan, self.device, self._pool, reader, verify, lease=lease)
        watch = _watch(planned, opened.profile)
        return Running(engine, reader, watch, planned.predicted_seconds, planned.bound_seconds)

    def _pipeline(self, program: Program, plan: PartitionedPlan) -> Running:
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
            *(program, plan, [self.device] * workers, self._pool, open_weights),
            verify=verify,
            cores=cores,
        )
        self._next_core += workers
        return Running(pipeline, readers[0])

    def open_tokenizer(self, pack: Pack) -> Tokenizer | None:
        """Return the tokenizer of ``pack``; None: it takes no texts. Blocks.

        Raises:
            PackError: it is damaged, or the library that reads it is missing.
        """
        text = pack.manifest.text
        if text is None:
            return None
        return HubTokenizer(pack.folder / TOKENIZER, read_tokenizer(pack), text)

    def worker(
        self,
        running: Running,
        dispatcher: Dispatcher,
        batching: Batching,
        tokenizer: Tokenizer | None,
    ) -> Worker:
        """Return a worker that answers with ``running``; raises as Worker."""
        return Worker(running, self._settings.queue_limit, dispatcher, batching, tokenizer)

    # Threads and the heap

    def start_thread(self, name: str, target: Callable[[], None]) -> None:
        """Call ``target`` on a thread for whose end the end of the process does not wait."""
        threading.Thread(target=target, name=name, daemon=True).start()

    def trim_heap(self) -> None:
        """Give the system what an engine has left of the heap."""
        self._has_garbage = True  # its model or plan may refer to itself
        trim_heap()

    def give_back(self, seconds: float) -> None:
        """Give the system what planning has left of the heap; ``seconds``: how long that took.

        A look for circles at all objects takes longer with each model, so that the start of many would
        take the square of their number: it is made where a model or a plan went, or planning took longer.
        """
        if self._has_garbage or seconds >= _LONG_SECONDS:
            self._has_garbage = False
            give_back()
        else:
            trim_heap()


def _lease(arena: SharedArena, plan: Plan) -> ArenaLease:
    return arena.join(plan.memory["arena"])


def _watch(planned: PlanResult, profile: Profile | None) -> BoundWatch | None:
    """Return a watch over the bound of sweeps, if the limits of exactly this plan were measured.

    None of several shapes, which take different times.
    """
    if profile is None or not isinstance(planned, EnginePlanResult) or planned.plan.others:
        return None
    limits = profile.limits_of(planned.plan)
    return BoundWatch(planned.plan, limits) if limits is not None else None
