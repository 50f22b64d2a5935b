"""GET / and what the page there asks for. The page is files: no build, no other host, no inline code."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse

from server.errors import NotFoundError
from server.page.events import Watchers
from server.page.looks import Looks, Rows, Step
from server.protocol.browsers import FILE_HEADERS
from server.protocol.errors import KNOWN, public, status_of
from server.protocol.event_stream import EventStream, event
from server.protocol.repository import ADMINISTRATION
from server.protocol.serving import context_of

router = APIRouter(include_in_schema=False)

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


@router.get("/")
async def page() -> FileResponse:
    """The page."""
    return FileResponse(STATIC / "index.html", headers=_HEADERS)


@router.get("/page/files/{name}")
async def file(name: str) -> FileResponse:
    """A file of the page."""
    if name not in _FILES:
        raise NotFoundError(f"{name!r}: not a file of the page")
    return FileResponse(STATIC / name, headers=_HEADERS)


@router.get("/page/events")
async def events(request: Request) -> EventStream:
    """The state of the server as server-sent events."""
    watchers: Watchers = request.app.state.watchers
    stack = AsyncExitStack()
    said = await stack.enter_async_context(watchers.watching())
    return EventStream(said, stack, _HEADERS)


@router.get("/page/models/{name}/arena")
async def arena(request: Request, name: str, version: str | None = None) -> dict[str, Any]:
    """The arena of a loaded model over time."""
    looks: Looks = request.app.state.looks
    return looks.arena(name, version)


@router.get("/page/models/{name}/frontier", dependencies=ADMINISTRATION)
async def frontier(request: Request, name: str) -> EventStream:
    """Memory against delay of a loaded model as server-sent events; planned when first asked for.

    Each ``step`` of the search, then the ``plans``, or an ``error`` with its status. Who leaves before ends
    the search, unless others wait for it.
    """
    looks: Looks = request.app.state.looks
    context_of(request).repository.get(name)  # what cannot be asked for is answered with its status
    root = context_of(request).settings.repository
    return EventStream(_told(looks.frontier(name), root), AsyncExitStack(), _HEADERS)


async def _told(said: AsyncGenerator[Step | Rows], root: Path) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(said):
            async for each in said:
                if isinstance(each, Step):
                    yield event("step", asdict(each))
                else:
                    yield event("plans", each)
    except KNOWN as exc:
        yield event("error", {"error": public(exc, root), "status": status_of(exc)})
