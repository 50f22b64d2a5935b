"""What one server consists of, from start to stop; request handlers get it from the application."""

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack, closing
from typing import Protocol

from loader.cores import allowed_cores
from loader.pool.pool import ReadPool
from models.runtime.heap import give_back
from pipeline.devices.find import open_device
from pipeline.execution.sweep import DRAIN_SECONDS
from server.access import Access
from server.errors import RefusedError, ServiceError, few
from server.memory.budget import Budget
from server.memory.process_memory import resolved_budget
from server.memory.request_memory import RequestMemory, Trimming
from server.metrics.metrics import Metrics
from server.operation import watching
from server.operation.service_manager import Notifier, beat
from server.operation.tracing import Tracing
from server.repository.compiling import Compiler
from server.repository.entry import Entry
from server.repository.limited_process import Limits
from server.repository.on_disk import model_names
from server.repository.polling import Poller
from server.repository.repository import Repository
from server.repository.retrying import Retrier
from server.repository.uploads import Uploads
from server.requests.exchange import Exchanges
from server.requests.waiting import Aside
from server.settings.per_model import has_several
from server.settings.settings import Settings, server_names
from server.settings.sizes import format_size
from server.transport.limits import ConnectionLimits
from server.transport.proxies import TrustedProxies

_log = logging.getLogger(__name__)

# A request may keep an engine busy so much longer than its timeout before the server stops to report to the
# watchdog: the sweep itself gives up first on reads that do not end.
_HUNG_SECONDS = DRAIN_SECONDS + 30.0


def connection_limits(
    settings: Settings, total: int, waiting: int, *, announced: bool = False
) -> ConnectionLimits:
    """Return the limits of connections, or of calls of gRPC; ``announced``: behind PROXY headers."""
    return ConnectionLimits(
        total=total,
        per_address=settings.max_connections_per_address,
        header_seconds=settings.header_timeout,
        idle_seconds=settings.idle_timeout,
        stall_seconds=settings.stall_timeout,
        waiting=waiting,
        proxies=TrustedProxies.named(settings.trusted_proxies),
        announced=announced,
    )


class StartupError(ServiceError):
    """Nothing can be served; the message says why. ``may_pass``: another start may succeed."""

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class OtherServer(Protocol):
    """A server beside the HTTP server that takes requests, such as gRPC's."""

    def end(self) -> Awaitable[None]:
        """Take no more requests; done when those in flight are. It may be called again."""


