"""How HTTP requests find their handlers: a table has the function for a path and a method, and its keys.

Handlers take the request and the parts of its path by name, and return an answer, or an object that becomes
JSON. FastAPI's router is not used, since it takes as long as a small network.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import parse_qs, quote

from fastapi import FastAPI
from pydantic import BaseModel, ValidationError

from server.access import Admitted, Key
from server.codec.messages import first_error
from server.context import Context
from server.errors import BusyError, InvalidRequestError, shown
from server.operation.tracing import Trace, Tracing
from server.protocol.administration import Caller, check_host, check_may_change
from server.protocol.answers import Answer, Headers, as_error, as_json
from server.protocol.attending import attend
from server.protocol.errors import CLIENT_CLOSED, hints_of, status_of
from server.requests.exchange import Client, Exchange, Kind, headers_named
from server.transport.http1 import Head
from server.transport.intake import PAUSE_SECONDS

Document = dict[str, Any]
Admission = Admitted | Literal["admin"]

# The routes of so many paths are remembered; the number has a limit since clients may send any path.
_KNOWN_PATHS = 64
_PART = re.compile(r"\{(\w+)\}")
_OPTION = re.compile(r"\[(.*)\]")
_PROBES = re.compile(r"/metrics|/v2/health/(live|ready)|/v2/models/[^/]+(/versions/[^/]+)?/ready")


class HttpClient(Client, Protocol):
    """The client of a request over HTTP."""

    @property
    def head(self) -> Head:
        """Of the request."""

    @property
    def client(self) -> tuple[str, int | None] | None:
        """Host and port; None: not known any more, or it is a Unix socket's."""

    @property
    def server(self) -> tuple[str, int | None] | None:
        """The end of the connection on this machine; the path of a Unix socket has no port."""

    @property
    def scheme(self) -> str: ...

    @property
    def answerable_at(self) -> float | None:
        """When it could be answered at the earliest, on time.monotonic's clock; None: unknown."""

    @property
    def is_begun(self) -> bool:
        """Whether the answer is."""


@dataclass(frozen=True)
class Content:
    """A body of one media type; ``schema``: a model, or a JSON Schema.

    ``example``: a body that is right for every model, where there is one; a test sends it.
    """

    schema: type[BaseModel] | Document
    media: str = "application/json"
    example: Document | None = None


