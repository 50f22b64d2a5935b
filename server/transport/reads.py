"""What the event loop sees of a connection: how much may be read at a time, and when it came."""

import asyncio
import contextlib
import socket
import struct
import time
from typing import cast

from server.transport.connection import Connection
from server.transport.limits import READ_BYTES

# Between get_buffer and buffer_updated nothing else runs: all connections may share one.
BUFFER = memoryview(bytearray(READ_BYTES))
# For what nobody keeps: the rest of a body that was refused is gone in few turns of the loop.
_SINK = memoryview(bytearray(16 * READ_BYTES))

# SO_TIMESTAMPNS of asm-generic/socket.h: the kernel says when what is read has come.
_TIMESTAMP = 35
_TIMESPEC = struct.Struct("@ll")
# When nothing could be read so long ago, nothing has waited for longer.
_EXACT_SECONDS = 0.002
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


def stamp_arrivals(sock: socket.socket) -> None:
    """Have the kernel note when bytes come to ``sock``, and to what it accepts; emulators cannot."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)


def came_at(sock: socket.socket) -> float | None:
    """Return when the first byte that waits in ``sock`` came, on time.monotonic's clock.

    None: nothing waits, or nobody has noted it (as of Unix sockets). What waits as one may have come in
    parts, and then it is when the last of them did.
    """
    try:
        _, ancillary, _, _ = sock.recvmsg(1, _ANCILLARY_BYTES, socket.MSG_PEEK)
    except OSError:
        return None
    for _, kind, data in ancillary:
        if kind == _TIMESTAMP and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            age = time.time() - float(seconds) - nanoseconds * 1e-9
            return time.monotonic() - max(float(age), 0.0)
    return None


class BoundedReads(asyncio.BufferedProtocol):
    """A protocol of its own, since to event loops one is of one kind or the other."""

    def __init__(self, connection: Connection, sock: socket.socket) -> None:
        self._connection = connection
        self._socket = sock
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.connection_made(cast(asyncio.Transport, transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        self.stamp()
        return _SINK if self._connection.discards else BUFFER

    def stamp(self) -> None:
        """Tell the connection when what it reads next came, if a request begins with it."""
        connection = self._connection
        if connection.awaits_request:
            looked_at = connection.looked_at
            # The kernel knows exactly, but asking it takes as long as a hundredth of a short request.
            # What a newcomer sends may have waited with it at the door.
            is_exact = connection.used and time.monotonic() - looked_at < _EXACT_SECONDS
            connection.came_at = looked_at if is_exact else came_at(self._socket)

    def buffer_updated(self, nbytes: int) -> None:
        buffer = _SINK if self._connection.discards else BUFFER
        self._connection.data_received(bytes(buffer[:nbytes]))
