"""uvicorn's server with our own connections: it accepts them, and ends when it gets a signal.

Requests are answered from the moment the socket is open; steps of the start that take long run beside them.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn

from server.transport.accepting import accept
from server.transport.arrivals import ArrivalTimes
from server.transport.certificate import Certificate
from server.transport.connection import Connection, Request
from server.transport.encryption import Encrypted
from server.transport.intake import Intake, Reception
from server.transport.registry import Registry, Visitor

_log = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.25
_SAME_SIGNAL_SECONDS = 0.1


class Server(uvicorn.Server):
    """Answers requests on ``listener`` with ``answer``, encrypted if there is a ``certificate``.

    Of the application in ``config`` it runs only the lifespan. ``begin`` runs once requests are accepted;
    an error of it ends the server, and ``run_until_told`` raises it. It is cancelled when the server ends
    before. ``stopping`` is called when no more requests are accepted, ``sweep`` every quarter of a second
    with the time of the loop, from the start to the end of draining. ``reception``: knows deadlines of
    requests; None: every request begins at once. ``waits``: clients wait until ``begin`` has ended, and if
    it fails, for the next server: the service manager keeps the listener open.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        registry: Registry,
        *,
        answer: Callable[[Request], Awaitable[None]],
        begin: Callable[[], Awaitable[None]],
        stopping: Callable[[], None],
        sweep: Callable[[float], None],
        certificate: Certificate | None = None,
        reception: Reception | None = None,
        waits: bool = False,
    ) -> None:
        super().__init__(config)
        self._waits = waits
        self._answer, self._reception = answer, reception
        self._arrivals = ArrivalTimes()
        self._listener = listener
        self._registry = registry
        self._certificate = certificate
        self._begin, self._stopping, self._sweep = begin, stopping, sweep
        self._beginning: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._told_at: float | None = None
        self._intake: Intake | None = None

    async def run_until_told(self) -> None:
        """Serve until a signal comes, then drain; raises the error of ``begin``."""
        await self.serve()
        if self._beginning is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._beginning

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        if not self.started or self.should_exit:
            return
        if self._reception is not None:
            self._intake = Intake(self._reception, asyncio.get_running_loop())
        self._beginning = asyncio.create_task(self._begun())
        accepting = asyncio.create_task(self._accepting(self._beginning))
        self._tasks = [accepting, asyncio.create_task(self._sweeping())]

    async def _begun(self) -> None:
        try:
            await self._begin()
        except Exception:
            self.should_exit = True
            raise

    async def _accepting(self, beginning: asyncio.Task[None]) -> None:
        if self._waits:
            await asyncio.wait({beginning})
        if not self.should_exit:
            await accept(self._listener, self._registry, self._connection)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        self._registry.draining = True
        if self._beginning is not None:
            await _ended([self._beginning])
        await _ended(self._tasks[:1])  # the one that accepts; none if the start was interrupted
        self._listener.close()
        await super().shutdown([])
        await _ended(self._tasks[1:])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; end at once at a second one, since no written data could be lost.

        A signal within a tenth of a second counts as the same: GNU timeout sends it to the process, then to
        its group.
        """
        now = time.monotonic()
        if self._told_at is None:
            self._told_at = now
            super().handle_exit(sig, frame)
        elif now - self._told_at >= _SAME_SIGNAL_SECONDS:
            _log.warning("told to stop a second time: ending at once")
            signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)

    def _connection(self, visitor: Visitor, *, has_place: bool) -> asyncio.BaseProtocol:
        answer, certificate = self._answer, self._certificate
        connection = Connection(
            *(answer, self.server_state, self._registry, self._intake),
            visitor=visitor,
            has_place=has_place,
            arrivals=self._arrivals,
        )
        return connection if certificate is None else Encrypted(connection, certificate.context)

    async def _sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                self._arrivals.compare()
                self._registry.sweep(loop.time())
                self._sweep(loop.time())
            except Exception:  # noqa: BLE001  without this task no connection would be cut off again
                _log.exception("a look at the connections failed")


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