@dataclass(frozen=True)
class Route:
    """The handler of ``method`` and ``path``, and its documentation.

    ``path``: parts in braces are handed to ``answer`` by name; the part in brackets may be left out.
    ``admitted``: which requests may ask. ``query``: handed to ``answer`` where it is not None. ``takes``:
    possible bodies of requests; with ``may_be_empty`` also none. ``gives``: bodies of answers by status.
    ``errors``: other statuses. ``headers``: those that are read. ``group``: where it is documented; empty:
    nowhere. ``body``: which limit the body has. ``failed``: fields of an error beside its message.
    """

    method: str
    path: str
    answer: Callable[..., Awaitable[Any]]
    group: str = ""
    gives: Mapping[int, Sequence[Content]] | None = None
    errors: tuple[int, ...] = ()
    admitted: Admission = "infer"
    query: type[BaseModel] | None = None
    takes: tuple[Content, ...] = ()
    may_be_empty: bool = False
    headers: tuple[Document, ...] = ()
    body: Kind = "body"
    failed: Mapping[str, Any] | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Its paths, without brackets."""
        option = _OPTION.search(self.path)
        if option is None:
            return (self.path,)
        return tuple(self.path.replace(option[0], part) for part in (option[1], ""))


class FoundRoute(NamedTuple):
    """The routes of a path by method, and its parts by name; ``path``: the path with braces for the parts.

    ``admitted``: which requests may ask, apart from the role that a handler may need. ``is_probe``: whether
    it is a health check or a scrape, which comes every few seconds.
    """

    path: str
    routes: Mapping[str, Route]
    parts: Mapping[str, str]
    admitted: Admitted
    is_probe: bool

    @property
    def failed(self) -> Mapping[str, Any] | None:
        """The fields of an error beside its message."""
        return next(iter(self.routes.values())).failed


class Table:
    """Finds routes. NAME:ACTION comes before NAME, which would match as well."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = routes
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            for path in route.paths:
                by_path.setdefault(path, {})[route.method] = route
                if route.method == "GET":
                    by_path[path]["HEAD"] = route
        self._plain = {
            path: routes_of_path for path, routes_of_path in by_path.items() if "{" not in path
        }
        ordered = sorted(by_path.keys() - self._plain, key=lambda path: "}:" not in path)
        self._patterns = [(_pattern(path), path, by_path[path]) for path in ordered]
        self._actions = sorted({path.rpartition("}:")[2] for path in ordered if "}:" in path})
        self.find = lru_cache(_KNOWN_PATHS)(self._find)

    def _find(self, path: str) -> FoundRoute | None:
        """Return the routes of ``path``; None: the server has no such path."""
        if path in self._plain:
            return _found(path, path, self._plain[path], {})
        for pattern, template, routes in self._patterns:
            if match := pattern.fullmatch(path):
                return _found(path, template, routes, match.groupdict())
        return None

    def refused(self, client: HttpClient) -> Answer:
        """Return the answer to a request without a route: a redirection, a 404, or a 405 with all methods.

        NAME:ACTION with an unknown action matches the path of a model of that name. Except for a GET the
        client means an action, so a 404 names the actions that there are.
        """
        method, path = client.head.method, client.head.path
        match = self.find(path)
        if match is None:
            if path.endswith("/") and self.find(path.rstrip("/")):
                return _elsewhere(client, path.rstrip("/"))
            return as_error(f"Not Found: {shown(path)} is no path of this server", 404)
        place, _, action = path.rpartition(":")
        actions = list(self._actions_of(place))
        if method not in ("GET", "HEAD") and action not in actions and actions:
            there_are = ", ".join(f":{each}" for each in actions)
            return as_error(
                f"Not Found: {shown(place)} has no action {shown(action)}; there are {there_are}",
                404,
            )
        methods = ", ".join(sorted(match.routes))
        message = f"Method Not Allowed: {shown(path)} takes {methods}"
        return as_error(message, 405, {"Allow": methods}, match.failed)

    def _actions_of(self, place: str) -> Iterator[str]:
        """Yield the actions that may follow ``place`` and a colon; nothing where it is no path."""
        for action in self._actions:
            match = self.find(f"{place}:{action}")
            if match is not None and match.path.endswith(f"}}:{action}"):
                yield action


def _found(
    path: str, template: str, routes: Mapping[str, Route], parts: Mapping[str, str]
) -> FoundRoute:
    admission = next(iter(routes.values())).admitted
    admitted: Admitted = (
        "infer" if admission == "admin" else admission
    )  # the handler checks the role
    is_probe = _PROBES.fullmatch(path) is not None
    return FoundRoute(template, routes, parts, admitted, is_probe)


def _elsewhere(client: HttpClient, path: str) -> Answer:
    """Return the answer that sends ``client`` to ``path``, of the host that it asked."""
    host = next(iter(headers_named(b"host", client.head.headers)), "")
    place = f"{client.scheme}://{host}{path}" if host else path
    query = f"?{client.head.query.decode('latin-1')}" if client.head.query else ""
    there = quote(place + query, safe=":/%#?=@[]!$&'()*+,;")
    length = b"content-length", b"0"
    return Answer(b"", [length, (b"location", there.encode())], HTTPStatus.TEMPORARY_REDIRECT)


def _pattern(path: str) -> re.Pattern[str]:
    texts = _PART.split(path)
    texts[::2] = map(re.escape, texts[::2])
    texts[1::2] = [f"(?P<{name}>[^/]+)" for name in texts[1::2]]
    return re.compile("".join(texts))


