"""One kept connection of a client that never blocks; a selector says when it may go on."""

import contextlib
import errno
import os
import selectors
import socket
import time

from benchmarks.load.messages import Response, ResponseReader

_READ_BYTES = 1 << 18


class Kept:
    """Sends a request, gives the answer; at most one request at a time.

    Every method but ``close`` raises OSError when the connection breaks, ``receive`` ConnectionError when
    the server ends it without an answer.
    """

    def __init__(
        self, selector: selectors.BaseSelector, port: int, source: str = "127.0.0.1"
    ) -> None:
        self._selector, self._port, self._source = selector, port, source
        self._reader = ResponseReader()
        self._unsent = memoryview(b"")
        self.sent_at = 0.0
        self.is_busy = False
        self.socket = socket.socket()
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.bind((source, 0))
            self.socket.setblocking(False)
            code = self.socket.connect_ex(("127.0.0.1", port))
            if code not in {0, errno.EINPROGRESS}:
                raise OSError(code, os.strerror(code))
            selector.register(self.socket, selectors.EVENT_READ, self)
        except BaseException:
            self.socket.close()
            raise

    def send(self, request: bytes) -> None:
        """Start to send ``request``."""
        self.is_busy, self.sent_at = True, time.perf_counter()
        self._unsent = memoryview(request)
        self.write()

    def write(self) -> None:
        """Send what the socket takes of what is left, and watch for room as long as there is more."""
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self.socket).events != wanted:
            self._selector.modify(self.socket, wanted, self)

    def receive(self) -> Response | None:
        """Read what is there; return the answer once it is whole."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        response = self._reader.feed(data) if data else self._reader.end()
        if response is None and not data:
            raise ConnectionError("the server closed the connection")
        if response is not None:
            self.is_busy = False
        return response

    def again(self, request: bytes) -> None:
        """Send ``request`` on a new connection in place of this one."""
        self.close()
        Kept(self._selector, self._port, self._source).send(request)

    @property
    def is_reusable(self) -> bool:
        """Return whether the whole request was sent: else the rest would be taken for the next one."""
        return not self._unsent

    def close(self) -> None:
        """Close at once."""
        if self.socket.fileno() >= 0:
            self._selector.unregister(self.socket)
            self.socket.close()
