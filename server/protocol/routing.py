"""The one way of requests: a table says which function answers a path and a method, and who may ask.

Handlers take what is asked and the parts of the path by name, and return an answer or what becomes JSON.
FastAPI's router sees no request: it takes as long as a small network.
"""

import asyncio
import re
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
from server.errors import InvalidRequestError, shown
from server.operation.tracing import Trace, Tracing
from server.protocol.administration import Caller, check_may_change
from server.protocol.answers import Answer, as_error, as_json
from server.protocol.attending import attend
from server.protocol.errors import CLIENT_CLOSED, hints_of, status_of
from server.requests.exchange import Client, Exchange, Kind, headers_named
from server.transport.http1 import Head

Document = dict[str, Any]
Who = Admitted | Literal["admin"]

# Of the paths of requests that came last it is known what they ask; clients may send any.
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
    def is_begun(self) -> bool:
        """Whether the answer is."""


@dataclass(frozen=True)
class Content:
    """A body of one media type; ``schema``: a model, or as JSON Schema has it.

    ``example``: of a body that any model takes, where there is one; a test sends it.
    """

    schema: type[BaseModel] | Document
    media: str = "application/json"
    example: Document | None = None


@dataclass(frozen=True)
class Route:
    """What answers ``method`` of ``path``, and what is told of it.

    ``path``: parts in braces are handed to ``answer`` by name, what is in brackets may be left out.
    ``who``: may ask. ``query``: handed to ``answer`` where it is not None. ``takes``: bodies, where
    ``may_be_empty`` none as well. ``gives``: bodies by status. ``errors``: statuses of others. ``headers``:
    that are read. ``group``: where it is documented; empty: nowhere. ``body``: what it is to limits.
    ``failed``: what an error says beside why.
    """

    method: str
    path: str
    answer: Callable[..., Awaitable[Any]]
    group: str = ""
    gives: Mapping[int, Sequence[Content]] | None = None
    errors: tuple[int, ...] = ()
    who: Who = "infer"
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
    """What answers a path, by method, and its parts by name; ``path``: with these in braces.

    ``admitted``: who may ask for one of these without a key of some role. ``is_probe``: whether it is asked
    every few seconds by what watches the server.
    """

    path: str
    routes: Mapping[str, Route]
    parts: Mapping[str, str]
    admitted: Admitted
    is_probe: bool

    @property
    def failed(self) -> Mapping[str, Any] | None:
        """What an error says beside why."""
        return next(iter(self.routes.values())).failed


