"""Run the service in a process of its own: open the port, load the models, drain on SIGTERM.

What belongs to the process is done here and in the command line, and nowhere else: signals, messages to
systemd, the log, and how the interpreter and the C heap are set.
"""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

import uvicorn
import uvloop
from fastapi import FastAPI

from loader.cores import wake_soon
from server.app import create_app
from server.operation import watching
from server.operation.process import pass_over_what_stays, take_short_turns
from server.operation.service_manager import Notifier, Reloading, Step, beat
from server.operation.starting import StartupError
from server.operation.stop_signals import StopSignals
from server.preflight import GRPC_PACKAGES, grpc_listener, listener_of, no_grpc
from server.protocol.infer import InferReception
from server.repository.polling import follow
from server.service import Listener, Service, connection_limits
from server.settings.settings import Settings, warn_of_exposure
from server.transport.connection import Connection
from server.transport.limits import ConnectionLimits, allowed_files, missing_files
from server.transport.listener import UnixListener, inherited
from server.transport.registry import Registry
from server.transport.server import Server

_log = logging.getLogger(__name__)

#: Called with the service, its address, and whether loading has ended; it may block.
Report = Callable[[Service, str, bool], None]
_REPORT_SECONDS = 0.1


async def serve(settings: Settings, report: Report | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain; read keys, certificate and models again on SIGHUP.

    Raises:
        PortError, CertificateError, KeyFileError, DeviceError, StartupError, NotFoundError, RefusedError:
            no model was served.
    """
    signals = StopSignals()
    with signals.caught():
        listeners = _listeners(settings)
        async with Service(settings, owns_process=True, listeners=listeners) as service:
            running = _Running(service, Notifier.from_environment(os.environ), report)
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, running.reloading.ask)
            try:
                await running.server.run_until(signals.stop)
            finally:
                await running.end()


class _Running:
    """A service that runs behind ``server``."""

    def __init__(self, service: Service, notifier: Notifier, report: Report | None) -> None:
        self._service, self._notifier, self._report = service, notifier, report
        self._has_failed = False
        self._beating: asyncio.Task[None] | None = None
        self.reloading = Reloading(_reloads(service), notifier, service.describe)
        app = create_app(service)
        pass_over_what_stays()
        # From here on probes come and are answered at once: steps that take long have been done, or go on
        # while the event loop runs. Clients of the service manager's socket wait until models serve: that
        # socket is open also while no server runs, and a restart must not fail their requests.
        manager_socket = inherited()
        listener = _listener(service.settings, manager_socket)
        self._address = _address(listener, service.certificate is not None)
        self.server = self._create_server(app, listener, waits=manager_socket is not None)

    def _create_server(self, app: FastAPI, listener: socket.socket, *, waits: bool) -> Server:
        service = self._service
        config = uvicorn.Config(
            app,
            http=cast(Any, Connection),  # it has buffers, which uvicorn's types do not know
            ws="none",
            lifespan="off",  # the service is entered before, and left after all is answered
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=max(math.ceil(service.settings.drain_timeout), 1),
        )
        registry = Registry(_limits(service.settings))
        service.metrics.connections = registry
        service.is_pressed = registry.is_pressed
        return Server(
            config,
            listener,
            registry,
            begin=self._begin,
            stopping=self._stop,
            certificate=service.certificate,
            reception=InferReception(service),
            waits=waits,
        )

    async def _begin(self) -> None:
        """Wait until models serve, and report it."""
        service, notifier = self._service, self._notifier
        try:
            async with self._reporting():
                await service.loaded()
        except Exception:
            self._has_failed = True
            raise
        self._beating = asyncio.create_task(beat(notifier, service.restart_reason))
        self.reloading.begin()
        _log.info("%s: %s", service.describe(), self._address)
        notifier.ready(service.describe())
        if self._report is not None:
            await asyncio.to_thread(self._report, service, self._address, True)

    @contextlib.asynccontextmanager
    async def _reporting(self) -> AsyncIterator[None]:
        """Report meanwhile how far loading is."""
        tasks = [asyncio.create_task(watching.tell(self._notifier, self._service.progress))]
        if self._report is not None:
            tasks.append(asyncio.create_task(self._report_again(self._report)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _report_again(self, report: Report) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            await asyncio.shield(asyncio.to_thread(report, self._service, self._address, False))

    async def end(self) -> None:
        """Send no more heartbeats."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    def _stop(self) -> None:
        self.reloading.end()
        self._service.drain()
        if not self._has_failed:  # the caller says why it ends
            seconds = self._service.settings.drain_timeout
            _log.info("stopping; requests in flight have %g s", seconds)
        self._notifier.stopping()


def _listener(settings: Settings, listener: socket.socket | None) -> socket.socket:
    """Return the socket to listen on: ``listener``, the service manager's, or one as the settings say."""
    listener = listener or listener_of(settings)
    if not isinstance(listener, UnixListener):
        host = None if listener.family == socket.AF_UNIX else listener.getsockname()[0]
        warn_of_exposure(settings, host)
    return listener


def _listeners(settings: Settings) -> Sequence[Callable[[Service], Listener]]:
    """Return gRPC's listener, if the settings ask for it, before models are loaded, which takes long.

    Raises:
        GrpcError: gRPC is not installed. PortError: its address cannot be listened on.
    """
    if settings.grpc_port is None:
        return ()
    # Before the library is imported: it writes lines of its own among those of the log, with what clients
    # have sent.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        for name in GRPC_PACKAGES:
            import_module(name)
    except ImportError as exc:
        raise no_grpc(exc) from exc
    from server.grpc.server import grpc_server

    grpc_listener(settings.host, settings.grpc_port).close()
    if settings.unix_socket is not None:
        warn_of_exposure(settings, settings.host)
    return (grpc_server,)


def _reloads(service: Service) -> dict[str, Step]:
    """Return the functions that read something again on SIGHUP, by the name of what they read."""

    async def models() -> None:
        await follow(service.repository)
        for entry in service.repository.entries():
            service.metrics.requests.expect(entry.model, entry.version)

    steps: dict[str, Step] = {}
    if service.access.wants_keys:
        steps["keys"] = partial(asyncio.to_thread, service.access.reload)
    if service.certificate is not None:
        steps["certificate"] = partial(asyncio.to_thread, service.certificate.reload)
    return {**steps, "models": models}


def _address(listener: socket.socket, encrypted: bool) -> str:
    """Return where clients find the server."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if encrypted else 'http'}://{shown}:{port}"


def _limits(settings: Settings) -> ConnectionLimits:
    total, waiting = allowed_files(
        settings.max_connections, ports=1 if settings.grpc_port is None else 2
    )
    if total < settings.max_connections:
        many = "1 connection" if total == 1 else f"{total} connections"
        _log.warning("the limit on open files (LimitNOFILE, ulimit -n) allows %s", many)
    return connection_limits(settings, total, waiting, announced=settings.proxy_protocol)


def run(settings: Settings, report: Report | None = None) -> None:
    """Serve in a new event loop until a signal comes; raises as ``serve``."""
    if reason := missing_files():
        raise StartupError(reason)
    wake_soon()
    take_short_turns()
    uvloop.run(serve(settings, report))
