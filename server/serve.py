"""Run the service: bind the port, load the models, say that it is ready, drain on SIGTERM."""

import asyncio
import logging
import signal
import socket
from types import FrameType

import uvicorn

from server.app import create_app
from server.context import Context
from server.settings import Settings

_log = logging.getLogger(__name__)


class PortError(Exception):
    """The address cannot be listened on."""


class _Server(uvicorn.Server):
    """Tells the service manager when requests are really accepted."""

    context: Context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and not self.should_exit:
            host, port = (sockets or [])[0].getsockname()[:2]
            _log.info("%s on http://%s:%d", self.context.describe(), host, port)
            self.context.notifier.ready(self.context.describe())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.context.notifier.stopping()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host``:``port`` (0: a free one).

    Raises:
        PortError: it is in use, not allowed, or no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as exc:
        listener.close()
        raise PortError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    return listener


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
    config = uvicorn.Config(
        create_app(settings, context),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.drain_timeout) or 1,
    )
    server = _Server(config)
    server.context = context
    await server.serve([listener])


def run(settings: Settings) -> None:
    """Serve in a new event loop and exit with status 0 when told to stop; raises as ``serve``."""
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, _exit)
    asyncio.run(serve(settings))


def _exit(number: int, frame: FrameType | None) -> None:
    # While requests are served uvicorn has its own handler: it drains, and raises the signal again.
    raise SystemExit(0)
