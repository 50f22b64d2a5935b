"""One HTTP connection: hands requests to an ASGI application, within bounds of bytes and time.

It reads at most READ_BYTES at a time, and no further into a body than the application asked for. A request
begins when the intake lets it, and may be refused instead. A connection that ends before its request was
read is read on for a while, so that the client sees the answer and no reset. A connection tells the
registry how long it has been silent; where a newcomer waits for its place, its next answer says that it is
the last. Behind a trusted proxy the client of a request is the one that the proxy names: in a header field,
or in a PROXY header for the whole connection. ``http1.py`` does the HTTP of all this.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, cast

from starlette.types import ASGIApp, Message, Scope
from uvicorn.server import ServerState

from server.faults import Code, Outcome
from server.transport.extension import EXTENSION
from server.transport.giving_way import Worth
from server.transport.http1 import Event, Head, Refusal, Requests, WireAnswer
from server.transport.intake import Intake, Refused
from server.transport.limits import (
    AHEAD_BYTES,
    GRACE_SECONDS,
    LEFT_OVER_PACE,
    LINGER_SECONDS,
    PARTING_SECONDS,
    PROGRESS_BYTES,
    READ_BYTES,
)
from server.transport.registry import Registry, owner
from server.transport.sockets import Address, Arrival, address, has_unread

_log = logging.getLogger(__name__)

# All connections share one buffer, since nothing else runs between get_buffer and buffer_updated.
BUFFER = memoryview(bytearray(READ_BYTES))
# The rest of a refused body is read into this and dropped; it is large, so that few reads are enough.
_SINK = memoryview(bytearray(16 * READ_BYTES))
# For a body whose reader holds memory for more of it.
_AHEAD = memoryview(bytearray(AHEAD_BYTES))

_NO_HEADER = "the header did not come in time"
_NO_BODY = "the body did not come in time, and others wait for the connection"
_NO_PLACE = "all connections are taken (setting max_connections)"
_STOPPING = "the server is stopping"
_FAULT = "internal error; the log has the details"
_DISCONNECT: Message = {"type": "http.disconnect"}
_ASGI = {"version": "3.0", "spec_version": "2.4"}


class Request:
    """A request of ``connection`` from its head on, for the intake and for the application.

    An application reads it with ``receive`` and answers with ``send``, as ASGI has them. The request itself
    is the extension of its scope (``extension.py``).

    ``client``: its client's address, as far as it is known; ``owner``: of that address, as limits count.
    ``arrived_at``: when its first byte came, on time.monotonic's clock; ``answerable_at``: when it could be
    answered.
    """

    def __init__(
        self,
        connection: "Connection",
        head: Head,
        answer: WireAnswer,
        client: Address,
        owner: str,
        *,
        arrived_at: float,
        answerable_at: float,
    ) -> None:
        self._connection = connection
        self.head, self.headers = head, head.headers
        self.client, self.owner = client, owner
        self.arrived_at, self.answerable_at = arrived_at, answerable_at
        self.declared_bytes = head.n_bytes or 0
        #: As Arrived has it.
        self.expected: Any = None
        #: What has come of the body and was not handed on.
        self.body = bytearray()
        #: Whether all of the body has come.
        self.is_complete = False
        #: Whether the client does not wait for the answer any more, and why it was refused then, if it was.
        self.is_gone = False
        self.refusal = ""
        self.answer = answer
        #: Whether more than one read of the body may lie here unread.
        self.reads_ahead = False
        # Whether the application has received the body to its end.
        self._is_received = False
        # Done when there is what ``receive`` waits for; None: no call of it has waited.
        self._news: asyncio.Future[None] | None = None
        # Called when the client leaves.
        self._leaves: Callable[[], None] | None = None

    # For the connection and the intake

    def begin(self) -> None:
        """Start the task that answers it, for which the end of the server waits, unless the client left."""
        if not self.is_gone:
            task = self._connection.loop.create_task(self._run())
            tasks = self._connection.state.tasks
            task.add_done_callback(tasks.discard)
            tasks.add(task)

    def refuse(self, answer: Refused) -> None:
        """Send ``answer`` without beginning the request; the rest of its body is dropped."""
        if not self.is_gone:
            self.answer.begin(answer.status_code, answer.raw_headers)
            self._connection.write(self.answer.body(answer.content, more=False))
            self._connection.answered(self)

    def leave(self) -> None:
        """Note that the client has left."""
        self.is_gone = True
        self.tell()
        if self._leaves is not None:
            self._leaves()

    def tell(self) -> None:
        """Let ``receive`` go on: more of the body has come, or its end, or the client has left."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _run(self) -> None:
        """Let the application answer; where it fails, answer with an error."""
        connection, answer = self._connection, self.answer
        try:
            await connection.app(self._scope(), self.receive, self.send)
        except asyncio.CancelledError:
            pass  # the server ends, and has waited as long as it may
        except Exception:  # noqa: BLE001  after any error the client gets an answer
            _log.exception("the application failed")
        if self.is_gone or answer.is_complete:
            return
        if not answer.is_begun:
            connection.refuse(Code.INTERNAL, _FAULT)
        else:
            connection.end()  # an answer that breaks off shows the client that it is not whole

    # For the application

    def _scope(self) -> Scope:
        head, connection = self.head, self._connection
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "scheme": connection.scheme,
            "method": head.method,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": self.client,
            "server": connection.server,
            "extensions": {EXTENSION: self},
        }

    async def receive(self) -> Message:
        """Wait for more of the body, or behind its end for the client to leave, and return that.

        Until then one read of the body may lie here unread; with ``reads_ahead`` AHEAD_BYTES.
        """
        connection, answer = self._connection, self.answer
        if answer.expects and not connection.is_closing():
            connection.write(answer.proceed())
        if not self.is_complete or self._is_received:
            connection.read_on()
        while not (self.is_gone or answer.is_complete):
            if not self._is_received and (self.body or self.is_complete):
                body, self.body = bytes(self.body), bytearray()
                self._is_received = self.is_complete
                return {"type": "http.request", "body": body, "more_body": not self.is_complete}
            self._news = connection.loop.create_future()
            await self._news
        return _DISCONNECT

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        """Have ``leaves`` called when the client no longer waits for the answer; None: nothing."""
        self._leaves = leaves
        if leaves is not None:
            leaves() if self.is_gone else self._connection.read_on()

    async def send(self, message: Message) -> None:
        """Begin the answer, whose head goes with the first part of its body, or send such a part.

        Returns when the client takes bytes; to a client that has left nothing is sent.

        Raises:
            RuntimeError: the answer has started already, or has not, or is not as long as it says, or a
                header has a line end in it.
        """
        if message["type"] == "http.response.start":
            self._start(message)
            return
        connection, answer = self._connection, self.answer
        if connection.writable is not None and not self.is_gone:
            await connection.writable.wait()
        if self.is_gone:
            return
        if not answer.is_begun:
            raise RuntimeError("the answer has not begun")
        more = message.get("more_body", False)
        connection.write(answer.body(message.get("body", b""), more))
        if not more:
            self.tell()
            connection.answered(self)

    def _start(self, message: Message) -> None:
        if self.is_gone:
            return
        connection, answer = self._connection, self.answer
        if answer.keeps and connection.is_wanted_back():
            answer.keeps = False
        answer.begin(message["status"], message.get("headers", ()))

    def abort(self) -> None:
        """Cut the connection off."""
        self._connection.abort()


