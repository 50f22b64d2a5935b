"""What one service consists of, while it is entered; request handlers get it from the application."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from loader.cores import allowed_cores
from loader.pool.pool import ReadPool
from models.runtime.heap import give_back
from models.sizes import format_size
from pipeline.budget.budget import Budget
from pipeline.budget.errors import RefusedError
from pipeline.devices.base import Device
from pipeline.devices.find import open_device
from pipeline.execution.deadlines import DRAIN_SECONDS
from pipeline.execution.shielded import run_to_completion
from server.access import Access
from server.errors import few
from server.faults import traceable
from server.memory.process_memory import resolved_budget
from server.memory.request_memory import RequestMemory, Trimming
from server.metrics.metrics import Metrics
from server.operation import watching
from server.operation.latency_history import LatencyHistory
from server.operation.relieving import Relieving, relieving
from server.operation.starting import StartupError, check_start, load_all
from server.operation.tracing import Tracing
from server.preflight import certificate_of
from server.repository.compiling import Compiler
from server.repository.entry import Entry
from server.repository.environment import RepositoryEnvironment
from server.repository.instances import State
from server.repository.limited_process import Limits
from server.repository.on_disk import model_names
from server.repository.polling import Poller
from server.repository.repository import Repository
from server.repository.retrying import Retrier
from server.repository.uploads import Uploads
from server.requests.exchange import Exchanges
from server.requests.waiting import Aside
from server.settings.embedded import check_embedded
from server.settings.per_model import has_several
from server.settings.settings import Settings, server_names
from server.transport.certificate import Certificate
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


class Listener(Protocol):
    """A server in addition to HTTP's that takes requests, such as gRPC's."""

    async def begin(self) -> None:
        """Take requests from now on.

        Raises:
            PortError: the address cannot be listened on.
        """

    def end(self) -> Awaitable[None]:
        """Take no more requests; done when those in flight are. It may be called again."""


#: How an application enters a service, for errors of those that did not.
HOW_TO_ENTER = (
    "pass lifespan=service.lifespan to the application that mounts it, "
    "or write `async with service:` in its lifespan"
)
_HOUSEKEEPING_SECONDS = 0.25


class Service:
    """Owns keys, budget, read pool, device, models and metrics inside ``async with``, which is once.

    Entering waits for no model: they load in a task, and requests are answered meanwhile. ``loaded`` waits.
    The attributes without a value here exist from entering on.

    Args:
        settings: of models, memory, scheduling, access, limits.
        owns_process: the process is there for this service alone, so that ``memory`` may limit all of it,
            and sockets are as the settings have them.
        listeners: functions that create servers in addition to HTTP's; they take requests once models
            serve.

    Raises:
        SettingsError: a setting cannot hold in a process of another program.
    """

    budget: Budget
    access: Access
    #: For all that listens with TLS; None: there is no such setting.
    certificate: Certificate | None
    trimming: Trimming
    pool: ReadPool
    request_memory: RequestMemory
    exchanges: Exchanges
    repository: Repository
    uploads: Uploads
    metrics: Metrics

    def __init__(
        self,
        settings: Settings,
        *,
        owns_process: bool = False,
        listeners: Sequence[Callable[["Service"], Listener]] = (),
    ) -> None:
        if not owns_process:
            check_embedded(settings, listens=bool(listeners))
        self.settings = settings
        self._owns_process = owns_process
        #: What has models follow the memory of the box, in a process of their own; None: nothing does.
        self.relieving: Relieving | None = None
        #: Under which clients may ask where no keys are asked for.
        self.names = server_names(settings)
        self.tracing: Tracing | None = None
        #: Whether memory has been set aside for requests: at the start that may take a while.
        self.is_divided = False
        #: Set when no more requests are taken: answers without an end, such as events, end then.
        self.draining = asyncio.Event()
        #: Whether connections wait for a place at this time of the loop, so that clients must hurry.
        self.is_pressed: Callable[[float], bool] = lambda now: False
        self.history = LatencyHistory(self._entries)
        self._create_listeners = listeners
        self._listeners: list[Listener] = []
        self._resources = AsyncExitStack()
        self._was_entered = False
        self._loading: asyncio.Task[None] | None = None
        self._is_awaited = False
        self._closing: asyncio.Task[None] | None = None

    def _entries(self) -> list[Entry]:
        return self.repository.entries()

    # Its life

    async def __aenter__(self) -> Self:
        """Open keys, device, threads and budget, and begin to load the models.

        Raises:
            RuntimeError: it was entered before. DeviceError: the device that the settings name cannot be
            used. RefusedError, NotFoundError: there is not as much memory, or no repository.
            KeyFileError, CertificateError, TracingError: the file of keys or the certificate cannot be
            used, traces cannot be sent. After any of them nothing is open.
        """
        if self._was_entered:
            raise RuntimeError("this service was entered before; enter another: Service(settings)")
        self._was_entered = True
        async with AsyncExitStack() as failed:
            self._open(failed)
            self._resources = failed.pop_all()
        self._loading = asyncio.create_task(self._load())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Enter it for as long as ``app`` runs: FastAPI(lifespan=service.lifespan); raises as entering."""
        async with self:
            yield

    @property
    def unavailable(self) -> str:
        """Why no request can be answered: it was not entered, or was left; empty in between."""
        if self._loading is None:
            return f"the service was not entered: {HOW_TO_ENTER}"
        was_left = self._closing is not None and self._closing.done()
        return "the service has ended" if was_left else ""

    async def loaded(self) -> None:
        """Wait until each model serves, or has failed to load.

        Raises:
            StartupError: the repository is empty and nothing is to come, a setting names a model that
                cannot come, no model could be loaded, or one could not and ``exit_on_error`` is set; or
                the service was not entered, or ends.
            NotFoundError: the repository does not exist. PortError: a listener has no address.
        """
        if self._loading is None:
            raise StartupError(self.unavailable)
        self._is_awaited = True
        await asyncio.wait({self._loading})
        if self._loading.cancelled():
            raise StartupError("the service ended before its models were loaded", may_pass=True)
        self._loading.result()

    def drain(self) -> None:
        """Take no more requests; load no more models. Those in flight are answered; ``close`` waits."""
        self.draining.set()
        if self._loading is not None:
            self._loading.cancel()
        for listener in self._listeners:
            listener.end()

    async def close(self) -> None:
        """Drain, then close all that it opened, the last first; to the end even if cancelled.

        It may be called again.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await run_to_completion(self._closing)

    def _open(self, resources: AsyncExitStack) -> None:
        """Open what needs no wait; each is closed by ``resources``."""
        settings = self.settings
        self.budget = Budget(resolved_budget(settings, lambda: len(chosen_models(settings))))
        self.access = Access(settings.keys, settings.public_metrics)
        self.certificate = certificate_of(settings)
        if settings.traces:
            self.tracing = Tracing.to(settings.traces)
            resources.push_async_callback(asyncio.to_thread, self.tracing.close)
        device = open_device(
            settings.device, _threads(settings), settings.memory_kind, settings.precision
        )
        resources.push_async_callback(asyncio.to_thread, device.close)
        #: Decodes photographs, and whatever else of a request takes milliseconds.
        # With three threads on two cores, where kernels' threads spin, 8 clients had a tenth fewer answers
        # than with six.
        self.aside = Aside(len(allowed_cores()) + 4)
        resources.push_async_callback(asyncio.to_thread, self.aside.close)
        self.pool = ReadPool()
        resources.push_async_callback(asyncio.to_thread, self.pool.close)
        self._open_models(device)
        resources.push_async_callback(self._close_models)
        self._run(resources, self.history.run(), self._end_stalled())

    def _open_models(self, device: Device) -> None:
        """Create what models and their requests share; nothing is loaded yet."""
        settings = self.settings
        # Its size is known when the models are.
        self.request_memory = RequestMemory(0, settings.queue_limit)
        self.exchanges = Exchanges(
            self.request_memory, settings.max_body, settings.stall_timeout, settings.max_upload
        )
        self.repository = Repository(
            settings, self.budget, RepositoryEnvironment(settings, device, self.pool)
        )
        limits = Limits(settings.compile_memory, math.ceil(settings.compile_time))
        self.uploads = Uploads(self.repository, Compiler(device.target.isa, limits))
        self.metrics = Metrics(
            self.repository, self.budget, self.exchanges, self.pool, device, self.access
        )
        self.trimming = Trimming(self.budget, lambda: self.metrics.base.anonymous)

    def _run(self, resources: AsyncExitStack, *work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in tasks that ``resources`` end."""
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        resources.push_async_callback(_ended, tasks)

    async def _end_stalled(self) -> None:
        """Every quarter of a second end requests whose clients stall; runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)
            try:
                now = loop.time()
                is_pressed = self.draining.is_set() or self.is_pressed(now)
                self.exchanges.sweep(now, hurry=is_pressed)
            except Exception:  # noqa: BLE001  without this task no stalled request would end again
                _log.exception("looking for stalled requests failed")

    async def _close(self) -> None:
        self.drain()
        if self._loading is not None:
            await asyncio.wait({self._loading})
        await self._resources.aclose()

    async def _close_models(self) -> None:
        # No request waits for an answer any more, whatever its deadline.
        giving_up = asyncio.create_task(watching.watch(self.repository, factor=0.0))
        try:
            await self.repository.close()
        finally:
            await _ended([giving_up])

    # Its start

    async def _load(self) -> None:
        """Load the models, watch them, and let listeners begin; raises as ``loaded``."""
        try:
            await self._load_models()
        except Exception as exc:
            if not self._is_awaited:
                _log.error("the start failed: %s", exc, exc_info=traceable(exc))
            raise

    async def _load_models(self) -> None:
        settings, repository = self.settings, self.repository
        retrier = Retrier(repository)
        poller = None
        if settings.model_control == "poll":
            poller = await asyncio.to_thread(Poller, repository, settings.models, retrier)
        await load_all(settings, repository, self._reserve_request_memory)
        entries = repository.entries()
        for entry in entries:
            self.metrics.requests.expect(entry.model, entry.version)
        check_start(settings, entries, follows=poller is not None)
        self._run(self._resources, watching.watch(repository), retrier.run())
        # The budget of a GPU is not memory of the system.
        if self._owns_process and settings.device == "cpu":
            self.relieving = relieving(
                repository, self.budget, self.request_memory, settings.memory_pressure
            )
        if self.relieving is not None:
            self.metrics.relieving = self.relieving
            self._run(self._resources, self.relieving.run())
        if settings.close_after:
            self._run(self._resources, watching.close_idle(repository))
        if settings.tune:
            self._run(self._resources, repository.tuner().run())
        if poller is not None:
            self._run(self._resources, poller.run(settings.poll_interval))
        for create in self._create_listeners:
            listener = create(self)
            self._listeners.append(listener)
            self._resources.push_async_callback(listener.end)
            await listener.begin()

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

    # Its state

    @property
    def absence(self) -> str:
        """Why it is not ready; empty when all models were tried, and at least one serves."""
        if self._loading is None or not self._loading.done():
            return self.progress()
        if not self._loading.cancelled() and (failed := self._loading.exception()):
            return f"the start failed: {failed}"
        entries = self.repository.entries()
        if any(entry.answers for entry in entries):
            return ""
        return f"no model serves: {few([each.message for each in entries], '; ')}".rstrip(": ")

    @property
    def unready(self) -> str:
        """Why it is not ready as the settings mean it; empty when it is.

        Strict readiness is Triton's: every model serves that no client has unloaded. One that was evicted
        does, since the next request loads it.
        """
        if self.absence or not self.settings.strict_readiness:
            return self.absence
        entries = self.repository.entries()
        absent = [entry for entry in entries if not entry.answers and entry.absence != "unloaded"]
        return few([entry.message for entry in absent], "; ")

    def describe(self) -> str:
        """Return one line for logs and for the service manager: which models serve, in how much memory."""
        entries = self.repository.entries()
        serving = [entry.name for entry in entries if entry.serves]
        used, total = format_size(self.budget.used_bytes), format_size(self.budget.total_bytes)
        requests = format_size(self.budget.request_bytes)
        named = _named(serving, len(entries))
        return f"serving {named} in {used} of a budget of {total}, {requests} of it for requests"

    def restart_reason(self) -> str:
        """Return why only a new process can serve; empty as long as this one can."""
        limit = self.settings.request_timeout + _HUNG_SECONDS
        for entry in self.repository.entries():
            if entry.worker is None:
                continue
            if entry.worker.engine.lost_device:
                return f"model {entry.name}: its device is lost"
            if entry.worker.stuck_seconds() >= limit:
                return f"model {entry.name}: a request has been running for more than {limit:g} s"
        for worker in self.repository.workers(State.STUCK):
            # A worker with an arena of its own holds up no other model.
            if worker.engine.takes_turns and worker.stuck_seconds() >= limit:
                return f"model {worker.served.name}: it does not leave the arena that models share"
        return ""

    def progress(self) -> str:
        """Return one line: how far loading is; it changes whenever there is progress."""
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
    if not serving:
        return "none of 1 model" if known == 1 else f"none of {known} models"
    counted = str(known) if len(serving) == known else f"{len(serving)} of {known}"
    return f"{counted} models ({few(serving)})"
