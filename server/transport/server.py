"""uvicorn's server with our own connections: it accepts them, gives them places, and ends with an event.

Requests are answered from the moment the socket is open; steps of the start that take long run beside them.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import uvicorn

from server.errors import system_hint
from server.transport.certificate import Certificate
from server.transport.connection import Connection
from server.transport.intake import Intake, Reception
from server.transport.newcomers import AcceptQueue, Newcomer, rare_warning
from server.transport.registry import CHECK_SECONDS, Registry
from server.transport.sockets import Arrival

_log = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.25
_BATCH = 64
_RETRY_SECONDS = 0.2


class Acceptor:
    """Accepts the clients of ``listener``; ``create`` makes the protocol of a socket.

    It does not use a server of the event loop: uvloop's closes its listener for good where the system has
    no memory for a connection, as in a full control group, and what asyncio's and uvloop's do without
    descriptors frees none. ``spare`` does.
    """

    def __init__(
        self,
        listener: socket.socket,
        create: Callable[[socket.socket], asyncio.BaseProtocol],
        spare: Callable[[float], object],
    ) -> None:
        self._listener, self._create, self._spare = listener, create, spare
        self._loop = asyncio.get_running_loop()
        self._warn = rare_warning()
        self._coming: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Accept from now on."""
        self._loop.add_reader(self._listener, self._accept)

    async def end(self) -> None:
        """Accept no more; return when what was accepted has its protocol."""
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        if self._coming:
            await asyncio.wait(self._coming)

    def _accept(self) -> None:
        # With one a turn, the last would wait for seconds on a busy event loop.
        for _ in range(_BATCH):
            try:
                sock, _address = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return  # there are no more; a client has left before
            except OSError as exc:
                # There is no descriptor or no memory: a silent connection is closed to free one.
                self._warn(f"cannot accept connections: {exc.strerror or exc}{system_hint(exc)}")
                self._spare(self._loop.time())
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(_RETRY_SECONDS, self.begin)
                return
            task = self._loop.create_task(self._connect(sock))
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)

    async def _connect(self, sock: socket.socket) -> None:
        """Make a connection of ``sock``. Never cancel it: uvloop would close one that is half made."""
        try:
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(partial(self._create, sock), sock)
        except OSError:
            sock.close()  # the client left


async def admit_newcomers(registry: Registry) -> None:
    """Let newcomers in whenever a place may have come free, and regularly while some wait; runs on."""
    loop = asyncio.get_running_loop()
    while True:
        registry.changed.clear()
        try:
            registry.check(loop.time())
        except Exception:  # noqa: BLE001  without this task no newcomer would ever be let in again
            _log.exception("a look at the newcomers failed")
        # Not wait_for, which forgets that it was cancelled where a place comes free in the same moment.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS if registry.waiting else None):
                await registry.changed.wait()


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
        self._listener = listener
        self._registry = registry
        self._certificate = certificate
        self._begin, self._stopping = begin, stopping
        self._beginning: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._intake: Intake | None = None
        self._acceptor: Acceptor | None = None

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
        queue = AcceptQueue(self.server_state, self._registry, self._connection, self._certificate)
        create = partial(Newcomer, queue)
        self._acceptor = Acceptor(self._listener, create, self._registry.spare)
        self._beginning = asyncio.create_task(self._begun())
        accepting = self._accepting(self._acceptor, self._beginning)
        work = accepting, self._sweeping(), admit_newcomers(self._registry)
        self._tasks = [asyncio.create_task(step) for step in work]

    async def _begun(self) -> None:
        try:
            await self._begin()
        except Exception:
            self.should_exit = True
            raise

    async def _accepting(self, acceptor: Acceptor, beginning: asyncio.Task[None]) -> None:
        if self._waits:
            await asyncio.wait({beginning})
        if not self.should_exit:
            acceptor.begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        self._registry.drain()
        if self._beginning is not None:
            await _ended([self._beginning])
        if self._acceptor is not None:  # None if the start was interrupted
            await _ended(self._tasks[:1])
            await self._acceptor.end()
        self._listener.close()
        await super().shutdown([])
        await _ended(self._tasks[1:])

    def _connection(self, arrival: Arrival) -> Connection:
        app, state = self.config.loaded_app, self.server_state
        return Connection(app, state, self._registry, self._intake, arrival=arrival)

    async def _sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                self._registry.sweep(loop.time())
            except Exception:  # noqa: BLE001  without this task no connection would be cut off again
                _log.exception("a look at the connections failed")


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
