"""Connections before they have a place: first the PROXY header, then the accept queue.

Nothing is read behind that header, and next to nothing of one that waits. A connection that has a place, or
has found none in time, is handed to the protocol that answers its requests.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, cast

from uvicorn.server import ServerState

from server.faults import Code
from server.transport.certificate import Certificate
from server.transport.connection import Connection
from server.transport.encryption import Encrypted
from server.transport.http1 import refused
from server.transport.limits import GRACE_SECONDS, PARTING_SECONDS
from server.transport.proxy_protocol import (
    HEADER_BYTES,
    ProxyHeaderError,
    missing_bytes,
    read_header,
)
from server.transport.registry import Registry
from server.transport.sockets import Arrival, address, has_request

_log = logging.getLogger(__name__)

# All that newcomers send is read into this.
_BUFFER = memoryview(bytearray(HEADER_BYTES))
# Event loops begin to read behind ``connection_made``, and so much may come before reading is paused.
_EARLY_BYTES = 512
_QUIET_SECONDS = 60.0
# The address of a client that its proxy does not name: one that is never taken for this machine's.
_UNKNOWN = ("", 0)
_LATE = "the PROXY header did not come in time (setting proxy_protocol)"


def rare_warning() -> Callable[[str], None]:
    """Return a function that logs a warning, at most one a minute."""
    loop, logged_at = asyncio.get_running_loop(), float("-inf")

    def warn(message: str) -> None:
        nonlocal logged_at
        if loop.time() - logged_at >= _QUIET_SECONDS:
            logged_at = loop.time()
            _log.warning("%s", message)

    return warn


class AcceptQueue:
    """What all newcomers share: the places in ``registry``, and those whose PROXY header has not come.

    ``state``: the connections for which uvicorn waits when it ends. ``create``: makes the connection of a
    client, which is encrypted if there is a ``certificate``.
    """

    def __init__(
        self,
        state: ServerState,
        registry: Registry,
        create: Callable[[Arrival], Connection],
        certificate: Certificate | None = None,
    ) -> None:
        self.state, self.registry, self.create = state, registry, create
        self.certificate = certificate
        self.announcing: dict[Newcomer, None] = {}
        self.warn = rare_warning()


class Newcomer(asyncio.BufferedProtocol):
    """A connection of ``sock`` up to its place."""

    def __init__(self, queue: AcceptQueue, sock: socket.socket) -> None:
        self._queue, self._sock = queue, sock
        self._loop = asyncio.get_running_loop()
        # Of the PROXY header, or read too early.
        self._early = b""
        # When its request was noticed; 0: it was not.
        self._noticed_at = 0.0
        self._waits = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        queue, self._client = self._queue, address(self.transport, "peername")
        queue.state.connections.add(cast(Any, self))
        unknown = "" if self._sock.family == socket.AF_UNIX else "unknown"
        self.peer = queue.registry.peer(self._client[0] if self._client else unknown)
        limits = queue.registry.limits
        if not (self.peer.is_proxy and limits.announced):
            self._arrive()
            return
        queue.announcing[self] = None
        self._set_timer(limits.header_seconds, self._expire)
        if len(queue.announcing) > limits.waiting:
            next(iter(queue.announcing))._expire()

    def connection_lost(self, exc: Exception | None) -> None:
        self._queue.announcing.pop(self, None)
        self._queue.registry.withdraw(self)
        self._forget()

    def shutdown(self) -> None:
        """End soon, as the server does: a header on its way has as long as a request."""
        if self in self._queue.announcing:
            self._set_timer(PARTING_SECONDS, self.transport.close)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self in self._queue.announcing:
            return _BUFFER[: missing_bytes(self._early)]
        return _BUFFER[:_EARLY_BYTES] if self._waits else _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        if self in self._queue.announcing:
            self._early += _BUFFER[:nbytes]
            self._read_header()
        elif self._waits:
            self._early += _BUFFER[:nbytes]
            self.transport.pause_reading()
        # Else it was refused: closing while bytes come would reset the connection, and lose the answer.

    # The PROXY header

    def _read_header(self) -> None:
        try:
            header = read_header(self._early)
        except ProxyHeaderError as exc:
            self._refuse(Code.INVALID_REQUEST, str(exc))
            return
        if header is None:
            return
        del self._queue.announcing[self]
        self._early, client = b"", header.client
        if client is None or ip_address(client[0]).is_loopback:  # a loopback one is the proxy's
            self._client = _UNKNOWN
        else:
            self._client, self.peer = client, self._queue.registry.peer(client[0])
        self._arrive()

    def _expire(self) -> None:
        self._refuse(Code.STALLED, _LATE)

    def _refuse(self, code: Code, why: str) -> None:
        """Send an error to the client, and log it."""
        del self._queue.announcing[self]
        self._queue.warn(f"from the proxy {self.peer.name or '(Unix socket)'}: {why}")
        self.transport.write(refused(code, why))
        self.transport.write_eof()
        self._set_timer(GRACE_SECONDS, self.transport.abort)

    # The queue

    def _arrive(self) -> None:
        self._waits = True
        self._queue.registry.arrive(self, self._loop.time())
        if self._waits:
            self.transport.pause_reading()  # which loops forget that begin to read only now
            self._loop.call_soon(self._pause)

    def _pause(self) -> None:
        if self._waits:
            self.transport.pause_reading()

    def has_request(self) -> bool:
        has = has_request(self._sock, self._early)
        if has:
            self._noticed_at = time.monotonic()
        return has

    def admit(self) -> Connection:
        return self._follow(has_place=True)

    def reject(self) -> None:
        self._follow(has_place=False)

    def _follow(self, *, has_place: bool) -> Connection:
        """Hand it to the protocol that answers its requests; return what counts from now on."""
        self._waits = False
        self._forget()
        queue, transport = self._queue, self.transport
        connection = queue.create(Arrival(self.peer, self._client, has_place, self._noticed_at))
        certificate = queue.certificate
        protocol = Encrypted(connection, certificate.context) if certificate else connection
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._early:
            # Behind this call, since the connection is not counted yet; before anything else is read.
            self._loop.call_soon(_feed, protocol, transport, self._early)
        else:
            transport.resume_reading()
        return connection

    # Both

    def _set_timer(self, seconds: float, end: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, end)

    def _forget(self) -> None:
        self._queue.state.connections.discard(cast(Any, self))
        if self._timer is not None:
            self._timer.cancel()


def _feed(protocol: Connection | Encrypted, transport: asyncio.ReadTransport, data: bytes) -> None:
    """Have ``protocol`` read ``data``, and on, unless its client has left."""
    if not protocol.is_closing():
        transport.resume_reading()  # the protocol may pause it again
        protocol.get_buffer(-1)[: len(data)] = data
        protocol.buffer_updated(len(data))
