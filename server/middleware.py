"""What happens to every request: an id, an exchange with its client, one line in the log, an answer."""

import asyncio
import logging
import re
import time

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.operation.logs import identity, request_id
from server.operation.tracing import Tracing, current
from server.requests.exchange import Exchange
from server.requests.exchanges import Exchanges

_log = logging.getLogger("server.access")

# Asked every few seconds by whoever watches, who is told how things are: also while nothing serves.
_PROBES = re.compile(r"/metrics|/v2/health/(live|ready)|/v2/models/[^/]+(/versions/[^/]+)?/ready")
# A refusal is counted (outcome "busy") and comes in floods; a fault has a line of its own.
_QUIET_STATUSES = (503,)


class RequestMiddleware:
    """Gives the request an id (the client's X-Request-ID where sane), opens its exchange, logs it.

    ``log_all``: also what was answered well; metrics count it, and a line takes as long as a tenth of a
    short request.
    """

    def __init__(
        self, app: ASGIApp, exchanges: Exchanges, log_all: bool, tracing: Tracing | None = None
    ) -> None:
        self._app = app
        self._exchanges = exchanges
        self._log_all = log_all
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = identity(scope["headers"])
        token = request_id.set(name)
        try:
            with self._exchanges.exchange(scope, receive, send) as exchange:
                scope["exchange"] = exchange
                answer = _Answer(exchange.send, name)
                await self._answer(scope, exchange, answer)
        finally:
            # It knows who has the scope: a circle of a dozen objects, which only the collector would free.
            scope.pop("exchange", None)
            request_id.reset(token)

    async def _answer(self, scope: Scope, exchange: Exchange, answer: "_Answer") -> None:
        started, receive = time.perf_counter(), exchange.receive
        trace = None
        if self._tracing is not None and not _PROBES.fullmatch(scope["path"]):
            trace = self._tracing.begin(scope)
            current.set(trace)
        try:
            limit = exchange.body_limit
            if exchange.declared_bytes > limit.n_bytes:
                response = JSONResponse({"error": limit.message}, 413, {"connection": "close"})
                await response(scope, receive, answer.send)
            else:
                await self._app(scope, receive, answer.send)
        except asyncio.CancelledError:
            # The server ends, and has waited as long as it may.
            if not answer.begun:
                response = JSONResponse({"error": "the server is stopping"}, 503)
                await response(scope, receive, answer.send)
            raise
        except Exception:
            if answer.begun:
                raise
            logging.getLogger(__name__).exception("unexpected error")
            response = JSONResponse({"error": "internal error; the log has the details"}, 500)
            await response(scope, receive, answer.send)
        finally:
            if trace is not None:
                trace.end(answer.status)
            if answer.status >= 400 or self._log_all:
                _write(scope, answer.status, time.perf_counter() - started)


class _Answer:
    """Sends an answer with the request's id, and remembers its status."""

    def __init__(self, send: Send, identity: str) -> None:
        self._send = send
        self._identity = identity
        self.status = 499  # what nginx calls a client that closed the connection before an answer
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.begun = message["status"], True
            headers = [*message["headers"], (b"x-request-id", self._identity.encode())]
            message = {**message, "headers": headers}
        await self._send(message)


def _write(scope: Scope, status: int, seconds: float) -> None:
    """Write the line of one request, unless it says nothing."""
    if status in _QUIET_STATUSES or _PROBES.fullmatch(scope["path"]):
        return
    # The name of a key, never a header: nothing that a client keeps secret is in a log.
    key = {"key": scope["key"].name} if "key" in scope else {}
    _log.info(
        "request",
        extra={
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 6),
            **key,
        },
    )
