"""uvicorn's server with our own connections: it accepts them, and ends when an event is set.

Requests are answered from the moment the socket is open; steps of the start that take long run beside them.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from server.transport.accepting import accept
from server.transport.arrivals import ArrivalTimes
from server.transport.certificate import Certificate
from server.transport.connection import Connection
from server.transport.encryption import Encrypted
from server.transport.intake import Intake, Reception
from server.transport.registry import Registry, Visitor

_log = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.25


class Server(uvicorn.Server):
    """Answers requests on ``listener`` with the application in ``config``.

    They are encrypted if there is a ``certificate``. ``begin`` runs once requests are accepted; an error of
    it ends the server, and ``run_until`` raises it. It is cancelled when the server ends before.
    ``stopping`` is called when no more requests are accepted. ``reception``: knows deadlines of requests;
    None: every request begins at once. ``waits``: clients wait until ``begin`` has ended, and if it fails,
    for the next server: the service manager keeps the listener open.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        registry: Registry,
        *,
        begin: Callable[[], Awaitable[None]],
        stopping: Callable[[], None],
        certificate: Certificate | None = None,
        reception: Reception | None = None,
        waits: bool = False,
    ) -> None:
        super().__init__(config)
        self._waits = waits
        self._reception = reception
        self._arrivals = ArrivalTimes()
        self._listener = listener
        self._registry = registry
        self._certificate = certificate
        self._begin, self._stopping = begin, stopping
        self._beginning: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._intake: Intake | None = None

    async def run_until(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then drain; raises the error of ``begin``."""
        stopping = asyncio.create_task(self._exit_at(stop))
        try:
            await self.serve()
        finally:
            await _ended([stopping])
        if self._beginning is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._beginning

    async def _exit_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller, who has an event for them."""
        yield

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

    def _connection(self, visitor: Visitor, *, has_place: bool) -> asyncio.BaseProtocol:
        certificate = self._certificate
        connection = Connection(
            self.config.loaded_app,
            self.server_state,
            self._registry,
            self._intake,
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
            except Exception:  # noqa: BLE001  without this task no connection would be cut off again
                _log.exception("a look at the connections failed")


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
