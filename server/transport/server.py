"""uvicorn's server with our connections: it accepts while there are places, and ends when told to."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from server.transport.certificate import Certificate
from server.transport.connection import Connection
from server.transport.encryption import EncryptedReads
from server.transport.intake import AllBegin, Intake, Reception
from server.transport.listener import accept
from server.transport.reads import BoundedReads
from server.transport.registry import Registry

_log = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.25


class Server(uvicorn.Server):
    """Serves on ``listener``, encrypted if there is a ``certificate``.

    ``ready`` is called once requests are accepted, ``stopping`` when no more are; ``sweep`` every
    quarter of a second with the time of the loop, from the first moment to the end of draining.
    ``reception``: what requests ask for; None: nobody minds when they begin.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        registry: Registry,
        *,
        ready: Callable[[], None],
        stopping: Callable[[], None],
        sweep: Callable[[float], None],
        certificate: Certificate | None = None,
        reception: Reception | None = None,
    ) -> None:
        super().__init__(config)
        self._reception = reception or AllBegin()
        self._listener = listener
        self._registry = registry
        self._certificate = certificate
        self._ready, self._stopping, self._sweep = ready, stopping, sweep
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        if not self.started or self.should_exit:
            return
        self._intake = Intake(self._reception, asyncio.get_running_loop())
        accepting = accept(self._listener, self._registry, self._connection)
        self._tasks = [asyncio.create_task(accepting), asyncio.create_task(self._sweeping())]
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        self._registry.draining = True
        await _ended(self._tasks[:1])  # it accepts; told to end while it started, there is none
        self._listener.close()
        await super().shutdown([])
        await _ended(self._tasks[1:])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; at a second one end at once: nothing is written that could be lost."""
        if self.should_exit:
            signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)
        super().handle_exit(sig, frame)

    def _connection(self, sock: socket.socket) -> BoundedReads:
        state = self.server_state
        connection = Connection(
            self.config, state, self.lifespan.state, self._registry, self._intake
        )
        if self._certificate is None:
            return BoundedReads(connection, sock)
        return EncryptedReads(connection, sock, self._certificate.context)

    async def _sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                self._registry.sweep(loop.time())
                self._sweep(loop.time())
            except Exception:  # noqa: BLE001  without it nothing would ever be cut off again
                _log.exception("a look at the connections failed")


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