class Context:
    """Owns keys, budget, read pool, device, models and metrics.

    Raises:
        DeviceError: the device that the settings name cannot be used.
        RefusedError, NotFoundError: there is not as much memory, or no repository.
        KeyFileError, TracingError: the file of keys cannot be used, traces cannot be sent.
        After any of them nothing has been started.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.budget = Budget(resolved_budget(settings, lambda: len(chosen_models(settings))))
        #: Under which clients may ask where no keys are asked for.
        self.names = server_names(settings)
        self.access = Access(settings.keys, settings.public_metrics)
        self.tracing = Tracing.to(settings.traces) if settings.traces else None
        self._resources = ExitStack()
        device = self._resources.enter_context(
            closing(
                open_device(
                    settings.device, _threads(settings), settings.memory_kind, settings.precision
                )
            )
        )
        self.trimming = Trimming(self.budget, lambda: self.metrics.base.anonymous)
        self.notifier = Notifier.from_environment(os.environ)
        self.pool = ReadPool()
        #: Decodes photographs, and whatever else of a request takes milliseconds. With three threads on two
        #: cores, beside kernels' threads, which spin, 8 clients had a tenth fewer answers than with six.
        self.aside = Aside(len(allowed_cores()) + 4)
        #: Its size is known when the models are.
        self.request_memory = RequestMemory(0, settings.queue_limit)
        self.exchanges = Exchanges(
            *(self.request_memory, settings.max_body, settings.stall_timeout, settings.max_upload)
        )
        self.repository = Repository(settings, self.budget, device, self.pool)
        limits = Limits(settings.compile_memory, math.ceil(settings.compile_time))
        self.uploads = Uploads(self.repository, Compiler(device.target.isa, limits))
        self.metrics = Metrics(
            self.repository, self.budget, self.exchanges, self.pool, device, self.access
        )
        #: Whether memory has been set aside for requests: at the start that may take a while.
        self.is_divided = False
        #: Set when no more requests are taken: answers without an end, such as events, end then.
        self.draining = asyncio.Event()
        #: Servers beside HTTP: they end before the models do.
        self.ways: list[OtherServer] = []
        #: Tasks that run beside requests, from when all models were loaded or have failed.
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def absence(self) -> str:
        """Why it is not ready; empty when all models were tried, and at least one serves."""
        if not self._tasks:
            return self._progress()
        entries = self.repository.entries()
        if any(entry.answers for entry in entries):
            return ""
        return f"no model serves: {few([each.message for each in entries], '; ')}".rstrip(": ")

    async def start(self) -> None:
        """Load the models; does nothing when already started.

        Raises:
            StartupError: the repository is empty and nothing is to come, a setting names a model that
                cannot come, no model could be loaded, or one could not and ``exit_on_error`` is set.
            NotFoundError: the repository does not exist.
        """
        if self._tasks:
            return
        retrier = Retrier(self.repository)
        poller = await asyncio.to_thread(self._poller, retrier)
        await self._load()
        entries = self.repository.entries()
        for entry in entries:
            self.metrics.requests.expect(entry.model, entry.version)
        self._check_begins(entries, follows=poller is not None)
        for entry in entries:
            if not entry.answers:
                _log.error("not served: %s", entry.message)
        self._tasks = [
            asyncio.create_task(beat(self.notifier, self._fault)),
            asyncio.create_task(watching.watch(self.repository)),
            asyncio.create_task(retrier.run()),
        ]
        if poller is not None:
            following = poller.run(self.settings.poll_interval)
            self._tasks.append(asyncio.create_task(following))

    async def _check_named(self) -> None:
        """Check that models which settings name are served, or may be later; raises as ``start``."""
        unknown = await asyncio.to_thread(self.repository.models.unknown)
        if unknown and self.settings.model_control == "none":
            raise StartupError(f"{unknown}; with model_control = none no other model comes")
        if unknown:
            _log.warning("%s", unknown)

    def _check_begins(self, entries: Sequence[Entry], *, follows: bool) -> None:
        """Check that a model serves or may serve later; ``follows``: packs that come later are loaded.

        Raises:
            As ``start``.
        """
        strict, control = self.settings.exit_on_error, self.settings.model_control
        if not entries and (strict or control == "none"):
            raise StartupError(
                f"repository {self.settings.repository}: no packs in it; compile one into it (layerstream "
                "compile), or start with --model-control explicit, which takes uploads, or poll, which "
                f"waits for packs{', and without --exit-on-error' if strict else ''}"
            )
        failed = [entry for entry in entries if not entry.answers]
        if failed and (strict or (len(failed) == len(entries) and not follows)):
            reasons = few([entry.reason for entry in failed], "; ")
            raise StartupError(reasons, may_pass=any(entry.may_pass for entry in failed))

    def _poller(self, retrier: Retrier) -> Poller | None:
        """Return what follows the repository, if the settings say so; blocks."""
        if self.settings.model_control != "poll":
            return None
        return Poller(self.repository, self.settings.models, retrier)

    async def _load(self) -> None:
        """Load the models, and tell the service manager how far loading is."""
        telling = asyncio.create_task(watching.tell(self.notifier, self._progress))
        try:
            await self._check_named()
            await self.repository.load_all(self._reserve_request_memory)
        except OSError as exc:
            why = f"repository {self.settings.repository}: {exc.strerror or exc}"
            raise StartupError(why, may_pass=not isinstance(exc, PermissionError)) from exc
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _reserve_request_memory(self) -> None:
        """Take the memory of requests out of the budget, before models share the rest.

        The process then holds its base: libraries, and memory of planning, which no plan counts. Planning
        gives that memory back before the first model is loaded.

        Raises:
            StartupError: there is not as much.
        """
        try:
            await self.repository.set_aside()
        except RefusedError as exc:
            raise StartupError(str(exc)) from exc
        finally:
            self.metrics.models_follow()
            await asyncio.to_thread(give_back)
        self.request_memory.capacity_bytes = self.budget.request_bytes
        self.is_divided = True

    async def stop(self) -> None:
        """Drain the models and end all threads."""
        await asyncio.gather(*(way.end() for way in self.ways))
        tasks, self._tasks = self._tasks, []
        await _ended(tasks)
        # No request waits for an answer any more, whatever its deadline.
        giving_up = asyncio.create_task(watching.watch(self.repository, factor=0.0))
        await self.repository.close()
        await _ended([giving_up])
        await asyncio.to_thread(self.pool.close)
        await asyncio.to_thread(self.aside.close)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
        await asyncio.to_thread(self._resources.close)

    def describe(self) -> str:
        """Return one line for logs and for the service manager: which models serve, in how much memory."""
        entries = self.repository.entries()
        serving = [entry.name for entry in entries if entry.serves]
        used, total = format_size(self.budget.used_bytes), format_size(self.budget.total_bytes)
        requests = format_size(self.budget.request_bytes)
        named = _named(serving, len(entries))
        return f"serving {named} in {used} of a budget of {total}, {requests} of it for requests"

    def _fault(self) -> str:
        """Return why only a new process can serve; empty as long as this one can."""
        limit = self.settings.request_timeout + _HUNG_SECONDS
        for entry in self.repository.entries():
            if entry.worker is None:
                continue
            if entry.worker.engine.lost_device:
                return f"model {entry.name}: its device is lost"
            if entry.worker.stuck_seconds() >= limit:
                return f"model {entry.name}: a request has been running for more than {limit:g} s"
        for worker in self.repository.left_behind():
            # A worker with an arena of its own holds up no other model.
            if worker.engine.takes_turns and worker.stuck_seconds() >= limit:
                return f"model {worker.served.name}: it does not leave the arena that models share"
        return ""

    def _progress(self) -> str:
        read = self.pool.statistics().figures.n_bytes
        return watching.describe(self.repository.entries(), read)


def chosen_models(settings: Settings) -> Sequence[str]:
    """Return the models that are to be served at the start; raises as ``model_names``."""
    return settings.models or model_names(settings.repository)


async def _ended(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _threads(settings: Settings) -> int | None:
    """Return how many threads compute: ONNX Runtime has one pool for all models; workers use no pool."""
    return 1 if has_several(settings.workers) else settings.threads


def _named(serving: Sequence[str], known: int) -> str:
    """Return the name of the one model, or how many of the ``known`` ones serve, and their first names."""
    if not known:
        return "no model yet"
    if len(serving) == known == 1:
        return serving[0]
    counted = str(known) if len(serving) == known else f"{len(serving)} of {known}"
    return f"{counted} models ({few(serving)})"
