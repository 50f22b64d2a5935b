"""GET / and what the page there asks for. The page is files: no build, no other host, no inline code."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from server.errors import NotFoundError
from server.faults import FAILURES
from server.page.looks import Looks, LookStep, Rows
from server.page.state import Watchers
from server.protocol.answers import FILE_HEADERS, Answer, event, event_stream, file_answer
from server.protocol.errors import reported
from server.protocol.http_request import Rules
from server.protocol.routing import CurrentRequest, Route, route_class, serves

STATIC = Path(str(files("server.page") / "static"))
_FILES = frozenset(path.name for path in STATIC.iterdir())
_HEADERS = {
    **FILE_HEADERS,
    "Content-Security-Policy": (
        "default-src 'none'; connect-src 'self'; img-src 'self' blob:; script-src 'self'; "
        "style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    # A server of another version has other files under the same names.
    "Cache-Control": "no-cache",
}


PAGE = APIRouter(route_class=route_class(Rules(admitted="open")))
MODELS = APIRouter(route_class=Route)
SEARCHES = APIRouter(route_class=route_class(Rules(admitted="admin")))


class ArenaQuery(BaseModel):
    """``version``: None: the latest."""

    version: str | None = None


@serves(PAGE, "GET", "/", include_in_schema=False)
async def page() -> Answer:
    """The page."""
    return file_answer(STATIC / "index.html", _HEADERS)


@serves(PAGE, "GET", "/page/files/{name}", include_in_schema=False)
async def file(name: str) -> Answer:
    """A file of the page."""
    if name not in _FILES:
        raise NotFoundError(f"{name!r}: not a file of the page")
    return file_answer(STATIC / name, _HEADERS)


@serves(MODELS, "GET", "/page/events", include_in_schema=False)
async def events(asked: CurrentRequest) -> Answer:
    """The state of the server as server-sent events."""
    watchers: Watchers = asked.app.state.watchers
    return event_stream(watchers.events(), _HEADERS)


@serves(MODELS, "GET", "/page/models/{name}/arena", include_in_schema=False)
async def arena(
    asked: CurrentRequest, name: str, query: Annotated[ArenaQuery, Query()]
) -> dict[str, Any]:
    """The arena of a loaded model over time."""
    looks: Looks = asked.app.state.looks
    return await looks.arena(name, query.version)


@serves(SEARCHES, "GET", "/page/models/{name}/frontier", include_in_schema=False)
async def frontier(asked: CurrentRequest, name: str) -> Answer:
    """Memory against delay of a loaded model as server-sent events; planned when first asked for.

    Each ``step`` of the search, then the ``plans``, or an ``error`` with its status. When the client leaves
    before, the search ends, unless others wait for it.
    """
    looks: Looks = asked.app.state.looks
    await asked.service.repository.described(
        name
    )  # an error before the first event is answered with its status
    root = asked.service.settings.repository
    return event_stream(_events(looks.frontier(name), root), _HEADERS)


async def _events(said: AsyncGenerator[LookStep | Rows], root: Path) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(said):
            async for each in said:
                if isinstance(each, LookStep):
                    yield event("step", asdict(each))
                else:
                    yield event("plans", each)
    except FAILURES as exc:
        fault = reported(exc, root)
        yield event("error", {**fault.document, "status": fault.code.status})
