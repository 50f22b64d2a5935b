"""Clients and their connections: bytes come in pieces, with delays; a client may leave at any time."""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from server.transport.connection import Connection
from server.transport.giving_way import Peer
from server.transport.registry import Registry
from server.transport.sockets import Arrival

#: Makes the protocol of a connection.
Create = Callable[[Arrival], Connection]


class Wire(asyncio.Transport):
    """The server's end of a connection; what it writes is ``sent``, ``read_delay`` seconds later."""

    def __init__(self, address: str, read_delay: float) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._read_delay = read_delay
        self.sent = bytearray()
        self.news = asyncio.Event()
        self.protocol: Any = None
        self.is_closed = False
        self._is_paused = False
        self._unread = bytearray()
        #: What came before the connection began.
        self.early = bytearray()
        self._unsent = bytearray()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return addresses."""
        return {"peername": (self._address, 1), "sockname": ("127.0.0.1", 80)}.get(name, default)

    @property
    def has_unread(self) -> bool:
        """Whether bytes have come that were not read."""
        return bool(self._unread or self.early)

    def deliver(self, data: bytes) -> None:
        """Have ``data`` arrive."""
        self._unread += data
        self._read()

    def _read(self) -> None:
        while self._unread and not (self._is_paused or self.is_closed):
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(self._unread))
            buffer[:count] = self._unread[:count]
            del self._unread[:count]
            self.protocol.buffer_updated(count)

    def write(self, data: Any) -> None:
        """Send ``data`` at once, or when the client takes it."""
        if self.is_closed:
            return
        if not self._read_delay:
            self.sent += data
            self.news.set()
            return
        if not self._unsent:
            self._loop.call_later(self._read_delay, self._take)
            self.protocol.pause_writing()
        self._unsent += data

    def _take(self) -> None:
        self.sent += self._unsent
        self._unsent.clear()
        self.news.set()
        if not self.is_closed:
            self.protocol.resume_writing()

    def write_eof(self) -> None:
        """Send no more; the client closes."""
        self._loop.call_soon(self.close)

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def get_write_buffer_size(self) -> int:
        """Return how much the client has not taken."""
        return len(self._unsent)

    def pause_reading(self) -> None:
        """Read no more."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Read again."""
        self._is_paused = False
        self._loop.call_soon(self._read)

    def is_closing(self) -> bool:
        """Return whether it is closed."""
        return self.is_closed

    def close(self) -> None:
        """Close it, by either end."""
        self._end(None)

    abort = close

    def reset(self) -> None:
        """Have the client's system cut it off."""
        self._end(ConnectionResetError("reset"))

    def half_close(self) -> None:
        """Have the client send no more."""
        if not self.is_closed and self.protocol is not None and not self.protocol.eof_received():
            self.close()

    def _end(self, error: Exception | None) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.sent += self._unsent
            self.news.set()
            if self.protocol is not None:
                self._loop.call_soon(self.protocol.connection_lost, error)


class Client:
    """A client with one connection, which waits for a place where there is none."""

    def __init__(
        self, registry: Registry, create: Create, address: str, read_delay: float = 0.0
    ) -> None:
        self._registry, self._create = registry, create
        self.wire = Wire(address, read_delay)
        self.peer: Peer = registry.peer(address)
        self._address = address
        self._early = self.wire.early
        self._read_to = 0
        self._is_connected = False
        #: Whether the last answer came while the client waited for it.
        self.has_waited = False
        #: When the first bytes of its first request were read.
        self.read_at: float | None = None
        registry.arrive(self, asyncio.get_running_loop().time())

    # As a newcomer

    def has_request(self) -> bool:
        """Return whether the head of a request has come."""
        return b"\r\n\r\n" in self._early

    def admit(self) -> Connection:
        """Begin."""
        return self._connect(is_admitted=True)

    def reject(self) -> None:
        """Refuse its request."""
        self._connect(is_admitted=False)

    def _connect(self, *, is_admitted: bool) -> Connection:
        arrival = Arrival(self.peer, (self._address, 1), is_admitted)
        connection = self.wire.protocol = self._create(arrival)
        self._is_connected = True
        connection.connection_made(self.wire)
        asyncio.get_running_loop().call_soon(self._deliver)
        return connection

    def _deliver(self) -> None:
        early = bytes(self._early)
        self._early.clear()
        if early:
            self._give(early)

    # As a client

    def send(self, data: bytes) -> None:
        """Send ``data``."""
        if self._is_connected and not self._early:
            self._give(data)
        else:
            self._early += data

    def _give(self, data: bytes) -> None:
        if self.read_at is None:
            self.read_at = asyncio.get_running_loop().time()
        self.wire.deliver(data)

    def leave(self, manner: Literal["close", "half", "reset"] = "close") -> None:
        """Close the connection, in that ``manner``."""
        if not self._is_connected:
            self._registry.withdraw(self)
            self.wire.close()
        elif manner == "half":
            self.wire.half_close()
        elif manner == "reset":
            self.wire.reset()
        else:
            self.wire.close()

    async def answer(self) -> tuple[int, bytes] | None:
        """Return status and body of the next answer; None: the connection ended without one."""
        wire, self.has_waited = self.wire, False
        while (answer := self._next()) is None:
            self.has_waited = True
            if wire.is_closed:
                return None
            wire.news.clear()
            await wire.news.wait()
        return answer

    def _next(self) -> tuple[int, bytes] | None:
        head, end, rest = bytes(self.wire.sent[self._read_to :]).partition(b"\r\n\r\n")
        if not end:
            return None
        lines = head.lower().split(b"\r\n")
        lengths = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
        length = lengths[0] if lengths else 0
        if len(rest) < length:
            return None
        self._read_to += len(head) + 4 + length
        return int(head[9:12]), rest[:length]
