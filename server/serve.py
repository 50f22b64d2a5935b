"""Run the service: bind the port, load the models, say that it is ready, drain on SIGTERM."""

import logging
import os
import signal
import socket
from types import FrameType

import uvicorn
import uvloop

from server.app import create_app
from server.context import Context
from server.operation.notify import Notifier
from server.settings.settings import Settings
from server.transport.limits import ConnectionLimits, allowed_files
from server.transport.listener import listen
from server.transport.registry import Registry
from server.transport.server import Server

_log = logging.getLogger(__name__)


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        PortError, DeviceError, StartupError, NotFoundError: before anything was served.
    """
    listener = listen(settings.host, settings.port)
    try:
        context = Context(settings)
    except BaseException:
        listener.close()
        raise
    try:
        # Loaded here rather than in uvicorn's start, which turns errors into tracebacks.
        await context.start()
    except BaseException:
        listener.close()
        await context.stop()
        raise
    await _server(settings, context, listener).serve()


def _server(settings: Settings, context: Context, listener: socket.socket) -> Server:
    config = uvicorn.Config(
        create_app(settings, context),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(settings.drain_timeout) or 1,
    )
    registry = Registry(_limits(settings))
    context.metrics.watch_connections(registry)
    host, port = listener.getsockname()[:2]

    def ready() -> None:
        shown = f"[{host}]" if ":" in host else host
        _log.info("%s: http://%s:%d", context.describe(), shown, port)
        context.notifier.ready(context.describe())

    def stopping() -> None:
        context.draining.set()
        _log.info("stopping; requests in flight have %g s", settings.drain_timeout)
        context.notifier.stopping()

    def sweep(now: float) -> None:
        context.exchanges.sweep(now, hurry=context.draining.is_set() or registry.waiting)

    return Server(config, listener, registry, ready=ready, stopping=stopping, sweep=sweep)


def _limits(settings: Settings) -> ConnectionLimits:
    total = allowed_files(settings.max_connections)
    if total < settings.max_connections:
        _log.warning("the limit on open files allows %d connections", total)
    return ConnectionLimits(
        total=total,
        per_address=settings.max_connections_per_address or max(1, total // 2),
        header_seconds=settings.header_timeout,
        idle_seconds=settings.idle_timeout,
        stall_seconds=settings.stall_timeout,
    )


def run(settings: Settings) -> None:
    """Serve in a new event loop and exit with status 0 when told to stop; raises as ``serve``."""
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, _exit)
    try:
        uvloop.run(serve(settings))
    except Exception as exc:
        Notifier.from_environment(os.environ).status(f"ended: {exc}")
        raise


def _exit(number: int, frame: FrameType | None) -> None:
    # While requests are served uvicorn has its own handler: it drains, and raises the signal again.
    raise SystemExit(0)
