"""One request's dealings with its client: the body within its limit, the answer, the memory that it holds.

HTTP and gRPC have a ``Client`` each; code that has an Exchange does not know which. Exchanges has all that
run, and ends those that stall.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple, Protocol, Self

from server.errors import BusyError, DisconnectedError, StalledError, TooLargeError
from server.memory.request_memory import Lease, RequestMemory
from server.requests.patience import Patience, TimeLimit

#: So much of a body may come before it takes memory of the pool (connections bound how many there are).
FREE_BYTES = 16 << 10
#: Silence after which a request gives way to others that wait for what it holds.
GRACE_SECONDS = 0.5
# A photograph may be late by so much while others wait for its memory.
_LATE_SECONDS = 1.0

#: What a body is: of a request, or a model, which has a limit of its own.
Kind = Literal["body", "upload"]


class Client(Protocol):
    """The other end of a request, as what carries it has it."""

    @property
    def owner(self) -> str:
        """The address as limits count it; empty where it is unknown."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Names in lower case."""

    @property
    def declared_bytes(self) -> int:
        """How long the body is, by its header; 0: it does not say."""

    @property
    def at(self) -> float | None:
        """When the first byte of the request came, on time.monotonic's clock; None: unknown."""

    @property
    def body_has_come(self) -> bool:
        """Whether the body is here to its end, or no more of it comes."""

    @property
    def is_read(self) -> bool:
        """Whether all of the body was handed on."""

    async def part(self, reads_ahead: bool = False) -> bytes:
        """Wait for more of the body; raises DisconnectedError where nothing more comes.

        ``reads_ahead``: more may come and lie there unread, since memory is held for it.
        """

    @property
    def wants_body(self) -> bool:
        """Whether it wants more of an answer than its head."""

    @property
    def takes_chunks(self) -> bool:
        """Whether an answer may go without a word of how long it is."""

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Begin the answer; its head goes with what is sent first."""

    async def send(self, data: bytes, more: bool = False) -> None:
        """Send a part of the answer, the last one where there is no ``more``; wait until it can be."""

    @property
    def is_gone(self) -> bool:
        """Whether it has left."""

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        """Have ``leaves`` called when it leaves, or at once where it has; None: nothing any more."""

    def is_closing(self) -> bool:
        """Return whether it is known to have gone."""

    def abort(self) -> None:
        """Cut it off."""


class BodyLimit(NamedTuple):
    """How long a body may be: at most ``n_bytes``, as the setting called ``setting`` says."""

    n_bytes: int
    setting: str = "max_body"

    @property
    def message(self) -> str:
        """The error for a longer body."""
        return f"the body is over the limit of {self.n_bytes} bytes (setting {self.setting})"


class Exchange:
    """What a request of ``client`` sends and is sent; ``lease`` is what it holds of the pool."""

    def __init__(
        self,
        client: Client,
        lease: Lease,
        limit: BodyLimit,
        closed: Callable[["Exchange"], None] = lambda _: None,
    ) -> None:
        self.client = client
        self.lease = lease
        #: Of the body.
        self.body_limit = limit
        self._closed = closed
        self.patience = Patience(client.abort, asyncio.get_running_loop().time)
        #: When the first byte of the request came, on time.monotonic's clock, or else its first part.
        self.arrived_at = time.monotonic() if client.at is None else client.at
        #: How long the body is, by its header; 0: it does not say.
        self.declared_bytes = client.declared_bytes
        #: What has come of it.
        self.received_bytes = 0
        #: Whether it has come to its end.
        self.is_read = client.is_read
        #: Whether it may be ended where it comes slowly and others wait for what it holds.
        self.may_be_hastened = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed(self)
        self.lease.close()

    def check_length(self) -> None:
        """Check that the body is as short as it may be, as far as its header says how long it is.

        Raises:
            TooLargeError: it is not.
        """
        if self.declared_bytes > self.body_limit.n_bytes:
            raise TooLargeError(self.body_limit.message)

    async def part(self, reads_ahead: bool = False) -> bytes:
        """Return the next part of the body; ``is_read`` after the last.

        ``reads_ahead``: as Client.part.

        Raises:
            TooLargeError: the body is over the limit. DisconnectedError: the client went away.
        """
        client, patience = self.client, self.patience
        if client.body_has_come:
            part = await client.part()
        else:
            await patience.arm()
            patience.begin()
            part = await client.part(reads_ahead)
            patience.end_reading(len(part))
        self.is_read = client.is_read
        if client.at is None and not self.received_bytes:
            self.arrived_at = time.monotonic()
        self.received_bytes += len(part)
        if self.received_bytes > self.body_limit.n_bytes:
            raise TooLargeError(self.body_limit.message)
        return part

    async def beginning(self) -> bytes:
        """Return a short body, or as much of a longer one as is read before its reader holds anything.

        Raises:
            As ``part``.
        """
        begun = await self.part()
        while not (self.is_read or len(begun) > FREE_BYTES):
            begun += await self.part()
        return begun

    async def send(self, data: bytes, more: bool = False) -> None:
        """Hand a part of the answer to the client; returns when it can take more."""
        self.patience.begin()
        await self.client.send(data, more)
        self.patience.end_sending()

    async def hold(self, n_bytes: int) -> None:
        """Hold ``n_bytes`` of the pool from now on; waiting for them is not the client's fault.

        Raises:
            As Lease.hold.
        """
        if n_bytes == self.lease.held_bytes:
            return
        if not self.lease.hold_at_once(n_bytes):
            await self.patience.arm()
            self.patience.is_short = True
            await self.lease.hold(n_bytes)
            self.patience.is_short = False
        self.patience.moved()

    def check_room(self) -> None:
        """Check before the body is read that it will find memory, or a place in line for it.

        Raises:
            BusyError: it will not.
        """
        if not self.client.body_has_come:
            self.lease.check_room()

    def within(
        self,
        seconds: float,
        what: str = "the request was not read",
        limit_seconds: float | None = None,
    ) -> TimeLimit:
        """Limit what happens inside to ``seconds``, what ``limit_seconds`` leave; raises as TimeLimit."""
        return TimeLimit(self.patience, seconds, what, limit_seconds or seconds)

    @asynccontextmanager
    async def until_left(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Cancel what happens inside when the client leaves, or after so many seconds.

        Raises:
            DisconnectedError: it left. TimeoutError: it took longer.
        """
        client, loop = self.client, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds) as limit:
                client.on_leave(lambda: limit.reschedule(loop.time()))
                try:
                    yield
                finally:
                    client.on_leave(None)
        except TimeoutError:
            if client.is_gone:
                raise DisconnectedError("the client went away") from None
            raise

    def late_seconds(self, now: float) -> float:
        """Return how late a body is that still comes and may be hastened."""
        if self.is_read or not self.may_be_hastened:
            return 0.0
        return self.patience.late_seconds(now, self.received_bytes)