class Connection(asyncio.BufferedProtocol):
    """A connection that ``registry`` counts, whose requests ``app`` answers.

    ``state``: the connections and tasks for which uvicorn waits when it ends. ``intake``: None: every
    request begins at once. ``arrival``: of its client; without a place its request is refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        state: ServerState,
        registry: Registry,
        intake: Intake | None = None,
        *,
        arrival: Arrival,
    ) -> None:
        self.app = app
        self.loop = asyncio.get_running_loop()
        self._clock = time.monotonic
        self.state = state
        self._registry = registry
        self._intake = intake
        self._client, self._has_place = arrival.client, arrival.has_place
        self.peer = arrival.peer
        self.used = False
        self._requests = Requests(lambda: state.default_headers)
        self._request: Request | None = None
        self._is_paused = False
        self._buffer = BUFFER
        # When its first request was noticed before it was read; 0: it was not.
        self._noticed_at = arrival.noticed_at
        # When the first byte of the current request came, and when the last answer was complete.
        self._at = self._answered_at = 0.0
        # Since when the client has sent nothing that counts as progress.
        self._since = self.loop.time()
        self._body_bytes = 0  # bytes of the body since the last progress
        self._left_over_bytes = 0  # bytes of the body that came after the answer
        #: Waits until the client takes bytes again; None: it takes them.
        self.writable: asyncio.Event | None = None
        self._blocked_since: float | None = None
        self._ended_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.state.connections.add(cast(Any, self))
        self._owner = owner(self._client[0]) if self._client else ""
        self.server = address(self.transport, "sockname")
        self.scheme = "https" if self.transport.get_extra_info("sslcontext") else "http"
        if not self._has_place:
            self._registry.end(self, self._since)

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.discard(self)
        self.state.connections.discard(cast(Any, self))
        request, self._request = self._request, None
        if request is not None:
            request.leave()
        self.resume_writing()
        self._requests.stop()

    # Reading

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._requests.is_between:
            self._buffer = BUFFER
        # What comes now may belong to a request that has had its answer.
        elif self._ended_at is not None or self._is_left_over:
            self._buffer = _SINK
        else:
            self._buffer = _AHEAD if self._reads_ahead else BUFFER
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Take ``data``, which the client has sent."""
        if self._ended_at is not None:
            return
        if not self._has_place:
            if self._registry.draining:
                self.refuse(Code.NOT_SERVING, _STOPPING)
            else:
                self.refuse(Code.BUSY, _NO_PLACE)
            return
        requests = self._requests
        if requests.is_between:
            self._since = self.loop.time()
        if not requests.rest:  # else the first bytes of the next request came earlier
            # While requests wait, all sockets were looked at a moment ago, and no byte waits for longer.
            looked_at = 0.0 if self._intake is None else self._intake.looked_at
            self._at, self._noticed_at = self._noticed_at or looked_at or self._clock(), 0.0
        self._take(requests.receive(data))

    def _take(self, events: list[Event]) -> None:
        """Handle ``events``; a new request is offered to the intake after all that has come of it."""
        new: Request | None = None
        for event in events:
            match event:
                case Head():
                    new = self._request = self._started(event)
                case bytes():
                    self._take_body(event)
                case Refusal():
                    self.refuse(*event)
                    return
                case _:
                    self._take_end()
        if new is not None:
            new.begin() if self._intake is None else self._intake.take(new)
        self._steer()

    def _started(self, head: Head) -> Request:
        client, client_owner, answer = self._client, self._owner, self._requests.answer
        proxies = self._registry.limits.proxies
        if self.peer.is_proxy and (named := proxies.client(head.headers)):
            client, client_owner = (named, 0), owner(named)
        assert answer is not None
        answerable_at = max(self._at, self._answered_at)
        return Request(
            self,
            head,
            answer,
            client,
            client_owner,
            arrived_at=self._at,
            answerable_at=answerable_at,
        )

    def _take_body(self, data: bytes) -> None:
        request = self._request
        assert request is not None
        if request.answer.is_complete:
            self._left_over_bytes += len(data)
            return
        request.body += data
        request.tell()
        self._body_bytes += len(data)
        if self._body_bytes >= PROGRESS_BYTES:
            self._body_bytes, self._since = 0, self.loop.time()

    def _take_end(self) -> None:
        request = self._request
        assert request is not None
        request.is_complete = True
        request.tell()
        if request.answer.is_complete:
            self._since = self.loop.time()
            self._take(self._requests.resume())

    def _steer(self) -> None:
        """Stop reading while bytes have come that the application has not taken yet."""
        request = self._request
        if request is None or request.answer.is_complete:
            is_paused = False
        else:
            most = AHEAD_BYTES if self._reads_ahead else 1
            is_unread = not request.is_complete and len(request.body) >= most
            is_paused = bool(self._requests.rest) or is_unread
        if is_paused != self._is_paused:
            self._pause(is_paused)

    def read_on(self) -> None:
        """Read on, since a request waits for bytes; a few requests may come behind the one that runs."""
        if self._is_paused and len(self._requests.rest) < READ_BYTES:
            self._pause(False)

    def _pause(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        if is_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # Answering

    def write(self, data: bytes | memoryview) -> None:
        if data:
            self.transport.write(data)

    def is_wanted_back(self) -> bool:
        """Return whether the answer that begins shall be the last, since a newcomer wants the place.

        Pipelined requests behind it would get no answer, so a connection with such goes on, until a
        newcomer has waited for half of the time after which it is refused.
        """
        registry, now = self._registry, self.loop.time()
        if not (registry.draining or registry.queue.count):
            return False
        if self._requests.rest and (registry.draining or not registry.is_pressed(now)):
            return False
        return registry.wants_back(self, now)

    def answered(self, request: Request) -> None:
        """Go on with the next request after an answer; the registry ends a connection without one."""
        self.used = True
        self._answered_at = self._clock()
        self._since, self._left_over_bytes = self.loop.time(), 0
        if not request.answer.keeps:
            self.end()
        if self.is_closing():
            return
        self._take(self._requests.resume())

    def pause_writing(self) -> None:
        self.writable = asyncio.Event()
        self._blocked_since = self.loop.time()

    def resume_writing(self) -> None:
        self._blocked_since = None
        if self.writable is not None:
            self.writable.set()
            self.writable = None

    def end(self) -> None:
        """Close when all written bytes were sent; while the client still sends, read on and drop."""
        if self.is_closing():
            return
        request = self._request
        if request is not None:
            self.write(request.answer.held())
        self._requests.stop()  # requests behind the last one get no answer
        if request is not None and request.is_complete and not has_unread(self.transport):
            self._close()
            return
        self._end_behind_reading()

    def _end_behind_reading(self) -> None:
        """Shut down sending, and read on and drop the bytes."""
        self._end()
        self.transport.write_eof()
        self.read_on()

    def shutdown(self) -> None:
        """End soon, as the server does. A request on its way is answered with "Connection: close"."""
        self._since = self.loop.time()  # for a request that the client may have just sent
        running = self._running
        if running is not None and not running.answer.is_begun:
            running.answer.keeps = False

    def _close(self) -> None:
        """Close when all written bytes were sent, for which the client has LINGER_SECONDS."""
        self._end()
        self.transport.close()

    def _end(self) -> None:
        self._ended_at = self.loop.time()
        self._registry.end(self, self._ended_at)

    def abort(self) -> None:
        """Cut the connection off."""
        self.transport.abort()

    def refuse(self, code: Code, message: str) -> None:
        """Answer bytes that are no whole request with an error, and end; cut off an answer that has begun.

        Where they belong to a request that has had its answer, there is no other.
        """
        running = self._running
        if running is not None and running.answer.is_begun:
            self.transport.abort()
            return
        if self.is_closing():
            return
        if running is not None:
            running.refusal = message if code.outcome is Outcome.INVALID else ""
            running.leave()  # a task that waits for its body goes on
        self.write(self._requests.refuse(code, message))
        self._request = None
        self.end()

    # For requests and the registry

    @property
    def _running(self) -> Request | None:
        """The request that has not had its answer."""
        request = self._request
        return None if request is None or request.answer.is_complete else request

    @property
    def _reads_ahead(self) -> bool:
        """Whether the body that comes may lie here unread, as far as its reader holds memory for it."""
        request = self._request
        return request is not None and request.reads_ahead and not request.is_complete

    @property
    def _is_left_over(self) -> bool:
        """Whether the last answer is complete and the rest of the body that it refused still comes."""
        request = self._request
        return request is not None and request.answer.is_complete and not request.is_complete

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self._ended_at is not None or self.transport.is_closing()

    @property
    def worth(self) -> Worth:
        if self._is_left_over:
            return Worth.ANSWERED
        if self._requests.is_heading or self._running:
            return Worth.BEGINNING if self.used else Worth.UNANSWERED
        return Worth.KEPT if self.used else Worth.EMPTY

    def _waits_for_body(self, request: Request) -> bool:
        """Return whether ``request`` waits for the client to send its body, not for the application."""
        wants_more = not (request.is_complete or request.body or request.answer.is_begun)
        return wants_more and not (request.answer.expects or self._is_paused)

    def silence(self, now: float) -> float | None:
        running = self._running
        if self._ended_at is not None or (running and not self._waits_for_body(running)):
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
        return not self._running and now - self._since >= self._patience_seconds

    @property
    def _patience_seconds(self) -> float:
        """How long it may be silent, or send the rest of a body that was refused."""
        limits = self._registry.limits
        if self._registry.draining:
            is_between = self._requests.is_between and self._has_place and not self._is_left_over
            return PARTING_SECONDS if is_between else GRACE_SECONDS
        if not self._has_place:
            return LINGER_SECONDS
        if self._requests.is_heading or not self.used:
            return limits.header_seconds
        if self._is_left_over:
            return limits.stall_seconds + self._left_over_bytes / LEFT_OVER_PACE
        return limits.idle_seconds

    def drop(self) -> bool:
        is_ending = self._ended_at is not None or not self._has_place
        if is_ending or self._blocked_since is not None:
            self.transport.abort()
        elif self._requests.is_heading:
            self.refuse(Code.STALLED, _NO_HEADER)
        else:
            return self._is_let_go()
        return True

    def give_way(self) -> bool:
        running = self._running
        if not (self._requests.is_heading or running):
            return self._is_let_go()
        if has_unread(self.transport):
            return False
        self.refuse(Code.STALLED, _NO_BODY if running else _NO_HEADER)
        return True

    def _is_let_go(self) -> bool:
        """End it between two requests; return False where one has just come."""
        if self._is_left_over:
            self.end()
        elif has_unread(self.transport):
            return False
        elif self._registry.draining:
            self._end_behind_reading()  # a request that crosses with the end gets no reset
        else:
            self._close()
        return True
