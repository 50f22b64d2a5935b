"""TLS of one connection, between the event loop and the HTTP connection.

The TLS of event loops takes a quarter of a MiB of buffers a connection, and shows a connection only after
its handshake. Here the registry counts a connection from its first byte: the handshake has the time limit
of a header, the connection may give way to another, and no more is read or decrypted than HTTP asks for.
"""

import asyncio
import contextlib
import ssl
from typing import Any, cast

from server.faults import Code
from server.transport.connection import BUFFER, Connection
from server.transport.http1 import refused
from server.transport.limits import READ_BYTES

# So much of an answer is encrypted at a time.
_WRITE_BYTES = 4 * READ_BYTES
_PLAIN = "this port speaks TLS: https://"


class Encrypted(asyncio.Transport, asyncio.BufferedProtocol):
    """A protocol for the event loop, and a transport of plain bytes for ``connection``."""

    def __init__(self, connection: Connection, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shaken = self._ended = False
        # Whether HTTP wants no more bytes; whether nothing can be sent for now, of the handshake neither.
        self._paused = self._blocked = False

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._connection.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the session now: the garbage collector would find thousands of handshakes too late."""
        self._connection.connection_lost(exc)
        self._ended = True
        del self._tls, self._incoming, self._outgoing

    def get_buffer(self, sizehint: int) -> memoryview:
        return BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        if not self._ended:  # after the end bytes are dropped
            self._incoming.write(BUFFER[:nbytes])
            self._advance()

    def pause_writing(self) -> None:
        self._block(True)
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._block(False)
        self._connection.resume_writing()

    def _block(self, blocked: bool) -> None:
        """Read only while bytes can be sent: a client that asks for new keys would fill memory."""
        self._blocked = blocked
        self._read_on()

    # What the connection calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._shaken or self._ended or self._raw.is_closing():
            return
        plain = memoryview(data)
        for start in range(0, len(plain), _WRITE_BYTES):
            self._tls.write(plain[start : start + _WRITE_BYTES])
            self._send()

    def write_eof(self) -> None:
        self._say_goodbye()
        self._raw.write_eof()
        self._read_on()

    def close(self) -> None:
        if not self._raw.is_closing():
            self._say_goodbye()
            self._raw.close()

    def abort(self) -> None:
        self._ended = True
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._paused = True
        self._read_on()

    def resume_reading(self) -> None:
        self._paused = False
        # Not at once: the caller does not expect data_received before this method returns.
        asyncio.get_running_loop().call_soon(self._advance)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._context
        return self._raw.get_extra_info(name, default)

    # Between the two

    def _advance(self) -> None:
        if not self._ended:
            self._decrypt()
        self._read_on()

    def _decrypt(self) -> None:
        """Go on with the handshake, then hand on decrypted bytes as long as they are wanted."""
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
            while not (self._paused or self._ended or self._raw.is_closing()):
                plain = self._tls.read(READ_BYTES)
                if not plain:
                    raise ssl.SSLZeroReturnError
                self._connection.data_received(plain)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.close()  # the client has ended the session
        except ssl.SSLError as exc:
            self._fail(exc)
        self._send()

    def _fail(self, exc: ssl.SSLError) -> None:
        """End a connection without valid TLS, with the alert that OpenSSL has for it."""
        self._ended = True
        if exc.reason == "HTTP_REQUEST":
            usual = self._connection.state.default_headers
            self._raw.write(refused(Code.INVALID_REQUEST, _PLAIN, usual))
        self._send()
        self._raw.close()

    def _say_goodbye(self) -> None:
        """Send close_notify, which tells the client that nothing was cut off; do not wait for its own."""
        if self._ended:
            return
        self._ended = True
        if self._shaken:
            with contextlib.suppress(ssl.SSLError):  # the client's close_notify has not come yet
                self._tls.unwrap()
            self._send()

    def _send(self) -> None:
        data = self._outgoing.read()
        if data and not self._raw.is_closing():
            self._raw.write(data)

    def _read_on(self) -> None:
        if self._raw.is_closing():
            return
        if not self._ended and (self._paused or self._blocked):
            self._raw.pause_reading()
        else:
            self._raw.resume_reading()
