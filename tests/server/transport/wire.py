"""A connection on a transport that a test holds in its hands, and an application that it plays."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from server.requests.asgi_client import AsgiClient
from server.transport.connection import Connection
from server.transport.limits import READ_BYTES, ConnectionLimits
from server.transport.registry import Registry
from server.transport.sockets import Arrival

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LIMITS = ConnectionLimits(
    total=8, per_address=4, header_seconds=10.0, idle_seconds=75.0, stall_seconds=10.0
)


class FakeTransport(asyncio.Transport):
    """Keeps what is written, and what else is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.unsent_bytes = 0
        self.is_reading_paused = self.has_eof = self.is_closed = False
        self.aborts = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in {"peername", "sockname"} else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.has_eof, "nothing can be written behind the end"
        if data and not self.is_closing():
            self.writes.append(bytes(data))

    def write_eof(self) -> None:
        self.has_eof = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.aborts += 1

    def is_closing(self) -> bool:
        return self.is_closed or self.aborts > 0


class Wire:
    """One connection to ``app``; ``passed`` seconds have gone by since it was opened."""

    def __init__(
        self, app: Application, registry: Registry | None = None, has_place: bool = True
    ) -> None:
        self.registry = Registry(LIMITS) if registry is None else registry
        self.transport = FakeTransport()
        self.state = ServerState()
        arrival = Arrival(self.registry.peer("127.0.0.1"), ("127.0.0.1", 1), has_place)
        self.connection = Connection(app, self.state, self.registry, arrival=arrival)
        # A whole number, so that differences of times are exact.
        self._began = self.connection._since = float(round(self.connection.loop.time()))
        self.connection.loop.time = self._time  # type: ignore[method-assign]
        self.connection._clock = self._time
        self.passed = 0.0
        self._connect()
        if has_place:
            self.registry.add(self.connection)

    def _connect(self) -> None:
        self.connection.connection_made(self.transport)

    def _time(self) -> float:
        return self._began + self.passed

    async def sends(self, data: bytes) -> None:
        """Deliver ``data`` in reads as long as a real one, as far as it is read."""
        step = READ_BYTES
        for start in range(0, len(data), step):
            if self.transport.is_reading_paused or self.transport.is_closing():
                return
            self.connection.data_received(data[start : start + step])
        await self.settled()

    async def settled(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def time_passes(self, seconds: float) -> None:
        self.passed += seconds
        self.registry.sweep(self._time())
        await self.settled()

    async def is_lost(self) -> None:
        self.connection.connection_lost(None)
        await self.settled()

    @property
    def answer(self) -> bytes:
        return b"".join(self.transport.writes)

    def refused(self, status: int, *words: str) -> None:
        """Check that the answer is an error in our form and that the connection ends."""
        head, body = self.answer.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 %d " % status), head
        assert b"connection: close" in head
        message = json.loads(body)["error"]
        assert all(word in message for word in words), message
        assert self.transport.has_eof or self.transport.is_closed


def with_client(work: Callable[[AsgiClient], Awaitable[None]]) -> Application:
    """Return the application that does ``work`` with the client of each request."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await work(AsgiClient(scope, receive, send))

    return app


async def answers_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    """Says OK and looks at no body."""
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok", "more_body": False})


async def reads_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Never answers and asks for nothing."""
    await asyncio.Event().wait()


async def reads_all(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the length of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    text = str(size).encode()
    headers = [(b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text, "more_body": False})
