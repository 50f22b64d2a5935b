"""Run the service: open the port, load the models, say that it is ready, drain on SIGTERM."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import AsyncIterator, Callable
from functools import cache, partial
from types import FrameType
from typing import Any, cast

import uvicorn
import uvloop
from fastapi import FastAPI

from loader.cores import wake_soon
from server.context import Context, connection_limits
from server.errors import ServiceError
from server.operation.process import installed_version, pass_over_what_stays, take_short_turns
from server.operation.service_manager import Reloading, Step
from server.page.looks import Looks
from server.page.state import Watchers, current_state
from server.protocol.infer import InferReception
from server.protocol.openapi import document
from server.protocol.routing import answering
from server.repository.polling import follow
from server.routes import table_of
from server.settings.settings import Settings, warn_of_exposure
from server.transport.certificate import Certificate
from server.transport.connection import Connection
from server.transport.limits import ConnectionLimits, allowed_files
from server.transport.listener import UnixListener, inherited, listen
from server.transport.registry import Registry
from server.transport.server import Server

_log = logging.getLogger(__name__)

# The FastAPI application: wiring only.


def create_app(settings: Settings, context: Context | None = None) -> FastAPI:
    """Return the application; its lifespan loads the models and, at the end, drains them.

    Its router sees no request: ``state.front`` answers them. The caller that gives a ``context`` loads its
    models, while requests are already answered.
    """
    loads, table = context is None, table_of(settings)
    context = context or Context(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            if loads:
                await context.start()
            yield
        finally:
            await context.stop()

    app = FastAPI(
        title="Layerstream",
        description="Open Inference Protocol, version 2, over models streamed from disk.",
        version=installed_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    app.openapi = cache(partial(document, app, table))  # type: ignore[method-assign]
    app.state.context = context
    app.state.watchers = Watchers(partial(current_state, context), context.draining)
    app.state.looks = Looks(context.repository)
    app.state.front = answering(app, context, table)
    return app


# The service, from its port to its end.


class GrpcError(ServiceError):
    """gRPC is asked for and cannot be served; the message says what is missing."""


#: Called with the context, the server's address, and whether loading has ended; it may block.
Tell = Callable[[Context, str, bool], None]
_TELL_SECONDS = 0.1


async def serve(settings: Settings, tell: Tell | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain; read keys, certificate and models again on SIGHUP.

    Raises:
        PortError, CertificateError, KeyFileError, DeviceError, StartupError, NotFoundError, RefusedError:
            no model was served.
    """
    certificate = _certificate(settings)
    _check_grpc(settings)
    context = Context(settings)
    reloading = Reloading(
        _reloads(settings, context, certificate), context.notifier, context.describe
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloading.ask)
    try:
        app = create_app(settings, context)
        pass_over_what_stays()
        # From here on probes come and are answered at once: steps that take long have been done, or go on
        # beside the event loop. Clients of the service manager's socket wait until models serve: that
        # socket is open also while no server runs, and a restart must not fail their requests.
        manager_socket = inherited()
        listener = _listener(settings, manager_socket)
        server = _server(
            app, context, listener, certificate, reloading, tell, waits=manager_socket is not None
        )
    except BaseException:
        await context.stop()
        raise
    await server.run_until_told()


def _certificate(settings: Settings) -> Certificate | None:
    if settings.tls_certificate is None:
        return None
    return Certificate(settings.tls_certificate, settings.tls_key)


def _listener(settings: Settings, listener: socket.socket | None) -> socket.socket:
    """Return the socket to listen on: ``listener``, the service manager's, or one as the settings say."""
    if listener is None and settings.unix_socket is not None:
        return UnixListener(settings.unix_socket, int(settings.unix_socket_mode, 8))
    listener = listener or listen(settings.host, settings.port)
    host = None if listener.family == socket.AF_UNIX else listener.getsockname()[0]
    warn_of_exposure(settings, host)
    return listener


