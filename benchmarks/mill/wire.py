"""One connection of the mill, on asyncio: may start anywhere, stall, read nothing and break off."""

import asyncio
import socket
from types import TracebackType
from typing import Self

from benchmarks.load.messages import Response, ResponseReader

_READ_BYTES = 1 << 16


class Wire:
    """A TCP connection to 127.0.0.1; sends any bytes, legal or not.

    Methods raise OSError when the connection breaks, ConnectionError when the server ended it.
    """

    def __init__(self, has_body: bool = True) -> None:
        self._reader = ResponseReader(has_body)
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def connect(self, port: int, source: str, receive_buffer: int | None = None) -> Self:
        """Connect from ``source``; a small ``receive_buffer`` (bytes) makes the server wait."""
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_buffer is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self._socket.bind((source, 0))
            await asyncio.get_running_loop().sock_connect(self._socket, ("127.0.0.1", port))
        except BaseException:
            self.close()
            raise
        return self

    async def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self) -> Response:
        """Return the next answer; raises ValueError when what comes is not HTTP."""
        response = self._reader.feed(b"")
        while response is None:
            data = await asyncio.get_running_loop().sock_recv(self._socket, _READ_BYTES)
            response = self._reader.feed(data) if data else self._reader.end()
            if response is None and not data:
                raise ConnectionError("the server closed the connection")
        return response

    async def ask(self, request: bytes) -> Response:
        """Send ``request`` and return its answer."""
        await self.send(request)
        return await self.receive()

    def has_ended(self) -> bool:
        """Return whether the server closed the connection while nothing was asked."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def reset(self) -> None:
        """Close with a reset instead of a farewell."""
        linger_nothing = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_nothing)
        self.close()

    def close(self) -> None:
        """Close; again is nothing."""
        self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
