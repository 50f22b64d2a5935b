"""What the event loop sees of a connection: how much may be read at a time."""

import asyncio
from typing import cast

from server.transport.connection import Connection
from server.transport.limits import READ_BYTES

# Between get_buffer and buffer_updated nothing else runs: all connections may share one.
BUFFER = memoryview(bytearray(READ_BYTES))
# For what nobody keeps: the rest of a body that was refused is gone in few turns of the loop.
_SINK = memoryview(bytearray(16 * READ_BYTES))


class BoundedReads(asyncio.BufferedProtocol):
    """A protocol of its own, since to event loops one is of one kind or the other."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.connection_made(cast(asyncio.Transport, transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return _SINK if self._connection.discards else BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        buffer = _SINK if self._connection.discards else BUFFER
        self._connection.data_received(bytes(buffer[:nbytes]))