class Asked:
    """A request over HTTP to ``app``, as its handler, which ``table`` names, sees it."""

    kind = "request"
    identity = ""
    key: Key | None = None
    #: Open while it is served.
    exchange: Exchange

    def __init__(self, app: FastAPI, context: Context, table: Table, client: HttpClient) -> None:
        self.app, self.context, self.client = app, context, client
        self.headers = client.head.headers
        self._table = table
        self._found = match = table.find(client.head.path)
        #: Which requests are admitted; None: there is no such route.
        self.admitted = match and match.admitted
        self.is_probe = match is not None and match.is_probe
        #: Headers of the answer, beside its own.
        self.said: Headers = []
        # What nginx calls a client that closed the connection before an answer.
        self._status = CLIENT_CLOSED

    def header(self, name: str) -> str | None:
        """Return the first header called ``name``, in lower case."""
        return next(iter(headers_named(name.encode(), self.headers)), None)

    @property
    def caller(self) -> Caller:
        """Where the request comes from."""
        peer, server = self.client.client, self.client.server
        # No address alone does not mean a Unix socket: a client that reset its connection has none either.
        is_unix = server is not None and server[1] is None
        address = peer[0] if peer else None if is_unix else ""
        return Caller.of(self.headers, address, self.client.scheme)

    # What ``attend`` asks

    async def serve(self) -> None:
        """Answer it; raises FAILURES errors, as long as its answer has not begun."""
        context, head, match = self.context, self.client.head, self._found
        route = match and match.routes.get(head.method)
        kind = "body" if route is None else route.body
        with context.exchanges.exchange(self.client, kind) as self.exchange:
            try:
                check_host(context, self.header("host"))
                if route is not None and route.admitted == "admin":
                    check_may_change(context, self.key, self.caller)
                if self.admitted != "form":
                    self.exchange.check_length()
                if head.method == "POST" and not context.is_divided:
                    raise BusyError(f"the server starts: {context.absence}")
                answer: Any
                if match is None or route is None:
                    answer = self._table.refused(self.client)
                else:
                    asked = {"query": read_query(route.query, head.query)} if route.query else {}
                    answer = await route.answer(self, **match.parts, **asked)
                await self._send(answer)
            except asyncio.CancelledError:
                # The server ends, and has waited as long as it may.
                if not self.is_begun:
                    await self._send(self._error("the server is stopping", 503))
                raise

    async def _send(self, what: Any) -> None:
        """Send what a handler has returned: an answer, or what becomes JSON."""
        answer = what if isinstance(what, Answer) else as_json(what)
        self._status = answer.status
        answer.headers += [*self.said, (b"x-request-id", self.identity.encode())]
        await answer.send(self.exchange)

    @property
    def is_begun(self) -> bool:
        return self.client.is_begun

    async def refuse(self, why: Exception, said: str) -> None:
        """Answer that it failed, and ``why``; a refusal after a pause, as those of the intake."""
        status, answerable_at = status_of(why), self.client.answerable_at
        if status == HTTPStatus.SERVICE_UNAVAILABLE and answerable_at is not None:
            await asyncio.sleep(max(answerable_at + PAUSE_SECONDS - time.monotonic(), 0.0))
        with self.context.exchanges.exchange(self.client) as self.exchange:
            await self._send(self._error(said, status, hints_of(why)))

    def _error(self, said: str, status: int, hints: Mapping[str, str] | None = None) -> Answer:
        return as_error(said, status, hints, self._found and self._found.failed)

    def begin_trace(self, tracing: Tracing) -> Trace:
        """Begin its trace."""
        head = self.client.head
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in head.headers}
        return tracing.begin(head.method, head.path, headers)

    def end_trace(self, trace: Trace) -> None:
        """End it."""
        trace.end(self._status)

    @property
    def outcome(self) -> str:
        if self._status < 400:
            return "well"
        return "busy" if self._status == 503 else "failed"

    @property
    def about(self) -> Mapping[str, Any]:
        head = self.client.head
        return {"method": head.method, "path": head.path[:200], "status": self._status}


def answering(
    app: FastAPI, context: Context, table: Table
) -> Callable[[HttpClient], Awaitable[None]]:
    """Return the function that answers requests of ``app`` by its ``table``."""
    return lambda client: attend(Asked(app, context, table, client))


def read_query(kind: type[BaseModel], text: bytes) -> BaseModel:
    """Return the query ``text`` parsed; of a field that is given twice, the last counts if it is no list.

    Raises:
        InvalidRequestError: it is not of this ``kind``.
    """
    values_by_name = parse_qs(text.decode("latin-1"), keep_blank_values=True) if text else {}
    lists = {name for name, field in kind.model_fields.items() if field.annotation == list[str]}
    try:
        return kind.model_validate(
            {
                name: values if name in lists else values[-1]
                for name, values in values_by_name.items()
            }
        )
    except ValidationError as exc:
        first = exc.errors()[0]
        raise InvalidRequestError(
            first_error([{**first, "loc": ("query", *first["loc"])}])
        ) from None
