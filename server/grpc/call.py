"""One call: what ``attend`` asks of it, what shares see of it, and its messages as exchanges."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, Self

import grpc
from grpc import aio

from server.access import Admitted, Key
from server.errors import BusyError, DisconnectedError, NotServingError
from server.faults import Fault
from server.grpc.details import KEY, details
from server.grpc.progress import ReceivedBytes, address_of
from server.grpc.reserving import RecentModels
from server.operation.tracing import Trace, Tracing
from server.protocol.administration import Caller, requester_of
from server.requests.exchange import Exchange
from server.service import Service
from server.transport.giving_way import CountedConnection, Peer, WaitingConnection, Worth
from server.transport.intake import PAUSE_SECONDS
from server.transport.limits import ConnectionLimits
from server.transport.registry import CHECK_SECONDS, Registry, owner

# What clients that try again by themselves wait for (gRFC A6).
_WAIT = "grpc-retry-pushback-ms"


def _metadata_of(fault: Fault, status: grpc.StatusCode) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata that go with ``status``: the code of ``fault``, and when to try again."""
    code = (KEY, details(fault, status))
    if fault.retry_seconds is None:
        return (code,)
    return (code, (_WAIT, str(round(fault.retry_seconds * 1e3))))


# Calls take places as connections of HTTP do, by the same rules.


class CountedCall(CountedConnection, WaitingConnection, Protocol):
    """A call as its place sees it."""

    admission: "asyncio.Future[bool]"


class QueuedCall:
    """What a call waits for: ``admission`` ends with whether it has found a place."""

    admission: "asyncio.Future[bool]"

    def has_request(self) -> bool:
        """Return False: without a place all have come as far, so none goes before others."""
        return False

    def admit(self) -> Self:
        if not self.admission.done():
            self.admission.set_result(True)
        return self

    def reject(self) -> None:
        if not self.admission.done():
            self.admission.set_result(False)


