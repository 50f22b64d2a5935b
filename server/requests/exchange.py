"""One request's dealings with its client: the body within its limit, the answer, memory and time.

HTTP and gRPC have a ``Client`` each; code that has an Exchange does not know which. A request waits for its
client while a body comes or an answer goes. One that makes no progress is ended: after the time that the
settings give, or after half a second where another request waits for what it holds. Exchanges has all that
run, and ends those that stall.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

from pipeline.execution.errors import DeadlineError
from server.errors import BusyError, DisconnectedError, LateError, StalledError, TooLargeError
from server.memory.request_memory import Lease, RequestMemory
from server.requests.waiting import Interruption
from server.transport.limits import PROGRESS_BYTES

#: So much of a body may come before it takes memory of the pool (connections bound how many there are).
FREE_BYTES = 16 << 10
#: Silence after which a request gives way to others that wait for what it holds.
GRACE_SECONDS = 0.5
# A photograph is late by the time for which its client keeps us waiting beyond a fair pace, this one, in
# bytes a second. It may be late by so much while others wait for its memory.
_PACE = 2 << 20
_LATE_SECONDS = 1.0

#: What a body is: of a request, or a model, which has a limit of its own.
Kind = Literal["body", "upload"]


class LeavingClient(Protocol):
    """The other end of a request, as what is computed for it has it."""

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        """Have ``leaves`` called when it leaves, or at once where it has; None: nothing any more."""


class Client(LeavingClient, Protocol):
    """The other end of a request, as what carries it has it."""

    @property
    def owner(self) -> str:
        """The address as limits count it; empty where it is unknown."""

    @property
    def declared_bytes(self) -> int:
        """How long the body is, by its header; 0: it does not say."""

    @property
    def arrived_at(self) -> float | None:
        """When the first byte of the request came, on time.monotonic's clock; None: unknown."""

    @property
    def expected(self) -> Any:
        """What the line of its model expects, where it was let in before it was read; else None."""

    @property
    def is_complete(self) -> bool:
        """Whether the body is here to its end."""

    async def part(self, reads_ahead: bool = False) -> bytes:
        """Wait for more of the body, and hand on all that is here; b"" behind its end.

        ``reads_ahead``: more may come and lie there unread, since memory is held for it.

        Raises:
            DisconnectedError: nothing more comes.
        """

    def connection_bytes(self) -> int | None:
        """Return how many bytes have come, of a client whose body comes as one part; else None."""

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

    def abort(self) -> None:
        """Cut it off."""


