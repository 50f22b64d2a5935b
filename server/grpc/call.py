"""One call: its id, its key, its exchanges with the client, one line in the log, an error as a status.

What RequestMiddleware and Guard are to a request over HTTP.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import grpc
from grpc import aio
from starlette.types import Message

from server.access.guard import why_refused
from server.access.keys import Key
from server.context import Context
from server.errors import BusyError
from server.failures import FAILURES
from server.grpc.shares import Shares
from server.grpc.statuses import code_of, hints_of
from server.operation.logs import identity, request_id
from server.operation.tracing import Trace, current
from server.protocol.administration import FORWARDED, Caller
from server.protocol.errors import told
from server.requests.exchange import Exchange
from server.transport.giving_way import Worth

ServicerContext = aio.ServicerContext[bytes, bytes]
Work = Callable[["Call"], Awaitable[None]]

SERVICE = "inference.GRPCInferenceService"

_log = logging.getLogger("server.access")
_PEER = re.compile(r"ipv[46]:\[?(.*?)\]?:\d+")
#: As health over HTTP: who asks whether a server lives has no key.
_OPEN = frozenset({"ServerLive", "ServerReady"})
_QUIET = frozenset({grpc.StatusCode.UNAVAILABLE})
# As OpenTelemetry has them: what is no client's mistake.
_FAULTS = frozenset(
    {
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_INTERNAL = "internal error; the log has the details"


class Call:
    """What a method sees of its call; what shares see of it: a member that waits for its client, or not."""

    def __init__(
        self, context: Context, shares: Shares, method: str, wire: ServicerContext
    ) -> None:
        self.context = context
        self._shares = shares
        self._method = method
        self._wire = wire
        metadata = wire.invocation_metadata() or ()
        self._metadata = [(key, value) for key, value in metadata if isinstance(value, str)]
        self._task = asyncio.current_task()
        self._exchange: Exchange | None = None
        self._answered = False
        self._address = _address(wire)
        self.peer = shares.peer(self._address)
        #: Which one was presented, where keys are asked for.
        self.key: Key | None = None

    @property
    def left_seconds(self) -> float | None:
        """Until the client's deadline; None: it has none."""
        return self._wire.time_remaining()

    @property
    def caller(self) -> Caller:
        """Where the call comes from. What it calls the server (:authority) is not told to us.

        A page in a browser does not speak gRPC; should one manage to, it cannot leave out its Origin.
        """
        origins = self._headers("origin")
        return Caller(
            peer=self._address,
            host="localhost",
            origin=", ".join(origins) if origins else None,
            site=next(iter(self._headers("sec-fetch-site")), None),
            forwarded=any(self._headers(name) for name in FORWARDED),
            scheme="grpc",
        )

    def exchange(self) -> Exchange:
        """Return the exchange of one message and its answer, a context manager."""
        connection = _Connection(self._wire, self._task)
        scope = {"client": (self._address, 0), "connection": connection}
        self._answered = self._exchange is not None
        exchanges = self.context.exchanges
        self._exchange = exchanges.exchange(scope, connection.receive, connection.send)
        return self._exchange

    # What shares see

    @property
    def worth(self) -> Worth:
        """What is lost with it: gRPC does not say whether a part of its first message has come."""
        return Worth.KEPT if self._answered else Worth.UNANSWERED

    def silence(self, now: float) -> float | None:
        """Seconds that its next message has been waited for; None while its client waits."""
        exchange = self._exchange
        return None if exchange is None or exchange.is_read else exchange.stalled_seconds(now)

    def overdue(self, now: float) -> bool:
        """Never: exchanges end what stalls."""
        return False

    def drop(self) -> bool:
        """End it."""
        return self.give_way()

    def give_way(self) -> bool:
        """End it for a call of another address; False where its message has just come."""
        exchange = self._exchange
        if exchange is None or exchange.is_read:
            return False
        exchange.end(BusyError("the place of this call was given to another address"))
        return True

    async def serve(self, work: Work) -> None:
        """Do ``work`` for a caller who may ask for it, and end the call as it went."""
        named = identity((key.encode(), value.encode()) for key, value in self._metadata)
        token = request_id.set(named)
        began, code = time.perf_counter(), grpc.StatusCode.CANCELLED
        about = (("x-request-id", named),)
        self._wire.set_trailing_metadata(about)
        trace = self._begin_trace()
        try:
            refused = self._refused()
            if refused:
                code = grpc.StatusCode.UNAUTHENTICATED
                await self._wire.abort(code, refused, about)
            async with self._shares.place(self):
                await work(self)
            code = grpc.StatusCode.OK
        except FAILURES as exc:
            code = code_of(exc)
            said = told(exc, self.context.settings.repository)
            await self._wire.abort(code, said, (*about, *hints_of(exc)))
        except aio.AbortError:
            raise
        except Exception:
            code = grpc.StatusCode.INTERNAL
            logging.getLogger(__name__).exception("unexpected error")
            await self._wire.abort(code, _INTERNAL, about)
        finally:
            if trace is not None:
                trace.end_call(code.value[0], code in _FAULTS)
            self._write(code, time.perf_counter() - began)
            request_id.reset(token)

    def _begin_trace(self) -> Trace | None:
        """Begin the trace of the call, if there are any; its spans are found by ``current``."""
        tracing = self.context.tracing
        if tracing is None or self._method in _OPEN:
            return None
        trace = tracing.begin_call(SERVICE, self._method, dict(self._metadata))
        current.set(trace)
        return trace

    def _refused(self) -> str:
        """Return why the caller may ask for nothing, in words; empty: he may, and his key is known."""
        access = self.context.access
        if not access.wants_keys or self._method in _OPEN:
            return ""
        given = self._headers("authorization")
        self.key = access.key(given)
        if self.key is not None:
            return ""
        return why_refused(bool(given))

    def _headers(self, name: str) -> list[str]:
        return [value for key, value in self._metadata if key == name]

    def _write(self, code: grpc.StatusCode, seconds: float) -> None:
        """Write the line of the call, unless it says nothing; as over HTTP."""
        is_well = code is grpc.StatusCode.OK
        log_all = self.context.settings.access_log == "all" and self._method not in _OPEN
        if code in _QUIET or (is_well and not log_all):
            return
        key = {"key": self.key.name} if self.key is not None else {}
        _log.info(
            "call",
            extra={
                "method": self._method,
                "status": code.name,
                "seconds": round(seconds, 6),
                **key,
            },
        )


def _address(wire: ServicerContext) -> str:
    """Return the address of the other end; empty where it has none."""
    found = _PEER.fullmatch(unquote(wire.peer()))
    return found[1] if found else ""


class _Connection:
    """What an exchange sees of its call: one message, which comes when it is asked for, never before."""

    body_has_come = False

    def __init__(self, wire: ServicerContext, task: "asyncio.Task[None] | None") -> None:
        self._wire = wire
        self._task = task
        self._is_read = False

    async def receive(self) -> Message:
        """Return the message as the body of a request; after it there is nothing.

        A client that has no more to say still waits for its answer, and one that leaves has its call
        cancelled: neither is heard of here.
        """
        if self._is_read:
            await asyncio.Event().wait()
        self._is_read = True
        message: object = await self._wire.read()
        if message is aio.EOF:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": message, "more_body": False}

    async def send(self, message: Message) -> None:
        """Return when the message has been sent."""
        await self._wire.write(message["body"])

    def is_closing(self) -> bool:
        return self._wire.done()

    def abort(self) -> None:
        """End the call: who does not take his answer does not take a status either."""
        if self._task is not None:
            self._task.cancel()
