"""From a folder to a model that serves: plan it within its share, reserve, read, start its thread."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from loader.pool.pool import ReadPool
from loader.readers.files import open_reader
from models.packs.pack import Pack, open_pack
from pipeline.devices.base import Device, DeviceMemoryError
from pipeline.execution.engine import Engine
from pipeline.fitting.fit import Fitted
from pipeline.fitting.within import least_plan
from pipeline.profiles.delay_watch import BoundWatch
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import FILE
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from server.errors import NotServingError, RefusedError
from server.memory.budget import Budget, check_requests, fit
from server.memory.request_needs import Need
from server.repository.machine_time import MachineTime
from server.repository.pack_profiles import prepared
from server.repository.worker import Worker
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

# What only a profile gives; how much it gains depends on the machine, and is not known before.
_NO_PROFILE = (
    "model %s has no profile: its memory is planned by rules of thumb and its delay is not predicted; "
    "`layerstream profile %s` measures this machine, load the model again afterwards"
)

Opened = tuple[Pack, Fitted, Worker]


class Opener:
    """Opens packs on ``device``, as the settings say, inside ``budget``."""

    def __init__(self, settings: Settings, budget: Budget, device: Device, pool: ReadPool) -> None:
        self._settings = settings
        self._budget = budget
        self._device = device
        self._pool = pool
        self._machine_time = MachineTime()

    def least_bytes(self, folder: Path) -> int:
        """Return what the latest version in ``folder`` needs at least, as the device works now; blocks.

        Raises:
            ModelError, DeviceError, PlanError: its pack is damaged, or not for here. OSError: no access.
            RefusedError: no request could be answered.
        """
        # What is wrong with a profile is said when the pack is opened.
        pack, profile = prepared(self._checked(folder), self._device, logging.DEBUG)
        check_requests(folder.name, pack.manifest, self._budget)
        return least_plan(pack.manifest, self._architecture(), profile).total_bytes

    def need(self, folder: Path) -> Need:
        """Return what requests to the latest version in ``folder`` take; blocks.

        Raises:
            ModelError: its pack is damaged, or not for here. OSError: no access.
        """
        return Need.of(self._checked(folder).manifest)

    async def open(self, name: str, folder: Path, share: int, beside_bytes: int) -> Opened:
        """Reserve, read and start the latest version in ``folder`` within ``share`` bytes of the budget.

        ``beside_bytes``: what the other models need at least.
        On an error, and when this is cancelled, nothing stays reserved and no thread is left.

        Raises:
            RefusedError: it does not fit. NotServingError: the system has not the memory, or refuses its
            files. ModelError, LoaderError, DeviceError, PlanError: its pack is damaged, or not for here.
        """
        loading = asyncio.create_task(
            asyncio.to_thread(self._open, name, folder, share, beside_bytes)
        )
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            await asyncio.wait({loading})
            if not loading.cancelled() and loading.exception() is None:
                await loading.result()[2].close()
                self._budget.release(name)
            raise

    def _open(self, name: str, folder: Path, share: int, beside_bytes: int) -> Opened:
        """Do as ``open`` does; blocks."""
        with _naming(name):
            pack, profile = prepared(self._checked(folder), self._device)
            check_requests(name, pack.manifest, self._budget)
            fitted = fit(
                pack.manifest,
                self._architecture(),
                name,
                self._budget,
                share,
                beside_bytes=beside_bytes,
                profile=profile,
            )
            opened = self._started(name, pack, fitted, _watch(fitted, profile))
        if not (pack.folder / FILE).exists():
            _log.info(_NO_PROFILE, name, pack.folder)
        return opened

    def _started(self, name: str, pack: Pack, fitted: Fitted, watch: BoundWatch | None) -> Opened:
        """Reserve what the plan of ``fitted`` takes, and start it."""
        self._budget.reserve(name, fitted.plan.memory)
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
        except BaseException:
            self._budget.release(name)
            raise
        limit = self._settings.queue_limit
        return pack, fitted, Worker(engine, limit, reader, watch, self._machine_time)

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