class ClientOfSeveral:
    """The client for which several things are computed at once; each of them has one of these.

    ``others``: the callbacks of all of them, called when ``client`` leaves.
    """

    def __init__(
        self, client: LeavingClient, others: dict["ClientOfSeveral", Callable[[], None]]
    ) -> None:
        self._client, self._others = client, others

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        had_any = bool(self._others)
        if leaves is None:
            self._others.pop(self, None)
        else:
            self._others[self] = leaves
        # The first and the last alone: some clients have a task that watches.
        if had_any != bool(self._others):
            self._client.on_leave(self._all_leave if self._others else None)

    def _all_leave(self) -> None:
        for leaves in [*self._others.values()]:
            leaves()


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
        self._clock = asyncio.get_running_loop().time
        #: When the first byte of the request came, on time.monotonic's clock, or else its first part.
        self.arrived_at = time.monotonic() if client.arrived_at is None else client.arrived_at
        #: How long the body is, by its header; 0: it does not say.
        self.declared_bytes = client.declared_bytes
        #: As Client has it, until it joins.
        self.expected = client.expected
        #: What has come of it.
        self.received_bytes = 0
        #: Whether it was read to its end.
        self.is_read = False
        #: Whether it may be ended where it comes slowly and others wait for what it holds.
        self.may_be_hastened = False
        # Since when the client keeps it waiting, on the loop's clock.
        self._waits_since: float | None = None
        # What a client had sent whose body comes as one part, at the last look that saw progress.
        self._connection_bytes: int | None = None
        # Since it last made progress: how long the client kept it waiting, how many bytes have moved.
        self._waited, self._progress = 0.0, 0
        # How long the client kept it waiting for the body.
        self._kept_waiting = 0.0
        #: Of what happens now, if it has a limit.
        self.limit: TimeLimit | None = None

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
        client = self.client
        if client.is_complete:
            part = await client.part()
        else:
            self.arm()
            self._waits_since = began = self._clock()
            self._connection_bytes = None
            part = await client.part(reads_ahead)
            self._has_come(len(part), self._clock() - began)
        self.is_read = client.is_complete
        if client.arrived_at is None and not self.received_bytes:
            self.arrived_at = time.monotonic()
        self.received_bytes += len(part)
        if self.received_bytes > self.body_limit.n_bytes:
            raise TooLargeError(self.body_limit.message)
        return part

    def _has_come(self, n_bytes: int, waited: float) -> None:
        """Count ``n_bytes`` of the body, for which the client kept it waiting so many seconds."""
        self._waits_since = None
        self._waited += waited
        self._kept_waiting += waited
        self._progress += n_bytes
        if self._progress >= PROGRESS_BYTES:  # fewer are as good as none
            self._waited, self._progress = 0.0, 0

    async def beginning(self) -> bytes:
        """Return a short body, or as much of a longer one as is read before its reader holds anything.

        Raises:
            As ``part``.
        """
        begun = await self.part()
        # What is longer by its header has begun with half of that: a read less.
        enough = FREE_BYTES // 2 if self.declared_bytes > FREE_BYTES else FREE_BYTES
        while not (self.is_read or len(begun) > enough):
            begun += await self.part()
        return begun

    async def send(self, data: bytes, more: bool = False) -> None:
        """Hand a part of the answer to the client; returns when it can take more."""
        self._waits_since = self._clock()
        await self.client.send(data, more)
        self._waits_since = None
        self._waited, self._progress = 0.0, 0

    async def hold(self, n_bytes: int, seconds: float | None = None) -> None:
        """Hold ``n_bytes`` of the pool from now on; waiting for them is not the client's fault.

        ``seconds``: that it may wait at most, of a request whose time is short; None: as long as its limit.

        Raises:
            LateError: it would have to wait for longer. Otherwise as Lease.hold.
        """
        if n_bytes == self.lease.held_bytes:
            return
        if not self.lease.hold_at_once(n_bytes):
            self.arm()
            if self.limit is not None:
                self.limit.is_short = True
            try:
                async with asyncio.timeout(seconds):
                    await self.lease.hold(n_bytes)
            except TimeoutError:
                raise LateError(
                    f"there was no memory for the request within {seconds:.3g} s, and no time to wait "
                    "for longer (setting request_memory)"
                ) from None
            if self.limit is not None:
                self.limit.is_short = False
        self._waited, self._progress = 0.0, 0

    def check_room(self) -> None:
        """Check before the body is read that it will find memory, or a place in line for it.

        Raises:
            BusyError: it will not.
        """
        if not self.client.is_complete:
            self.lease.check_room()

    # Its time

    def within(
        self,
        seconds: float,
        what: str = "the request was not read",
        limit_seconds: float | None = None,
    ) -> "TimeLimit":
        """Limit what happens inside to ``seconds``, what ``limit_seconds`` leave; raises as TimeLimit."""
        return TimeLimit(self, seconds, what, limit_seconds or seconds)

    def arm(self) -> None:
        """Have what happens now be ended when its time is over, since something must be waited for."""
        if self.limit is not None:
            self.limit.arm()

    def end(self, reason: Exception) -> None:
        """End the request: what has a limit with the error ``reason``, all else by cutting it off."""
        if self.limit is None:
            self.client.abort()
        else:
            self.limit.end(reason)

    @contextmanager
    def until_left(self) -> Iterator[None]:
        """Cancel what happens inside when the client leaves.

        Raises:
            DisconnectedError: it left.
        """
        with Interruption() as interruption:
            interruption.arm()
            self.client.on_leave(
                lambda: interruption.end(DisconnectedError("the client went away"))
            )
            try:
                yield
            finally:
                self.client.on_leave(None)

    def stalled_seconds(self, now: float) -> float:
        """How long the client has kept it waiting without progress; 0 while nothing is expected of it."""
        return 0.0 if self._waits_since is None else self._waited + now - self._waits_since

    def is_stalled(self, now: float, limit_seconds: float) -> bool:
        """Return whether the client has made next to no progress for so long.

        Of a body that comes as one part, progress is what its connection receives in the second half of the
        time, and the half of what must come in all of it.
        """
        stalled_seconds = self.stalled_seconds(now)
        if stalled_seconds < limit_seconds / 2:
            return False
        count = None if self.is_read else self.client.connection_bytes()
        if count is not None:
            before = self._connection_bytes
            if before is None:
                self._connection_bytes = count
                return False
            if count - before >= PROGRESS_BYTES // 2:
                self._connection_bytes = count
                self._waits_since, self._waited = now, 0.0
                return False
        return stalled_seconds >= limit_seconds

    @property
    def rest_seconds(self) -> float:
        """How long the rest of the body takes at the pace at which it came; 0: unknown, or it is read."""
        if self.is_read or not self.received_bytes:
            return 0.0
        left = max(self.declared_bytes - self.received_bytes, 0)
        return self._kept_waiting * left / self.received_bytes

    @property
    def is_slow(self) -> bool:
        """Whether the body still comes, and slower than at a fair pace."""
        return not self.is_read and self._kept_waiting > self.received_bytes / _PACE

    def late_seconds(self, now: float) -> float:
        """Return how late, by a fair pace, a body is that still comes and may be hastened."""
        if self.is_read or not self.may_be_hastened:
            return 0.0
        waits = 0.0 if self._waits_since is None else now - self._waits_since
        return self._kept_waiting + waits - self.received_bytes / _PACE


