"""One kept connection of a client that never blocks, and what is counted of the answers to many.

A selector says when a connection may go on. Delays count from sending to the moment in which this process
has read the answer; how long that waited to be read, the kernel says.
"""

import contextlib
import errno
import os
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.load.messages import Response, ResponseReader
from benchmarks.load.percentiles import summary_ms

_READ_BYTES = 1 << 18
# SO_TIMESTAMPNS of asm-generic/socket.h: the kernel notes when bytes come, by the clock of the day.
_TIMESTAMP = 35
_TIMESPEC = struct.Struct("@ll")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


def receive_all(
    selector: selectors.BaseSelector, seconds: float
) -> Iterator[tuple["KeptConnection", "Response | None"]]:
    """Let connections of ``selector`` go on, waiting up to ``seconds``; yield what has come.

    A whole answer with its connection, and None with one that broke.
    """
    for key, events in selector.select(max(0.0, seconds)):
        client: KeptConnection = key.data
        try:
            if events & selectors.EVENT_WRITE:
                client.write()
            response = client.receive() if events & selectors.EVENT_READ else None
        except OSError:
            yield client, None
            continue
        if response is not None:
            yield client, response


def _came_at(ancillary: Iterable[tuple[int, int, bytes]], sent_at: float) -> float:
    """Return when bytes came, on perf_counter's clock: as the kernel noted it, if that can be, else now."""
    now = time.perf_counter()
    ahead = time.time() - now  # noqa: TID251  the clock of the stamps
    for _, kind, data in ancillary:
        if kind == _TIMESTAMP and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            stamp = seconds + nanoseconds * 1e-9 - ahead
            return float(min(stamp, now)) if stamp >= sent_at else now
    return now


class KeptConnection:
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
        #: When the kernel had the last part of the answer, which this process may have read later.
        self.came_at = 0.0
        self.is_busy = False
        self.socket = socket.socket()
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):  # emulators have no such option
                self.socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)
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
            data, ancillary, _, _ = self.socket.recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except BlockingIOError:
            return None
        self.came_at = _came_at(ancillary, self.sent_at)
        response = self._reader.feed(data) if data else self._reader.end()
        if response is None and not data:
            raise ConnectionError("the server closed the connection")
        if response is not None:
            self.is_busy = False
        return response

    def again(self, request: bytes) -> None:
        """Send ``request`` on a new connection in place of this one."""
        self.close()
        KeptConnection(self._selector, self._port, self._source).send(request)

    @property
    def is_reusable(self) -> bool:
        """Return whether the whole request was sent: else the rest would be taken for the next one."""
        return not self._unsent

    def close(self) -> None:
        """Close at once."""
        if self.socket.fileno() >= 0:
            self._selector.unregister(self.socket)
            self.socket.close()


# Refused to make room for others: what a client may try again.
_REFUSALS = {429, 503}


class Answers:
    """What came of requests: statuses and delays. ``deadline``: in seconds, what comes later is late."""

    def __init__(self, deadline: float | None = None) -> None:
        self.statuses: Counter[str] = Counter()
        self._deadline = deadline
        self._accepted: list[float] = []
        self._refused: list[float] = []
        self._unread: list[float] = []
        self._late_in_kernel = 0

    def count(self, status: int, client: KeptConnection) -> None:
        """Count the answer that ``client`` has just read."""
        now = time.perf_counter()
        self.statuses[str(status)] += 1
        self._unread.append(now - client.came_at)
        if status in _REFUSALS:
            self._refused.append(now - client.sent_at)
        elif status == 200:
            self._accepted.append(now - client.sent_at)
            if self._deadline is not None:
                self._late_in_kernel += client.came_at - client.sent_at > self._deadline

    def figures(self) -> dict[str, Any]:
        """Return them; ``unread``: how long answers waited for this process.

        With a deadline also how many of the accepted were late, as this process counts, and as one would
        that reads at once.
        """
        found: dict[str, Any] = {
            "statuses": dict(self.statuses),
            "accepted": summary_ms(self._accepted),
            "refused": summary_ms(self._refused),
            "unread": summary_ms(self._unread),
        }
        if self._deadline is not None:
            after = [delay - self._deadline for delay in self._accepted if delay > self._deadline]
            found["late"] = summary_ms(after)
            found["late_if_read_at_once"] = self._late_in_kernel
        return found
