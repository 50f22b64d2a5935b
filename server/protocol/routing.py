"""The one way of requests: a table says which function answers a path and a method, and who may ask.

Handlers take what is asked and the parts of the path by name, and return an answer or what becomes JSON.
FastAPI's router sees no request: it takes as long as a small network.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs

import orjson
from fastapi import FastAPI
from pydantic import BaseModel, ValidationError
from starlette.datastructures import URL, Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from server.access.guard import Admitted, refusal
from server.codec.fields import first_error
from server.context import Context
from server.errors import InvalidRequestError, shown
from server.failures import FAILURES
from server.protocol.administration import Caller, check_may_change
from server.protocol.errors import answer_error, error_answer
from server.requests.exchange import Exchange

Document = dict[str, Any]
Who = Admitted | Literal["admin"]

# Of the paths of requests that came last it is known what they ask; clients may send any.
_KNOWN_PATHS = 64
_PART = re.compile(r"\{(\w+)\}")
_OPTION = re.compile(r"\[(.*)\]")


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
    that are read. ``group``: where it is documented; empty: nowhere.
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

    @property
    def paths(self) -> tuple[str, ...]:
        """Its paths, without brackets."""
        option = _OPTION.search(self.path)
        if option is None:
            return (self.path,)
        return tuple(self.path.replace(option[0], part) for part in (option[1], ""))


class Found(NamedTuple):
    """What answers a path, by method, and its parts by name; ``path``: with these in braces."""

    path: str
    routes: Mapping[str, Route]
    parts: Mapping[str, str]

    def route(self, method: str) -> Route | None:
        """Return what answers ``method``; HEAD is answered as GET."""
        return self.routes.get("GET" if method == "HEAD" else method)

    @property
    def admitted(self) -> Admitted:
        """Who may ask for one of these without a key of some role."""
        who = next(iter(self.routes.values())).who
        return "infer" if who == "admin" else who


class Table:
    """Finds routes; what has an action behind a part of the path comes before what ends with it."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = routes
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            for path in route.paths:
                by_path.setdefault(path, {})[route.method] = route
        self._plain = {path: found for path, found in by_path.items() if "{" not in path}
        ordered = sorted(by_path.keys() - self._plain, key=lambda path: "}:" not in path)
        self._patterns = [(_pattern(path), path, by_path[path]) for path in ordered]
        self._actions = sorted({path.rpartition("}:")[2] for path in ordered if "}:" in path})
        self.find = lru_cache(_KNOWN_PATHS)(self._find)

    def _find(self, path: str) -> Found | None:
        """Return what answers ``path``; None: it is none of this server."""
        if path in self._plain:
            return Found(path, self._plain[path], {})
        for pattern, template, routes in self._patterns:
            if found := pattern.fullmatch(path):
                return Found(template, routes, found.groupdict())
        return None

    def refused(self, scope: Scope) -> Response:
        """Return the answer to what no route answers: a redirection, a 404, or a 405 with all methods.

        A path that ends in NAME:ACTION would be that of a model called so: where no GET is asked of it the
        action is meant, and a 404 names those that there are.
        """
        path, found = scope["path"], self.find(scope["path"])
        if found is None:
            if path.endswith("/") and self.find(path.rstrip("/")):
                return RedirectResponse(str(URL(scope={**scope, "path": path.rstrip("/")})))
            return error_answer(f"Not Found: {shown(path)} is no path of this server", 404)
        place, _, action = path.rpartition(":")
        actions = list(self._actions_of(place))
        if scope["method"] not in ("GET", "HEAD") and action not in actions and actions:
            there_are = ", ".join(f":{each}" for each in actions)
            return error_answer(
                f"Not Found: {shown(place)} has no action {shown(action)}; there are {there_are}",
                404,
            )
        methods = {*found.routes} | ({"HEAD"} if "GET" in found.routes else set())
        taken = ", ".join(sorted(methods))
        said = f"Method Not Allowed: {shown(path)} takes {taken}"
        return error_answer(said, 405, {"Allow": taken})

    def _actions_of(self, place: str) -> Iterator[str]:
        """Yield what may stand behind ``place`` and a colon; nothing where it is no path."""
        for action in self._actions:
            found = self.find(f"{place}:{action}")
            if found is not None and found.path.endswith(f"}}:{action}"):
                yield action


def _pattern(path: str) -> re.Pattern[str]:
    texts = _PART.split(path)
    texts[::2] = map(re.escape, texts[::2])
    texts[1::2] = [f"(?P<{name}>[^/]+)" for name in texts[1::2]]
    return re.compile("".join(texts))


class Asked(NamedTuple):
    """A request as what answers it sees it."""

    app: FastAPI
    context: Context
    exchange: Exchange
    scope: Scope

    @property
    def headers(self) -> Headers:
        return Headers(scope=self.scope)


class Front:
    """Answers the requests of ``app`` by its ``table``."""

    def __init__(self, app: FastAPI, context: Context, table: Table) -> None:
        self._app = app
        self._context = context
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] == "HEAD":
            send = head_of(send)
        try:
            response = await self._answer(scope)
        except FAILURES as exc:
            response = answer_error(exc, self._context.settings.repository)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response:
        """Return the answer to one request; raises FAILURES errors."""
        context, found = self._context, self._table.find(scope["path"])
        if context.access.wants_keys and not context.access.admits(found and found.admitted):
            given = Headers(scope=scope).getlist("authorization")
            key = context.access.key(given)
            if key is None:
                return refusal(bool(given))
            scope["key"] = key
        if scope["method"] == "POST":
            context.check_begun()  # as long as the start has not said what requests may hold
        route = found and found.route(scope["method"])
        if found is None or route is None:
            return self._table.refused(scope)
        if route.who == "admin":
            check_may_change(context, scope.get("key"), Caller.of(scope))
        asked = Asked(self._app, context, scope["exchange"], scope)
        if route.query is None:
            answer = await route.answer(asked, **found.parts)
        else:
            query = read_query(route.query, scope["query_string"])
            answer = await route.answer(asked, **found.parts, query=query)
        if isinstance(answer, Response):
            return answer
        return Response(orjson.dumps(answer), media_type="application/json")


def read_query(kind: type[BaseModel], text: bytes) -> BaseModel:
    """Return what the query ``text`` says; of what is given twice, the last counts where it is no list.

    Raises:
        InvalidRequestError: it is none of this ``kind``.
    """
    given = parse_qs(text.decode("latin-1"), keep_blank_values=True)
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


def head_of(send: Send) -> Send:
    """Return what sends the head of an answer and keeps the body back: the answer ends where that begins.

    An answer that has no end would keep its client waiting; whoever makes one finds its client gone.
    """
    is_over = False

    async def send_head(message: Message) -> None:
        nonlocal is_over
        if is_over:
            return
        if message["type"] == "http.response.body":
            is_over, message = True, {**message, "body": b"", "more_body": False}
        await send(message)

    return send_head