class TimeLimit(Interruption):
    """A limit of ``seconds`` on what happens inside; ``what`` did not, where it takes longer.

    ``limit_seconds``: what the client knows of it, for messages: a part of that may have passed before.
    Inside, the request can be ended. Memory is waited for in here alone: what waits elsewhere can
    neither be ended nor give way. A timer is set only where something must be waited for.

    Raises:
        StalledError, BusyError: it was ended. BusyError: it took longer, waiting for memory at the end.
        DeadlineError: it took longer.
    """

    def __init__(self, exchange: Exchange, seconds: float, what: str, limit_seconds: float) -> None:
        self._exchange = exchange
        self._what = what
        self._limit_seconds = limit_seconds
        self._seconds = seconds
        self._began = time.monotonic()
        #: It waits for memory, or waited for it when its time was over.
        self.is_short = False
        # Why it is over, where it was shortened.
        self._early: Exception | None = None

    def __enter__(self) -> Self:
        self._exchange.limit = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exchange.limit = None
        if self._task is not None:
            super().__exit__(kind, error, trace)

    def arm(self) -> None:
        """Set the timer, once."""
        if self._task is None:
            super().arm()
            self._set()

    def shorten(self, seconds: float, reason: Exception) -> None:
        """End what happens inside in so many ``seconds`` at the latest, with the error ``reason``."""
        less = self._left() - seconds
        if less <= 0.0:
            return
        self._seconds -= less
        self._early = reason
        if self._task is not None and self._why is None and self._handle is not None:
            self._handle.cancel()
            self._set()

    def _left(self) -> float:
        return self._seconds - (time.monotonic() - self._began)

    def _set(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(max(self._left(), 0.0), self._is_over)

    def _is_over(self) -> None:
        self._why = self._early or self._too_long()
        self._early = None  # else a circle: the error refers to the frame that has this
        self._cancel()

    def _too_long(self) -> Exception:
        within = f"within {self._limit_seconds:.3g} s"
        short = f"there was no memory for the request {within} (setting request_memory)"
        return BusyError(short) if self.is_short else DeadlineError(f"{self._what} {within}")


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
            if exchange.is_stalled(now, limit):
                self.stalled += 1
                exchange.end(StalledError(f"the client made next to no progress for {limit:g} s"))
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
                exchange.end(
                    BusyError(
                        "the photograph comes slowly, and there is no memory for others meanwhile"
                    )
                )


def headers_named(name: bytes, headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """Return what all ``headers`` say that are called ``name``, in lower case."""
    return [value.decode("latin-1") for key, value in headers if key == name]