class Exchanges:
    """All exchanges that run; ends those that stall.

    ``max_body``: of a request in bytes; ``max_upload``: of one that sends a model; None: the same.
    """

    def __init__(
        self,
        memory: RequestMemory,
        max_body: int,
        stall_seconds: float,
        max_upload: int | None = None,
    ) -> None:
        self.memory = memory
        body = BodyLimit(max_body)
        upload = body if max_upload is None else BodyLimit(max_upload, "max_upload")
        self._limits: dict[Kind, BodyLimit] = {"body": body, "upload": upload}
        self._stall_seconds = stall_seconds
        self._open: set[Exchange] = set()
        self._short_since: float | None = None
        #: Ended for want of progress.
        self.stalled = 0

    def __len__(self) -> int:
        return len(self._open)

    def exchange(self, client: Client, kind: Kind = "body") -> Exchange:
        """Return the exchange of one request, a context manager: at its end all that is held is free."""
        lease = Lease(self.memory, client.owner)
        exchange = Exchange(client, lease, self._limits[kind], self._open.discard)
        self._open.add(exchange)
        return exchange

    def sweep(self, now: float, hurry: bool) -> None:
        """End what stalled too long; in a ``hurry``, or where memory is short, for half a second."""
        hurry = hurry or self.memory.waiting > 0
        limit = GRACE_SECONDS if hurry else self._stall_seconds
        for exchange in self._open:
            if exchange.patience.stalled_seconds(now) >= limit:
                self.stalled += 1
                exchange.patience.end(
                    StalledError(f"the client made next to no progress for {limit:g} s")
                )
        self._hasten(now)

    def _hasten(self, now: float) -> None:
        """End bodies that come a second late where others have waited for memory for a while.

        The latest go first, until nothing is missing.
        """
        if not self.memory.waiting:
            self._short_since = None
            return
        since = self._short_since = now if self._short_since is None else self._short_since
        if now - since < GRACE_SECONDS:
            return
        missing = self.memory.missing_bytes
        for exchange in sorted(self._open, key=lambda each: each.late_seconds(now), reverse=True):
            held = exchange.lease.held_bytes
            if missing > 0 and held > 0 and exchange.late_seconds(now) >= _LATE_SECONDS:
                missing -= held
                exchange.patience.end(
                    BusyError(
                        "the photograph comes slowly, and there is no memory for others meanwhile"
                    )
                )


def headers_named(name: bytes, headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """Return what all ``headers`` say that are called ``name``, in lower case."""
    return [value.decode("latin-1") for key, value in headers if key == name]
