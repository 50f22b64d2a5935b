"""One request's dealings with its client: the body within its limit, the answer, the memory that it holds.

HTTP and gRPC have a ``Client`` each; nobody who has an Exchange knows which.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from server.errors import DisconnectedError, TooLargeError
from server.memory.body_share import BodyPart
from server.memory.request_memory import Lease, RequestMemory
from server.requests.admission import Turns
from server.requests.patience import Patience, Within

T = TypeVar("T")

# So late is a photograph that comes slowly.
_SLOW_SECONDS = 0.1
#: So much of a body may come before it takes memory of the pool (connections bound how many there are).
FREE_BYTES = 16 << 10
# Few clients leave so soon: a short request is not watched.
_UNWATCHED_SECONDS = 0.01


class Client(Protocol):
    """The other end of a request, as what carries it has it."""

    @property
    def address(self) -> str:
        """Empty where nobody knows it."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Names in lower case."""

    @property
    def at(self) -> float | None:
        """When the first byte of the request came, on time.monotonic's clock; None: nobody knows."""

    @property
    def body_has_come(self) -> bool:
        """Whether the body is here to its end, or no more of it comes."""

    @property
    def is_read(self) -> bool:
        """Whether all of the body was handed on."""

    async def part(self) -> bytes:
        """Wait for more of the body; raises DisconnectedError where nothing more comes."""

    async def send(self, data: bytes, more: bool = False) -> None:
        """Send a part of the answer, the last one where there is no ``more``; wait until it can be."""

    async def left(self) -> None:
        """Return when it has gone."""

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
        """What whoever sends more is told."""
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
        #: Whether the body is kept as it comes, so that every byte is taken from the pool.
        self.keeps_body = True
        #: Of the body.
        self.body_limit = limit
        self._closed = closed
        self.patience = Patience(client.abort, asyncio.get_running_loop().time)
        self.opened_at = self.patience.clock()
        self._arrived_at = client.at
        # Taken at once where it is known: who holds a part and waits for more would wait for his like.
        self._declared = _declared_length(client.headers)
        self._received = 0
        self._has_turn = False
        #: Where the body is a photograph's, which waits for its turn.
        self._part: BodyPart | None = None

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

    def check_length(self) -> None:
        """Check that the body is as short as it may be, as far as its header says how long it is.

        Raises:
            TooLargeError: it is not.
        """
        if self._declared > self.body_limit.n_bytes:
            raise TooLargeError(self.body_limit.message)

    @property
    def is_read(self) -> bool:
        """Whether the body has come to its end."""
        return self.client.is_read

    @property
    def has_what_others_want(self) -> bool:
        """Whether others may wait for it: it holds memory, or the turn that others wait for."""
        return self.lease.held_bytes > 0 or self._has_turn

    async def receive(self) -> bytes:
        """Return the next part of the body; it is paid for before it is handed on.

        Raises:
            TooLargeError: the body is over the limit, or over what all requests may have.
            DisconnectedError: the client went away.
        """
        client, patience = self.client, self.patience
        if not client.body_has_come:
            await self._arm()
        patience.begin()
        part = await client.part()
        self._received += len(part)
        patience.end_reading(len(part))
        if self._received > self.body_limit.n_bytes:
            raise TooLargeError(self.body_limit.message)
        need = max(self._received, self._declared)
        if self.keeps_body and self._received > FREE_BYTES and self.lease.held_bytes < need:
            if self._part is not None and need <= self.lease.room_bytes:  # or it is refused below
                await self._hold_part(self._part, need)
            await self.hold(need)
        return part

    async def send(self, data: bytes, more: bool = False) -> None:
        """Hand a part of the answer to the client; returns when it can take more."""
        self.patience.begin()
        await self.client.send(data, more)
        self.patience.end_sending()

    async def left(self) -> None:
        """Return when the client has gone."""
        await self.client.left()

    async def hold(self, n_bytes: int) -> None:
        """Hold ``n_bytes`` of the pool from now on; waiting for them is not the client's fault."""
        if not self.lease.hold_at_once(n_bytes):
            async with self._short():
                await self.lease.hold(n_bytes)
        self.patience.moved()

    async def part(self, need_bytes: int, short_bytes: int) -> bytes:
        """Return the next part of the body, for a reader that keeps none of it; ``is_read`` after the last.

        ``need_bytes`` are held once more has come than anybody may send; ``short_bytes`` where it was all.

        Raises:
            TooLargeError: it is over the limit. DisconnectedError: the client went away.
        """
        self.keeps_body = False
        part = await self.receive()
        while not (self.is_read or self._received > FREE_BYTES):
            part += await self.receive()
        need = short_bytes if self._received <= FREE_BYTES else need_bytes
        if self.lease.held_bytes < need:
            await self.hold(need)
        return part

    def check_room(self) -> None:
        """Check before the body is read that it will find memory, or a place in line for it.

        Raises:
            BusyError: it will not.
        """
        if not self.client.body_has_come:
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

    def within(self, seconds: float, what: str = "the request was not read") -> Within:
        """Limit what happens inside to ``seconds``; raises as Within."""
        return Within(self.patience, seconds, what)

    def held_of(self, pool: RequestMemory) -> int:
        """Return what it holds of ``pool``: of all memory, or of a part for bodies of photographs."""
        part = self._part
        leases = [self.lease, *([] if part is None else [part.line, part.aside])]
        return sum(lease.held_bytes for lease in leases if lease.memory is pool)

    def late_seconds(self, now: float) -> float:
        """Return how late a photograph is that still comes; of other bodies nobody asks that."""
        if self._part is None or self.is_read:
            return 0.0
        return self.patience.late_seconds(now, self._received)

    def step_aside(self, now: float) -> None:
        """Leave the line of photographs to others, if it comes slowly and has room elsewhere."""
        if self._part is not None and self._is_slow(now):
            self._part.step_aside()

    async def _hold_part(self, part: BodyPart, n_bytes: int) -> None:
        is_all, is_slow = self.is_read or self._declared > 0, self._is_slow(self.patience.clock())
        async with self._short():
            await part.hold(n_bytes, is_all=is_all, is_slow=is_slow)

    def _is_slow(self, now: float) -> bool:
        return self.late_seconds(now) >= _SLOW_SECONDS

    @contextlib.asynccontextmanager
    async def _short(self) -> AsyncIterator[None]:
        """Wait inside for memory, or for who has it, as long as there is time."""
        await self._arm()
        self.patience.is_short = self.lease.waiting = True
        try:
            yield
        finally:
            self.lease.waiting = False
        self.patience.is_short = False

    async def _arm(self) -> None:
        if self.patience.limit is not None:
            await self.patience.limit.arm()


async def until_left(exchange: Exchange, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` does; it is cancelled when the client leaves.

    Raises:
        DisconnectedError: it did.
    """
    task = asyncio.create_task(work)
    watcher: asyncio.Task[None] | None = None
    try:
        await asyncio.wait({task}, timeout=_UNWATCHED_SECONDS)
        if not task.done():
            watcher = asyncio.create_task(exchange.left())
            await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise DisconnectedError("the client went away")
        return task.result()
    finally:
        running = [each for each in (task, watcher) if each is not None and not each.done()]
        for each in running:
            each.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)


def _declared_length(headers: Sequence[tuple[bytes, bytes]]) -> int:
    for name, value in headers:
        if name == b"content-length":
            return int(value[:20]) if value.isdigit() else 0  # int() refuses thousands of digits
    return 0
