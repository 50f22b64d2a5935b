"""One request's dealings with its client: the body within limits, time, and the memory it holds.

A request waits for its client while a body comes or an answer goes. One that makes no progress is ended:
after the time that the settings give, or after half a second where somebody else waits for what it holds.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import NamedTuple, Self

from starlette.types import Message, Receive, Scope, Send

from pipeline.execution.errors import DeadlineError
from server.errors import (
    BusyError,
    DisconnectedError,
    ServiceError,
    TooLargeError,
)
from server.memory.body_share import BodyPart
from server.memory.request_memory import Lease, RequestMemory
from server.requests.admission import Turns
from server.transport.limits import PROGRESS_BYTES

#: Silence after which a request gives way to others that wait for what it holds.
GRACE_SECONDS = 0.5
# A photograph is late by the time for which its client keeps us waiting beyond a fair pace, in bytes a
# second. Once it is, it comes slowly.
_PACE = 2 << 20
_SLOW_SECONDS = 0.1
#: So much of a body may come before it takes memory of the pool (connections bound how many there are).
FREE_BYTES = 16 << 10


class BodyLimit(NamedTuple):
    """How long a body may be: at most ``n_bytes``, as the setting called ``setting`` says."""

    n_bytes: int
    setting: str = "max_body"

    @property
    def message(self) -> str:
        """What whoever sends more is told."""
        return f"the body is over the limit of {self.n_bytes} bytes (setting {self.setting})"


class Exchange:
    """Wraps ``receive`` and ``send`` of one request; ``lease`` is what it holds of the pool."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        lease: Lease,
        limit: BodyLimit,
        closed: Callable[["Exchange"], None] = lambda _: None,
    ) -> None:
        self.lease = lease
        #: Whether the body is kept as it comes, so that every byte is taken from the pool.
        self.keeps_body = True
        self._connection = scope.get("connection")
        self._receive, self._send = receive, send
        #: Of the body.
        self.body_limit = limit
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self.opened_at = self._loop.time()
        self._arrived_at: float | None = scope.get("arrived_at")
        # Taken at once where it is known: who holds a part and waits for more would wait for his like.
        self._declared = _declared_length(scope)
        self._received = 0
        self._progress = 0
        self._complete = False
        self._has_turn = False
        #: Where the body is a photograph's, which waits for its turn.
        self._part: BodyPart | None = None
        #: It waits for memory, or waited for it when its time was over.
        self.is_short = False
        self._waits_since: float | None = None
        self._waited = 0.0
        # The same of all of the body.
        self._kept_waiting = 0.0
        #: Of what happens now, if it has a limit.
        self.limit: _Within | None = None
        #: Why it was ended.
        self.evicted: ServiceError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed(self)
        self.lease.close()

    @property
    def arrived_at(self) -> float:
        """When the first byte of the request came, on time.monotonic's clock; where nobody knows, now."""
        if self._arrived_at is None:
            self._arrived_at = time.monotonic()
        return self._arrived_at

    @property
    def declared_bytes(self) -> int:
        """How long the body is, by its header; 0 where that does not say."""
        return self._declared

    @property
    def is_read(self) -> bool:
        """Whether the body has come to its end."""
        return self._complete

    @property
    def client(self) -> str:
        """The address of the client."""
        return self.lease.client

    @property
    def has_what_others_want(self) -> bool:
        """Whether others may wait for it: it holds memory, or the turn that others wait for."""
        return self.lease.held_bytes > 0 or self._has_turn

    async def receive(self) -> Message:
        """Return the next ASGI event; a part of a body is paid for before it is handed on.

        Raises:
            TooLargeError: the body is over the limit, or over what all requests may have.
        """
        if self._complete:
            return await self._receive()  # whether the client leaves: nothing is expected of it
        if self._connection is None or not self._connection.body_has_come:
            await self._arm()
        since = self._waits_since = self._loop.time()
        message = await self._receive()
        waited = self._loop.time() - since
        self._waited += waited
        self._kept_waiting += waited
        self._waits_since = None
        self._complete = not message.get("more_body", False)
        size = len(message.get("body", b""))
        self._received += size
        self._moved(size)
        if self._received > self.body_limit.n_bytes:
            raise TooLargeError(self.body_limit.message)
        need = max(self._received, self._declared)
        if self.keeps_body and self._received > FREE_BYTES and self.lease.held_bytes < need:
            if self._part is not None and need <= self.lease.room_bytes:  # or it is refused below
                await self._hold_part(self._part, need)
            await self.hold(need)
        return message

    async def send(self, message: Message) -> None:
        """Hand ``message`` to the client; returns when it can take more."""
        self._waits_since = self._loop.time()
        await self._send(message)
        self._waits_since = None
        self._moved(PROGRESS_BYTES)

    async def hold(self, n_bytes: int) -> None:
        """Hold ``n_bytes`` of the pool from now on; waiting for them is not the client's fault."""
        if not self.lease.hold_at_once(n_bytes):
            async with self._short():
                await self.lease.hold(n_bytes)
        self._moved(PROGRESS_BYTES)

    async def part(self, need_bytes: int, short_bytes: int) -> bytes:
        """Return the next part of the body, for a reader that keeps none of it; ``is_read`` after the last.

        ``need_bytes`` are held once more has come than anybody may send; ``short_bytes`` where it was all.

        Raises:
            TooLargeError: it is over the limit. DisconnectedError: the client went away.
        """
        self.keeps_body = False
        part = bytearray()
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError("the client went away while sending")
            part += message.get("body", b"")
            if self._complete or self._received > FREE_BYTES:
                break
        need = short_bytes if self._received <= FREE_BYTES else need_bytes
        if self.lease.held_bytes < need:
            await self.hold(need)
        return bytes(part)

    def check_room(self) -> None:
        """Check before the body is read that it will find memory, or a place in line for it.

        Raises:
            BusyError: it will not.
        """
        if self._connection is not None and not self._connection.body_has_come:
            self.lease.check_room()

    @contextlib.asynccontextmanager
    async def turn(self, line: Turns) -> AsyncIterator[None]:
        """Be the one of ``line`` inside; who waits for that with memory in his hands waits for memory.

        Raises:
            BusyError: too many wait.
        """
        async with self._short():
            await line.acquire()
        self._has_turn = True
        try:
            yield
        finally:
            self._has_turn = False
            line.release()

    @contextlib.contextmanager
    def in_line(self, part: BodyPart) -> Iterator[None]:
        """Have the body hold ``part`` from its arrival on, and no longer than inside."""
        self._part = part
        try:
            yield
        finally:
            self._part = None
            part.close()

    @property
    def room_bytes(self) -> int:
        """The most that it can hold, its body included, whatever bodies in line hold."""
        others = 0 if self._part is None else self._part.others_bytes
        return self.lease.room_bytes - others

    async def left(self) -> None:
        """Return when the client has gone; nothing else is expected of it once its body has come."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def within(self, seconds: float, what: str = "the request was not read") -> "_Within":
        """Limit what happens inside to ``seconds``; inside, the exchange can be ended.

        Memory is waited for in here alone: who waits elsewhere can neither be ended nor give way.

        Raises:
            StalledError, BusyError: it was. BusyError: it took longer, waiting for memory at the end.
            DeadlineError: ``what``, since it took longer.
        """
        return _Within(self, seconds, what)

    def stalled_seconds(self, now: float) -> float:
        """How long the client has kept us waiting without progress; 0 while nothing is expected of it."""
        return 0.0 if self._waits_since is None else self._waited + now - self._waits_since

    def held_of(self, pool: RequestMemory) -> int:
        """Return what it holds of ``pool``: of all memory, or of a part for bodies of photographs."""
        part = self._part
        leases = [self.lease, *([] if part is None else [part.line, part.aside])]
        return sum(lease.held_bytes for lease in leases if lease.memory is pool)

    def late_seconds(self, now: float) -> float:
        """Return how late a photograph is that still comes; of other bodies nobody asks that."""
        if self._part is None or self._complete:
            return 0.0
        waits = 0.0 if self._waits_since is None else now - self._waits_since
        return self._kept_waiting + waits - self._received / _PACE

    def step_aside(self, now: float) -> None:
        """Leave the line of photographs to others, if it comes slowly and has room elsewhere."""
        if self._part is not None and self._is_slow(now):
            self._part.step_aside()

    def is_gone(self) -> bool:
        """Return whether the connection is known to be closed."""
        return self._connection is not None and self._connection.is_closing()

    def end(self, why: ServiceError) -> None:
        """End it: while it is read with the error ``why``, afterwards by cutting it off."""
        if self.evicted is not None:
            return
        self.evicted = why
        if self.limit is not None:
            self.limit.end()
        elif self._connection is not None:
            self._connection.abort()

    async def _hold_part(self, part: BodyPart, n_bytes: int) -> None:
        is_all, is_slow = self._complete or self._declared > 0, self._is_slow(self._loop.time())
        async with self._short():
            await part.hold(n_bytes, is_all=is_all, is_slow=is_slow)

    def _is_slow(self, now: float) -> bool:
        return self.late_seconds(now) >= _SLOW_SECONDS

    @contextlib.asynccontextmanager
    async def _short(self) -> AsyncIterator[None]:
        """Wait inside for memory, or for who has it, as long as there is time."""
        await self._arm()
        self.is_short = self.lease.waiting = True
        try:
            yield
        finally:
            self.lease.waiting = False
        self.is_short = False

    async def _arm(self) -> None:
        if self.limit is not None:
            await self.limit.arm()

    def _moved(self, n_bytes: int) -> None:
        self._progress += n_bytes
        if self._progress >= PROGRESS_BYTES:
            self._progress, self._waited = 0, 0.0


class _Within:
    """The time limit of ``Exchange.within``: a timer is set only where something must be waited for."""

    def __init__(self, exchange: Exchange, seconds: float, what: str) -> None:
        self._exchange = exchange
        self._what = what
        self._seconds = seconds
        self._began = time.monotonic()
        self._timeout: asyncio.Timeout | None = None

    async def __aenter__(self) -> None:
        self._exchange.limit = self
        self._exchange.is_short = False

    async def arm(self) -> None:
        """Set the timer, once."""
        if self._timeout is None:
            left = self._seconds - (time.monotonic() - self._began)
            self._timeout = await asyncio.timeout(left).__aenter__()

    def end(self) -> None:
        """Let the time be over."""
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exchange.limit = None
        # Whoever was ended in the moment in which he could go on goes on, and may be ended again.
        evicted, self._exchange.evicted = self._exchange.evicted, None
        if self._timeout is None:
            return
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            if evicted is not None:
                raise evicted from None
            if self._exchange.is_short:
                raise BusyError(
                    f"there was no memory for the request within {self._seconds:.3g} s "
                    "(setting request_memory)"
                ) from None
            raise DeadlineError(f"{self._what} within {self._seconds:.3g} s") from None


def _declared_length(scope: Scope) -> int:
    for name, value in scope.get("headers", ()):
        if name == b"content-length":
            return int(value[:20]) if value.isdigit() else 0  # int() refuses thousands of digits
    return 0