class Table:
    """Finds routes; what has an action behind a part of the path comes before what ends with it."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = routes
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            for path in route.paths:
                by_path.setdefault(path, {})[route.method] = route
                if route.method == "GET":
                    by_path[path]["HEAD"] = route
        self._plain = {path: found for path, found in by_path.items() if "{" not in path}
        ordered = sorted(by_path.keys() - self._plain, key=lambda path: "}:" not in path)
        self._patterns = [(_pattern(path), path, by_path[path]) for path in ordered]
        self._actions = sorted({path.rpartition("}:")[2] for path in ordered if "}:" in path})
        self.find = lru_cache(_KNOWN_PATHS)(self._find)

    def _find(self, path: str) -> FoundRoute | None:
        """Return what answers ``path``; None: it is none of this server."""
        if path in self._plain:
            return _found(path, path, self._plain[path], {})
        for pattern, template, routes in self._patterns:
            if match := pattern.fullmatch(path):
                return _found(path, template, routes, match.groupdict())
        return None

    def refused(self, client: HttpClient) -> Answer:
        """Return the answer to what no route answers: a redirection, a 404, or a 405 with all methods.

        A path that ends in NAME:ACTION would be that of a model called so: where no GET is asked of it the
        action is meant, and a 404 names those that there are.
        """
        method, path = client.head.method, client.head.path
        found = self.find(path)
        if found is None:
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
        taken = ", ".join(sorted(found.routes))
        said = f"Method Not Allowed: {shown(path)} takes {taken}"
        return as_error(said, 405, {"Allow": taken}, found.failed)

    def _actions_of(self, place: str) -> Iterator[str]:
        """Yield what may stand behind ``place`` and a colon; nothing where it is no path."""
        for action in self._actions:
            found = self.find(f"{place}:{action}")
            if found is not None and found.path.endswith(f"}}:{action}"):
                yield action


def _found(
    path: str, template: str, routes: Mapping[str, Route], parts: Mapping[str, str]
) -> FoundRoute:
    who = next(iter(routes.values())).who
    is_probe = _PROBES.fullmatch(path) is not None
    return FoundRoute(template, routes, parts, "infer" if who == "admin" else who, is_probe)


def _elsewhere(client: HttpClient, path: str) -> Answer:
    """Return the answer that sends ``client`` to ``path``, of the host that it asked."""
    host = next(iter(headers_named(b"host", client.headers)), "")
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
    """A request over HTTP to ``app``, as what answers it sees it; ``table`` says which function does."""

    kind = "request"
    identity = ""
    key: Key | None = None
    #: Open while it is served.
    exchange: Exchange

    def __init__(self, app: FastAPI, context: Context, table: Table, client: HttpClient) -> None:
        self.app, self.context, self.client = app, context, client
        self.headers = client.head.headers
        self._table = table
        self._found = found = table.find(client.head.path)
        #: Who may ask it without a key of some role; None: nobody, as there is no such thing.
        self.admitted = found and found.admitted
        self.is_probe = found is not None and found.is_probe
        # What nginx calls a client that closed the connection before an answer.
        self._status = CLIENT_CLOSED

    def header(self, name: str) -> str | None:
        """Return the first header called ``name``, in lower case."""
        return next(iter(headers_named(name.encode(), self.headers)), None)

    @property
    def caller(self) -> Caller:
        """Where the request comes from."""
        peer, server = self.client.client, self.client.server
        # A client that has reset its connection has no address any more: that is no Unix socket.
        is_unix = server is not None and server[1] is None
        address = peer[0] if peer else None if is_unix else ""
        return Caller.of(self.headers, address, self.client.scheme)

    # What ``attend`` asks

    async def serve(self) -> None:
        """Answer it; raises FAILURES errors, as long as its answer has not begun."""
        context, head, found = self.context, self.client.head, self._found
        route = found and found.routes.get(head.method)
        kind = "body" if route is None else route.body
        with context.exchanges.exchange(self.client, kind) as self.exchange:
            try:
                self.exchange.check_length()
                if head.method == "POST":
                    context.check_begun()  # as long as the start has not said what requests may hold
                answer: Any
                if found is None or route is None:
                    answer = self._table.refused(self.client)
                else:
                    if route.who == "admin":
                        check_may_change(context, self.key, self.caller)
                    asked = {"query": read_query(route.query, head.query)} if route.query else {}
                    answer = await route.answer(self, **found.parts, **asked)
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
        answer.headers.append((b"x-request-id", self.identity.encode()))
        await answer.send(self.exchange)

    @property
    def is_begun(self) -> bool:
        return self.client.is_begun

    async def refuse(self, why: Exception, said: str) -> None:
        """Answer that it failed, and ``why``."""
        with self.context.exchanges.exchange(self.client) as self.exchange:
            await self._send(self._error(said, status_of(why), hints_of(why)))

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
    """Return what answers requests of ``app`` by its ``table``."""
    return lambda client: attend(context, Asked(app, context, table, client))


def read_query(kind: type[BaseModel], text: bytes) -> BaseModel:
    """Return what the query ``text`` says; of what is given twice, the last counts where it is no list.

    Raises:
        InvalidRequestError: it is none of this ``kind``.
    """
    given = parse_qs(text.decode("latin-1"), keep_blank_values=True) if text else {}
    lists = {name for name, field in kind.model_fields.items() if field.annotation == list[str]}
    try:
        return kind.model_validate(
            {name: values if name in lists else values[-1] for name, values in given.items()}
        )
    except ValidationError as exc:
        first = exc.errors()[0]
        raise InvalidRequestError(
            first_error([{**first, "loc": ("query", *first["loc"])}])
        ) from None
