"""GET / and what the page there asks for. The page is files: no build, no other host, no inline code."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from server.context import Context
from server.errors import NotFoundError
from server.page.events import Watchers
from server.page.looks import Looks
from server.page.state import state
from server.protocol.browsers import FILE_HEADERS
from server.protocol.errors import public
from server.protocol.repository import ADMINISTRATION
from server.protocol.serving import ContextDependency

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
async def events(request: Request, context: ContextDependency) -> StreamingResponse:
    """The state of the server as server-sent events."""
    watchers: Watchers = request.app.state.watchers

    async def now() -> dict[str, Any]:
        on_disk = await asyncio.to_thread(_on_disk, context)
        return state(context, on_disk, lambda text: public(text, context.settings.repository))

    return _Following(watchers.watch(now), media_type="text/event-stream", headers=_HEADERS)


class _Following(StreamingResponse):
    """Ends its events with itself: who left while one was sent would be counted on as one who watches."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(cast(AsyncGenerator[bytes], self.body_iterator)):
            await super().__call__(scope, receive, send)


def _on_disk(context: Context) -> list[str]:
    try:
        return context.repository.names()
    except NotFoundError:  # the folder is gone; those that are loaded are shown
        return []


@router.get("/page/models/{name}/arena")
async def arena(request: Request, name: str, version: str | None = None) -> dict[str, Any]:
    """The arena of a loaded model over time."""
    looks: Looks = request.app.state.looks
    return looks.arena(name, version)


@router.get("/page/models/{name}/frontier", dependencies=ADMINISTRATION)
async def frontier(request: Request, name: str) -> list[dict[str, Any]]:
    """Memory against delay of a loaded model; planned when first asked for, on a core."""
    looks: Looks = request.app.state.looks
    return await looks.frontier(name)