class CallPlaces:
    """Gives out places for calls, as many as ``limits`` allows; ``clock``: of the event loop."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        self._registry = Registry(limits)
        self._clock = clock
        #: By connection.
        self.recent_models = RecentModels()
        self._next_look: asyncio.TimerHandle | None = None
        self._end: asyncio.Event | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the server ends."""
        return self._end is not None

    def close(self) -> Callable[[], None]:
        """Let calls that come from now on wait; calling what is returned refuses them."""
        self._end = asyncio.Event()
        return self._end.set

    def peer(self, address: str) -> Peer:
        """Return the peer with which calls from ``address`` are counted."""
        return self._registry.peer(address)

    @asynccontextmanager
    async def place(self, call: CountedCall) -> AsyncIterator[None]:
        """Give ``call`` a place while this is open; where none is free it waits for one.

        Raises:
            BusyError: none came free. NotServingError: closed.
        """
        if self._end is not None:
            await self._end.wait()
            raise NotServingError("the server is stopping")
        call.admission = asyncio.Future()
        self._registry.arrive(call, self._clock())
        self.look()
        try:
            if not await call.admission:
                raise BusyError(
                    "all calls are taken (setting max_connections), or those that one address may have"
                )
            yield
        finally:
            self._registry.withdraw(call)
            self._registry.discard(call)
            self.look()

    def look(self) -> None:
        """Let in the calls that find a place by now, refuse those that have waited long enough."""
        self._registry.check(self._clock())
        if self._registry.waiting and self._next_look is None:
            # A call that falls silent sends no event.
            loop = asyncio.get_running_loop()
            self._next_look = loop.call_later(CHECK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self.look()


# The call.

ServicerContext = aio.ServicerContext[bytes, bytes]
Work = Callable[["Call"], Awaitable[None]]

SERVICE = "inference.GRPCInferenceService"

#: As health over HTTP: a probe of health has no key; one that names a model presents it to its method.
_OPEN = frozenset({"ServerLive", "ServerReady", "Check", "Watch"})
_CHANGES = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
_LOST_SLOT = "the place of this call was given to another address"
# As OpenTelemetry has them: what is no client's mistake.
_FAULTS = frozenset(
    {
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class Call(QueuedCall):
    """One call, for the method that answers it (``work``), for ``attend``, and for the places of calls."""

    kind = "call"
    identity = ""
    #: The key that was presented, where keys are required.
    key: Key | None = None
    #: False as long as the call runs: its status comes last.
    is_begun = False

    def __init__(
        self,
        service: Service,
        shares: CallPlaces,
        method: str,
        wire: ServicerContext,
        work: Work,
        service_name: str = SERVICE,
    ) -> None:
        self.service = service
        self._service_name = service_name
        self._shares = shares
        self._method = method
        self._wire = wire
        self._work = work
        metadata = wire.invocation_metadata() or ()
        self.headers: Sequence[tuple[bytes, bytes]] = [
            (key.encode(), value.encode()) for key, value in metadata if isinstance(value, str)
        ]
        self._task = asyncio.current_task()
        self._started_at = asyncio.get_running_loop().time()
        self._exchange: Exchange | None = None
        self._answered = False
        # Of a call that has been read and goes on: since when nothing has happened, and whether it is over.
        self._silent_since: float | None = None
        self._slot_lost = asyncio.Event()
        self._address = _address(wire)
        self.peer = shares.peer(self._address)
        self._code = grpc.StatusCode.CANCELLED

    @property
    def left_seconds(self) -> float | None:
        """Until the client's deadline; None: it has none."""
        return self._wire.time_remaining()

    @property
    def caller(self) -> Caller:
        """Where the call comes from. The library does not tell what it calls the server (:authority).

        A page in a browser does not speak gRPC; should one manage to, it cannot leave out its Origin.
        """
        return Caller.of(self.headers, self._address, "grpc", host="localhost")

    @property
    def recent_models(self) -> Iterable[str]:
        """The models that calls of its connection used lately."""
        return self._shares.recent_models.of(self._wire.peer())

    def note_model(self, name: str) -> None:
        """Note that it uses the model ``name``."""
        self._shares.recent_models.note(self._wire.peer(), name)

    @property
    def is_ending(self) -> bool:
        """Whether the server takes no more calls: those without an end are to end."""
        return self.service.draining.is_set() or self._shares.is_closed

    async def wait_as_silent(self, seconds: float) -> None:
        """Wait; meanwhile the call may be ended for one of another address.

        Raises:
            BusyError: it was.
        """
        if self._silent_since is None:
            self._silent_since = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(seconds):
                await self._slot_lost.wait()
        except TimeoutError:
            return
        raise BusyError(_LOST_SLOT)

    def exchange(self) -> Exchange:
        """Return the exchange of one message and its answer, a context manager."""
        self._answered = self._exchange is not None
        message = _Message(self._wire, owner(self._address), self._task)
        self._exchange = self.service.exchanges.exchange(message)
        return self._exchange

    # What the places of calls ask

    @property
    def worth(self) -> Worth:
        """What is lost with it; gRPC does not tell whether a part of its first message has come."""
        return Worth.KEPT if self._answered else Worth.UNANSWERED

    def silence(self, now: float) -> float | None:
        """Seconds that its next message has been waited for; None while its client waits."""
        if self._silent_since is not None:
            return now - self._silent_since
        exchange = self._exchange
        return None if exchange is None or exchange.is_read else exchange.stalled_seconds(now)

    def overdue(self, now: float) -> bool:
        """Return False: ``Exchanges`` ends calls that stall."""
        return False

    def drop(self) -> bool:
        """End it."""
        return self.give_way()

    def give_way(self) -> bool:
        """End it for a call of another address; False where its message has just come."""
        exchange = self._exchange
        if self._silent_since is not None:
            self._slot_lost.set()
        elif exchange is None or exchange.is_read:
            return False
        else:
            exchange.end(BusyError(_LOST_SLOT))
        return True

    # What ``attend`` asks

    @property
    def admitted(self) -> Admitted:
        return "open" if self._method in _OPEN else "infer"

    @property
    def who(self) -> str:
        return requester_of(self.key, self._address)

    @property
    def is_change(self) -> bool:
        return self._method in _CHANGES

    @property
    def is_probe(self) -> bool:
        return self._method in _OPEN

    async def serve(self) -> None:
        """Do its work, in a place of its own."""
        self._wire.set_trailing_metadata(self._hints)
        async with self._shares.place(self):
            await self._work(self)
        self._code = grpc.StatusCode.OK

    async def refuse(self, fault: Fault) -> None:
        """End it with the status of ``fault``; a refusal after a pause, as over HTTP."""
        self._code = grpc.StatusCode[fault.code.grpc]
        if self._code is grpc.StatusCode.UNAVAILABLE:
            pause = self._started_at + PAUSE_SECONDS - asyncio.get_running_loop().time()
            left = self.left_seconds
            await asyncio.sleep(max(pause if left is None else min(pause, left), 0.0))
        left = self.left_seconds
        # What comes behind the client's deadline is late, whatever else it is.
        if left is not None and left <= 0:
            self._code = grpc.StatusCode.DEADLINE_EXCEEDED
        metadata = (*self._hints, *_metadata_of(fault, self._code))
        await self._wire.abort(self._code, fault.message, metadata)

    @property
    def _hints(self) -> tuple[tuple[str, str], ...]:
        return (("x-request-id", self.identity),)

    def begin_trace(self, tracing: Tracing) -> Trace:
        """Begin its trace; its spans are found by ``current``."""
        metadata = {key.decode(): value.decode() for key, value in self.headers}
        return tracing.begin_call(self._service_name, self._method, metadata)

    def end_trace(self, trace: Trace) -> None:
        """End it."""
        trace.end_call(self._code.value[0], self._code in _FAULTS)

    @property
    def outcome(self) -> str:
        if self._code is grpc.StatusCode.UNAVAILABLE:
            return "busy"
        return "well" if self._code is grpc.StatusCode.OK else "failed"

    @property
    def about(self) -> Mapping[str, Any]:
        return {"method": self._method, "status": self._code.name}


def _address(wire: ServicerContext) -> str:
    """Return the address of the other end; empty where it has none."""
    address = address_of(wire.peer())
    return address[0] if address else ""


class _Message:
    """The client of one message, which comes when it is asked for; until then its length is unknown."""

    arrived_at = expected = None
    declared_bytes = 0
    is_complete = False
    wants_body = takes_chunks = True

    def __init__(
        self, wire: ServicerContext, owner: str, task: "asyncio.Task[None] | None"
    ) -> None:
        self.owner = owner
        self._wire = wire
        self._task = task
        self._received: ReceivedBytes | None = None

    async def part(self, reads_ahead: bool = False) -> bytes:
        """Return the message.

        Raises:
            DisconnectedError: the client has no more.
        """
        message: Any = await self._wire.read()
        self.is_complete = True
        if message is aio.EOF:
            raise DisconnectedError("the call ends before its message")
        return bytes(message)

    def connection_bytes(self) -> int | None:
        """Return what has come on the connection, also of other calls on it."""
        if self._received is None:
            address = address_of(self._wire.peer())
            if address is None:
                return None
            self._received = ReceivedBytes(address)
        return self._received.now()

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Do nothing: a call has one status, at its end."""

    async def send(self, data: bytes, more: bool = False) -> None:
        """Return when the answer has been sent."""
        await self._wire.write(data)

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        """Do nothing: gRPC cancels the call of a client that leaves."""

    def abort(self) -> None:
        """End the call: a client that does not take its answer does not take a status either."""
        if self._task is not None:
            self._task.cancel()
