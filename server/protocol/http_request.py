"""A request over HTTP on its way to the router and back: middleware that speaks ASGI and nothing else."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from server.access import Admitted, Key
from server.errors import BusyError
from server.faults import Code, Fault
from server.operation.tracing import Trace, Tracing
from server.protocol import schemas
from server.protocol.administration import Caller, check_host, check_may_change, requester_of
from server.protocol.answers import REQUEST, Answer, as_error
from server.protocol.attending import attend
from server.requests.asgi_client import AsgiClient
from server.requests.exchange import Exchange, Kind
from server.service import Service
from server.transport.intake import PAUSE_SECONDS

Admission = Admitted | Literal["admin"]


def plain_document(fault: Fault) -> Mapping[str, Any]:
    """Return the fields of an error of ours."""
    return fault.document


@dataclass(frozen=True)
class Rules:
    """What must be known of a request before it is routed.

    ``admitted``: which clients may send it. ``body``: which limit its body has. ``is_probe``: whether it is
    a health check or a scrape, which comes every few seconds. ``error``: the schema of its errors;
    ``document``: returns the fields of one.
    """

    admitted: Admission = "infer"
    body: Kind = "body"
    is_probe: bool = False
    error: type[BaseModel] = schemas.Error
    document: Callable[[Fault], Mapping[str, Any]] = plain_document

    @property
    def of_other_methods(self) -> "Rules":
        """The rules for methods that the path does not take."""
        admitted = "infer" if self.admitted == "admin" else self.admitted
        return replace(self, admitted=admitted, body="body")


class RequestMiddleware:
    """Gives each request an id, a key, an exchange, a trace and a line in the log; see ``attend``.

    While ``service`` is not entered, the answer is 503, and says how to enter it. ``rules``: returns those
    of a path, without the prefix of the application, and a method.
    """

    def __init__(self, app: ASGIApp, service: Service, rules: Callable[[str, str], Rules]) -> None:
        self._app, self._service, self._rules = app, service, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if reason := self._service.unavailable:
            document = Fault(Code.NOT_SERVING, reason).document
            await JSONResponse(document, Code.NOT_SERVING.status)(scope, receive, send)
            return
        path = path_within(scope["path"], scope.get("root_path", ""))
        rules = self._rules(path, scope["method"])
        scope[REQUEST] = request = HttpRequest(
            self._app, self._service, rules, scope=scope, receive=receive, send=send
        )
        try:
            await attend(request)
        finally:
            del scope[REQUEST]  # else both would refer to each other


def path_within(path: str, root_path: str) -> str:
    """Return ``path`` without the prefix ``root_path``, under which an application is mounted."""
    rest = path.removeprefix(root_path) if root_path else path
    return rest if rest.startswith("/") else path


class HttpRequest:
    """A request over HTTP, for ``attend`` and for the endpoints of ``app``."""

    kind = "request"
    key: Key | None = None
    #: Open while it is served.
    exchange: Exchange

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        rules: Rules,
        *,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self.service = service
        self._app, self._rules, self._scope, self._receive = app, rules, scope, receive
        self.client = AsgiClient(scope, receive, send)
        self.headers = self.client.headers
        self.is_probe = rules.is_probe

    def header(self, name: str) -> str | None:
        """Return the first header called ``name``, in lower case."""
        value = self.client.first.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def identity(self) -> str:
        """The id under which the log has it, and its answer."""
        return self.client.request_id

    @identity.setter
    def identity(self, identity: str) -> None:
        self.client.request_id = identity

    @property
    def app(self) -> FastAPI:
        """The application that answers it."""
        app: FastAPI = self._scope["app"]
        return app

    @property
    def root_path(self) -> str:
        """The prefix under which the application is mounted."""
        prefix: str = self._scope.get("root_path", "")
        return prefix

    @property
    def caller(self) -> Caller:
        """Where the request comes from."""
        return Caller.of(self.headers, self._peer, self._scope.get("scheme", "http"))

    @property
    def _peer(self) -> str | None:
        peer, server = self._scope.get("client"), self._scope.get("server")
        # No address alone does not mean a Unix socket: a client that reset its connection has none either.
        is_unix = server is not None and server[1] is None
        return peer[0] if peer else None if is_unix else ""

    # What ``attend`` asks

    @property
    def admitted(self) -> Admitted:
        admitted = self._rules.admitted
        return "infer" if admitted == "admin" else admitted  # the role is checked when it is served

    @property
    def who(self) -> str:
        return requester_of(self.key, self._peer)

    @property
    def is_change(self) -> bool:
        return self._rules.admitted == "admin"

    async def serve(self) -> None:
        """Have it answered; raises FAILURES errors, as long as its answer has not begun.

        All that it holds, it holds until its answer was sent.
        """
        service, rules, scope = self.service, self._rules, self._scope
        with service.exchanges.exchange(self.client, rules.body) as self.exchange:
            try:
                check_host(service, self.header("host"))
                if rules.admitted == "admin":
                    check_may_change(service, self.key, self.caller)
                # Handlers of usual rules check it, so that an inference is counted; forms after the key.
                if rules.admitted != "form" and (rules, scope["method"]) != (Rules(), "POST"):
                    self.exchange.check_length()
                if scope["method"] == "POST" and not service.is_divided:
                    raise BusyError(f"the server starts: {service.absence}")
                await self._app(scope, self._receive, self.client.deliver)
            except asyncio.CancelledError:
                # The server ends, and has waited as long as it may.
                if not self.is_begun:
                    fault = Fault(Code.NOT_SERVING, "the server is stopping")
                    await self._error(fault).send(self.exchange)
                raise

    @property
    def is_begun(self) -> bool:
        return self.client.is_begun

    async def refuse(self, fault: Fault) -> None:
        """Answer that it failed, and why; a refusal after a pause, as those of the intake."""
        answerable_at = self.client.answerable_at
        is_refusal = fault.code.status == HTTPStatus.SERVICE_UNAVAILABLE
        if is_refusal and answerable_at is not None:
            await asyncio.sleep(max(answerable_at + PAUSE_SECONDS - time.monotonic(), 0.0))
        with self.service.exchanges.exchange(self.client) as self.exchange:
            await self._error(fault).send(self.exchange)

    def _error(self, fault: Fault) -> Answer:
        return as_error(fault, self._rules.document(fault))

    def begin_trace(self, tracing: Tracing) -> Trace:
        """Begin its trace."""
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in self.headers}
        return tracing.begin(self._scope["method"], self._scope["path"], headers)

    def end_trace(self, trace: Trace) -> None:
        """End it."""
        trace.end(self._status)

    @property
    def _status(self) -> int:
        # What nginx calls a client that closed the connection before an answer.
        return self.client.status or Code.DISCONNECTED.status

    @property
    def outcome(self) -> str:
        if self._status < 400:
            return "well"
        return "busy" if self._status == HTTPStatus.SERVICE_UNAVAILABLE else "failed"

    @property
    def about(self) -> Mapping[str, Any]:
        scope = self._scope
        return {"method": scope["method"], "path": scope["path"][:200], "status": self._status}
