"""GET / and what the page there asks for. The page is files: no build, no other host, no inline code."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from server.errors import NotFoundError
from server.failures import FAILURES
from server.page.looks import Looks, LookStep, Rows
from server.page.state import Watchers
from server.protocol.answers import FILE_HEADERS, Answer, event, event_stream, file_answer
from server.protocol.errors import status_of, told
from server.protocol.routing import Asked

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


class ArenaQuery(BaseModel):
    """``version``: None: the latest."""

    version: str | None = None


async def page(asked: Asked) -> Answer:
    """The page."""
    return file_answer(STATIC / "index.html", _HEADERS)


async def file(asked: Asked, name: str) -> Answer:
    """A file of the page."""
    if name not in _FILES:
        raise NotFoundError(f"{name!r}: not a file of the page")
    return file_answer(STATIC / name, _HEADERS)


async def events(asked: Asked) -> Answer:
    """The state of the server as server-sent events."""
    watchers: Watchers = asked.app.state.watchers
    return event_stream(watchers.events(), _HEADERS)


async def arena(asked: Asked, name: str, query: ArenaQuery) -> dict[str, Any]:
    """The arena of a loaded model over time."""
    looks: Looks = asked.app.state.looks
    return looks.arena(name, query.version)


async def frontier(asked: Asked, name: str) -> Answer:
    """Memory against delay of a loaded model as server-sent events; planned when first asked for.

    Each ``step`` of the search, then the ``plans``, or an ``error`` with its status. When the client leaves
    before, the search ends, unless others wait for it.
    """
    looks: Looks = asked.app.state.looks
    await asked.context.repository.described(
        name
    )  # an error before the first event is answered with its status
    root = asked.context.settings.repository
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
        yield event("error", {"error": told(exc, root), "status": status_of(exc)})
