"""One HTTP connection: uvicorn's protocol, with bounds on what it holds and how long it may wait.

It differs in five things. It reads at most READ_BYTES at a time, and no further into a body than the
application asked for. A request begins when the intake lets it, and may be refused instead. A header has a
limit in bytes and in time. What ends before its request was read lingers, so that the client sees the
answer and no reset. It tells the registry how long it has been silent, and where a newcomer waits for its
place, the next answer says that it is the last. From a trusted proxy a request's client is the one that the
proxy names.
"""

import asyncio
import fcntl
import json
import termios
import time
from collections import deque
from http import HTTPStatus
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from server.transport.giving_way import Peer, Worth
from server.transport.intake import AllBegin, Intake
from server.transport.limits import (
    GRACE_SECONDS,
    HEADER_BYTES,
    HEADER_FIELDS,
    LEFT_OVER_PACE,
    LINGER_SECONDS,
    PIPELINED_REQUESTS,
    PROGRESS_BYTES,
)
from server.transport.registry import Registry

_NO_HEADER = "the header did not come in time"
_NO_BODY = "the body did not come in time, and others wait for the connection"
_NO_PLACE = "all connections are taken (setting max_connections)"
_STOPPING = "the server is stopping"


class Connection(HttpToolsProtocol):
    """A connection that ``registry`` counts; without ``has_place`` its request is refused.

    ``intake``: None lets every request begin at once.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        registry: Registry,
        intake: Intake | None = None,
        *,
        has_place: bool = True,
    ) -> None:
        super().__init__(config, state, app_state)
        self._registry = registry
        self._intake = Intake(AllBegin(), self.loop) if intake is None else intake
        self._complete: deque[RequestResponseCycle] = deque()
        self._has_place = has_place
        #: When the first byte that was not read yet came, where that is known; on time.monotonic's clock.
        self.came_at: float | None = None
        #: Whether what comes next begins a request.
        self.awaits_request = True
        self.peer = Peer("")
        self.used = False
        self._since = self.loop.time()
        self._heading = False
        self._header_bytes = 0
        self._body_bytes = 0  # since they last were progress
        self._left_over_bytes = 0  # of a body, behind the answer
        self._head = b""
        self._head_written = False
        self._blocked_since: float | None = None
        self._ended_at: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = self._registry.peer(self.client[0] if self.client else "")
        self._ending = cast(asyncio.Transport, _Ending(self))
        if self._has_place:
            self._registry.add(self)
        else:
            self._registry.end(self, self._since)

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.discard(self)
        super().connection_lost(exc)

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._ended_at is not None:
            return
        if not self._has_place:
            self._refuse(503, _STOPPING if self._registry.draining else _NO_PLACE)
            return
        self._header_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no other protocol is spoken; the request itself was parsed
        except httptools.HttpParserError as exc:
            refused = exc.__context__
            if isinstance(refused, _HeaderError):
                self._refuse(refused.status, str(refused))
            else:
                self._refuse(400, f"this is not an HTTP request: {str(exc)[:100]}")
            return
        self._offer()
        if self._header_bytes > HEADER_BYTES:
            self._refuse(431, f"the header is over the limit of {HEADER_BYTES} bytes")
        elif self._runs and self.cycle.more_body and self.cycle.body:
            self.flow.pause_reading()  # until the application asks for more

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]
        came_at, self.came_at, self.awaits_request = self.came_at, None, False
        arrived_at = time.monotonic() if came_at is None else came_at
        self.scope["arrived_at"] = arrived_at  # type: ignore[typeddict-unknown-key]
        self._heading = True
        self._since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= HEADER_FIELDS:
            raise _HeaderError(431, f"the header has over {HEADER_FIELDS} fields")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= PIPELINED_REQUESTS:
            raise _HeaderError(431, f"over {PIPELINED_REQUESTS} requests wait for one that runs")
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise _HeaderError(
                400, f"a request has one Host header, this one has {hosts or 'none'}"
            )
        self._heading = False
        if self.peer.is_proxy:
            client = self._registry.limits.proxies.client(self.headers)
            self.scope["client"] = (client, 0) if client else self.client
        super().on_headers_complete()
        self.cycle.transport = self._ending

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        # What is between parts of a body, or behind it, is counted like a header.
        self._header_bytes = 0
        if self._is_left_over:
            self._left_over_bytes += len(body)
            return
        self._body_bytes += len(body)
        if self._body_bytes >= PROGRESS_BYTES:
            self._body_bytes, self._since = 0, self.loop.time()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._header_bytes = 0

    # Beginning

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Have ``cycle`` offered to the intake once what was read has been parsed."""
        self._complete.append(cycle)

    def _offer(self) -> None:
        while self._complete:
            self._intake.take(_Arrived(self, self._complete.popleft()))

    def begin(self, cycle: RequestResponseCycle) -> None:
        """Have ``cycle`` answered, if anybody still waits for that."""
        if not cycle.disconnected:
            super()._start_asgi_task(cycle, self.app)

    def turn_away(self, cycle: RequestResponseCycle, answer: bytes) -> None:
        """Give ``cycle`` the bytes of an ``answer`` without beginning it; what comes of it is read past."""
        if cycle.disconnected:
            return
        cycle.response_started = cycle.response_complete = True
        self.transport.write(answer)
        if not cycle.keep_alive:
            self.end()
        self.on_response_complete()

    # Answering

    def write(self, data: bytes) -> None:
        """Write ``data``; the head of an answer goes with what follows it, as one segment."""
        if self._runs and self.cycle.response_started and not self._head_written:
            self._head_written, self._head = True, self._as_last(data)
            return
        self.transport.write(self._head + data)
        self._head = b""

    def _as_last(self, head: bytes) -> bytes:
        """Return the head of an answer, which says that it is the last where the place is wanted."""
        cycle = self.cycle
        if not cycle.keep_alive or self.pipeline:
            return head
        if not self._registry.wants_back(self, self.loop.time()):
            return head
        cycle.keep_alive = False
        return head[:-2] + b"connection: close\r\n\r\n"

    def flush(self) -> None:
        """Write the head of an answer that has no body."""
        if self._head:
            self.write(b"")

    def on_response_complete(self) -> None:
        """As uvicorn's, but for its timer: the registry ends every kind of waiting."""
        self.flush()
        self._head_written = False
        self.used = True
        self._since, self._left_over_bytes = self.loop.time(), 0
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self.awaits_request = not self.pipeline
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            self._offer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._blocked_since = None

    def end(self) -> None:
        """Close behind what was written; while the client still sends, read on without looking."""
        if self._ended_at is not None or self.transport.is_closing():
            return
        self.flush()
        cycle = self._latest
        is_read = cycle is not None and not cycle.more_body and not self._has_data()
        self.pipeline.clear()  # who asked behind the last answer gets none
        if is_read:
            self._close()
            return
        self._end()
        self.transport.write_eof()
        self.flow.resume_reading()

    def shutdown(self) -> None:
        """Close once nothing runs: the server ends."""
        if self._runs:
            super().shutdown()
        elif self._ended_at is None and not self._has_data():  # else it is answered first
            self._close()

    def _close(self) -> None:
        """Close behind what was written, for which the client has as long as one that lingers."""
        self._end()
        self.transport.close()

    def _end(self) -> None:
        self._ended_at = self.loop.time()
        self._registry.end(self, self._ended_at)

    @property
    def looked_at(self) -> float:
        """As Intake has it."""
        return self._intake.looked_at

    @property
    def discards(self) -> bool:
        """Whether what comes now belongs to a request that has had its answer."""
        return self._ended_at is not None or self._is_left_over

    @property
    def _is_left_over(self) -> bool:
        """Whether the last answer is complete and the rest of the body that it refused still comes."""
        latest = self._latest
        return latest is not None and latest.response_complete and latest.more_body

    @property
    def body_has_come(self) -> bool:
        """Whether the body of the request that runs is here to its end, or no more of it comes."""
        latest = self._latest  # None where it gave way before anybody asked for its body
        return latest is None or not latest.more_body

    def abort(self) -> None:
        """Cut the connection off."""
        self.transport.abort()

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self._ended_at is not None or self.transport.is_closing()

    def _refuse(self, status: int, message: str) -> None:
        """Answer what never became a whole request; an answer on its way is cut off instead."""
        if self._runs and (self.cycle.response_started or self.pipeline):
            self.transport.abort()
            return
        self._leave(status, message)
        self.end()

    def _leave(self, status: int, message: str) -> None:
        """Answer for whoever reads the request, who is told that there is no more to come."""
        if self._runs:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps({"error": message}).encode()
        status_line = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
        head = b"content-type: application/json\r\nconnection: close\r\n"
        head += b"retry-after: 1\r\n" if status == 503 else b""
        length = b"content-length: %d\r\n\r\n" % len(body)
        self.transport.write(status_line + head + length + body)
        self.cycle = None  # type: ignore[assignment]

    # What the registry asks

    @property
    def _latest(self) -> RequestResponseCycle | None:
        return self.cycle  # None before the first request, whatever uvicorn declares

    @property
    def _runs(self) -> bool:
        cycle = self._latest
        return cycle is not None and not cycle.response_complete

    @property
    def worth(self) -> Worth:
        if self._is_left_over:
            return Worth.ANSWERED
        if self._heading or self._runs:
            return Worth.BEGINNING if self.used else Worth.UNANSWERED
        return Worth.KEPT if self.used else Worth.EMPTY

    @property
    def _waits_for_body(self) -> bool:
        """Whether it is the client who keeps the request that runs waiting, not who reads it."""
        cycle = self.cycle
        wants_more = cycle.more_body and not (cycle.body or cycle.response_started)
        waits_for_us = cycle.waiting_for_100_continue or self.flow.read_paused or self.pipeline
        return wants_more and not waits_for_us

    def silence(self, now: float) -> float | None:
        if self._ended_at is not None or (self._runs and not self._waits_for_body):
            return None
        silence = now - self._since
        is_taking = silence < self._registry.limits.stall_seconds
        return None if is_taking and self.transport.get_write_buffer_size() else silence

    def overdue(self, now: float) -> bool:
        limits, hurry = self._registry.limits, self._registry.draining
        if self._ended_at is not None:
            return now - self._ended_at >= (GRACE_SECONDS if hurry else LINGER_SECONDS)
        if self._blocked_since is not None:
            return now - self._blocked_since >= (GRACE_SECONDS if hurry else limits.stall_seconds)
        if self._runs:
            return False
        return now - self._since >= (GRACE_SECONDS if hurry else self._patience_seconds)

    @property
    def _patience_seconds(self) -> float:
        """How long it may be silent, or send what is left over of a body."""
        limits = self._registry.limits
        if not self._has_place:
            return LINGER_SECONDS
        if self._heading or not self.used:
            return limits.header_seconds
        if self._is_left_over:
            return limits.stall_seconds + self._left_over_bytes / LEFT_OVER_PACE
        return limits.idle_seconds

    def drop(self) -> bool:
        is_ending = self._ended_at is not None or not self._has_place
        if is_ending or self._blocked_since is not None:
            self.transport.abort()
        elif self._heading:
            self._refuse(408, _NO_HEADER)
        else:
            return self._is_let_go()
        return True

    def give_way(self) -> bool:
        if not (self._heading or self._runs):
            return self._is_let_go()
        if self._has_data():
            return False
        self._leave(408, _NO_BODY if self._runs else _NO_HEADER)
        self.end()
        return True

    def _is_let_go(self) -> bool:
        """End it between two requests; return False where one has just come."""
        if self._is_left_over:
            self.end()
        elif self._has_data():
            return False
        else:
            self._close()
        return True

    def _has_data(self) -> bool:
        """Return whether bytes have come that were not read yet: closing now would reset a request."""
        sock = self.transport.get_extra_info("socket")
        try:
            count = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
        except (AttributeError, OSError):
            return False
        return any(count)


class _HeaderError(Exception):
    """Raised inside of the parser: the header says too much or too little; ``status`` of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Arrived:
    """A request of ``connection`` as its intake sees it."""

    __slots__ = ("_connection", "_cycle", "at", "body", "scope")

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self._connection, self._cycle = connection, cycle
        self.scope = cast(Scope, cycle.scope)
        self.body = cycle.body
        self.at: float = self.scope["arrived_at"]

    @property
    def is_whole(self) -> bool:
        return not self._cycle.more_body

    def begin(self) -> None:
        self._connection.begin(self._cycle)

    def refuse(self, answer: bytes) -> None:
        self._connection.turn_away(self._cycle, answer)


class _Ending:
    """The transport as uvicorn sees it while it answers: closing it ends the connection our way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.write = connection.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        self._connection.end()
