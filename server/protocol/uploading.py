"""A model sent as an ONNX file: answered when it is in the repository, or step by step as it gets there."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from server.errors import InvalidRequestError
from server.protocol.errors import KNOWN, public, status_of
from server.protocol.repository import ADMINISTRATION
from server.protocol.serving import ContextDependency, exchange_of, until_left
from server.repository.uploads.uploads import Placed, Step, Upload
from server.requests.exchange import Exchange

router = APIRouter(prefix="/v2/repository", tags=["repository"])

_PART_BYTES = 1 << 16
_EVENTS = "text/event-stream"

T = TypeVar("T")


@router.post("/models/{name}/upload", dependencies=ADMINISTRATION)
async def upload(context: ContextDependency, request: Request, name: str) -> Response:
    """Take the ONNX file that the body is, compile it, and serve it as the next version of the model.

    Who accepts ``text/event-stream`` is told of each step; others are answered at the end.
    """
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise InvalidRequestError("upload: the body is the ONNX file itself, not a form")
    exchange = exchange_of(request)
    async with AsyncExitStack() as stack:
        taken = await stack.enter_async_context(context.uploads.upload(name))
        async with exchange.within(context.settings.upload_timeout, "the file was not read"):
            await taken.receive(_parts(exchange))
        if _EVENTS in request.headers.get("accept", ""):
            return _Events(context.settings.repository, taken, stack.pop_all())
        placed = await until_left(exchange, _made(taken, _unheard))
        return JSONResponse(_public(placed, context.settings.repository))


async def _parts(exchange: Exchange) -> AsyncIterator[bytes]:
    """Yield the body part by part; a part holds memory of requests, the file none."""
    while not exchange.is_read:
        yield await exchange.part(_PART_BYTES, _PART_BYTES)


async def _made(taken: Upload, tell: Callable[[Step], Awaitable[None]]) -> Placed:
    """Return what became of ``taken``; ``tell`` is called with each step."""
    async with aclosing(taken.make()) as steps:
        async for said in steps:
            if isinstance(said, Placed):
                return said
            await tell(said)
    raise AssertionError("an upload ends with what became of it")


async def _unheard(_: Step) -> None:
    pass


def _public(placed: Placed, root: Path) -> dict[str, Any]:
    return {**placed.as_dict(), "reason": public(placed.reason, root)}


class _Events(Response):
    """Server-sent events: ``step`` as they begin; at the end ``placed``, or ``error`` with its status."""

    def __init__(self, root: Path, taken: Upload, resources: AsyncExitStack) -> None:
        super().__init__(media_type=_EVENTS, headers={"Cache-Control": "no-store"})
        # It ends when it ends.
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._root = root
        self._taken = taken
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; a client that leaves ends the upload."""
        async with self._resources:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            await until_left(scope["exchange"], self._tell_all(send))
        # Whoever sees the end finds nothing left of it.
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell_all(self, send: Send) -> None:
        async def tell(kind: str, said: dict[str, Any]) -> None:
            event = f"event: {kind}\ndata: {json.dumps(said)}\n\n"
            body = event.encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})

        async def tell_step(step: Step) -> None:
            await tell("step", {"step": step.step, "detail": step.detail})

        try:
            placed = await _made(self._taken, tell_step)
        except KNOWN as exc:
            message = public(exc, self._root)
            await tell("error", {"error": message, "status": status_of(exc)})
        else:
            await tell("placed", _public(placed, self._root))