def _check_grpc(settings: Settings) -> None:
    """Check before models are loaded, which takes long, that gRPC can be served if it is asked for.

    Raises:
        GrpcError: gRPC is not installed. PortError: its address cannot be listened on.
    """
    if settings.grpc_port is None:
        return
    import server.grpc  # noqa: F401  # before the library itself: it sets what the library may log

    try:
        import grpc  # noqa: F401
    except ImportError as exc:
        raise GrpcError(
            f"grpc_port: gRPC is not installed ({exc}); the extra grpc brings it"
        ) from exc
    listen(settings.host, settings.grpc_port, "--grpc-port").close()
    if settings.unix_socket is not None:
        warn_of_exposure(settings, settings.host)


async def _start_grpc(context: Context, certificate: Certificate | None) -> None:
    """Serve gRPC from now on, if the settings say so."""
    settings = context.settings
    if settings.grpc_port is None:
        return
    from server.grpc.server import GrpcServer

    server = GrpcServer(context, certificate)
    context.ways.append(server)
    port = await server.start(settings.host, settings.grpc_port)
    _log.info("gRPC%s: %s:%d", " over TLS" if certificate else "", settings.host, port)


def _reloads(
    settings: Settings, context: Context, certificate: Certificate | None
) -> dict[str, Step]:
    """Return the functions that read something again on SIGHUP, by the name of what they read."""

    async def models() -> None:
        await follow(context.repository)
        for entry in context.repository.entries():
            context.metrics.requests.expect(entry.model, entry.version)

    steps: dict[str, Step] = {}
    if context.access.wants_keys:
        steps["keys"] = partial(asyncio.to_thread, context.access.reload)
    if certificate is not None:
        steps["certificate"] = partial(asyncio.to_thread, certificate.reload)
    return {**steps, "models": models}


def _server(
    app: FastAPI,
    context: Context,
    listener: socket.socket,
    certificate: Certificate | None,
    reloading: Reloading,
    tell: Tell | None,
    *,
    waits: bool,
) -> Server:
    settings = context.settings
    config = uvicorn.Config(
        app,
        http=cast(Any, Connection),  # it has buffers, which uvicorn's types do not know
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(math.ceil(settings.drain_timeout), 1),
    )
    registry = Registry(_limits(settings))
    context.metrics.connections = registry
    place = _place(listener, certificate is not None)
    has_failed = False

    async def begin() -> None:
        nonlocal has_failed
        telling = None if tell is None else asyncio.create_task(_telling(tell, context, place))
        try:
            await context.start()
            await _start_grpc(context, certificate)
        except Exception:
            has_failed = True
            raise
        finally:
            if telling is not None:
                telling.cancel()
        reloading.begin()
        _log.info("%s: %s", context.describe(), place)
        context.notifier.ready(context.describe())
        if tell is not None:
            await asyncio.to_thread(tell, context, place, True)

    def stopping() -> None:
        context.draining.set()
        reloading.end()
        for way in context.ways:
            way.end()
        if not has_failed:  # the caller says why it ends
            _log.info("stopping; requests in flight have %g s", settings.drain_timeout)
        context.notifier.stopping()

    def sweep(now: float) -> None:
        context.exchanges.sweep(now, hurry=context.draining.is_set() or registry.is_pressed(now))

    return Server(
        *(config, listener, registry),
        answer=app.state.front,
        begin=begin,
        stopping=stopping,
        sweep=sweep,
        certificate=certificate,
        reception=InferReception(context, table_of(settings)),
        waits=waits,
    )


async def _telling(tell: Tell, context: Context, place: str) -> None:
    while True:
        await asyncio.sleep(_TELL_SECONDS)
        await asyncio.shield(asyncio.to_thread(tell, context, place, False))


def _place(listener: socket.socket, encrypted: bool) -> str:
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
        _log.warning("the limit on open files allows %d connections", total)
    return connection_limits(settings, total, waiting, announced=settings.proxy_protocol)


def run(settings: Settings, tell: Tell | None = None) -> None:
    """Serve in a new event loop and exit with status 0 when told to stop; raises as ``serve``."""
    told: list[int] = []

    def leave(number: int, frame: FrameType | None) -> None:
        # While requests are served uvicorn has its own handler: it drains, and raises the signal again.
        told.append(number)
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    wake_soon()
    take_short_turns()
    try:
        uvloop.run(serve(settings, tell))
    except Exception:
        if told:  # a library whose import was interrupted reports an error of its own
            raise SystemExit(0) from None
        raise
