"""A model sent as an ONNX file: answered when it is in the repository, or step by step as it gets there."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from server.codec.framing import check_not_encoded
from server.errors import InvalidRequestError
from server.failures import FAILURES, reason_of
from server.protocol.answers import Answer
from server.protocol.errors import status_of, told
from server.protocol.event_stream import MEDIA_TYPE, event, event_stream
from server.protocol.routing import Asked
from server.repository.uploads import PlacedVersion, Upload
from server.requests.exchange import Exchange, until_left
from server.settings.sizes import parse_shapes

_PART_BYTES = 1 << 16


class UploadQuery(BaseModel):
    """``shape``: NAME=1,3,224,224, of an input whose file leaves it open."""

    shape: list[str] = []


async def upload(asked: Asked, name: str, query: UploadQuery) -> Answer | dict[str, Any]:
    """Take the ONNX file that the body is, compile it, and serve it as the next version of the model.

    ``shape``: NAME=1,3,224,224, of an input whose file leaves it open; for several inputs repeated.
    Who accepts ``text/event-stream`` is told of each step; others are answered at the end.
    """
    context, exchange = asked.context, asked.exchange
    if (asked.header("content-type") or "").startswith("multipart/"):
        raise InvalidRequestError("upload: the body is the ONNX file itself, not a form")
    check_not_encoded(asked.headers)
    shapes = _shapes(query.shape)
    async with AsyncExitStack() as stack:
        taken = await stack.enter_async_context(context.uploads.upload(name, shapes))
        async with exchange.within(context.settings.upload_timeout, "the file was not read"):
            await taken.receive(_parts(exchange))
        if MEDIA_TYPE in (asked.header("accept") or ""):
            return event_stream(_events(taken, context.settings.repository), stack.pop_all())
        placed = await until_left(exchange, _placed(taken))
        return _public(placed, context.settings.repository)


def _shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs by name.

    Raises:
        InvalidRequestError: one is none.
    """
    try:
        return parse_shapes(texts)
    except ValueError as exc:
        raise InvalidRequestError(f"parameter shape: {exc}") from exc


async def _parts(exchange: Exchange) -> AsyncIterator[bytes]:
    """Yield the body part by part; a part holds memory of requests, the file none."""
    yield await exchange.beginning()
    while not exchange.is_read:
        await exchange.hold(_PART_BYTES)
        yield await exchange.part()


async def _placed(taken: Upload) -> PlacedVersion:
    """Return what became of ``taken``."""
    async with aclosing(taken.make()) as steps:
        async for said in steps:
            if isinstance(said, PlacedVersion):
                return said
    raise AssertionError("an upload ends with what became of it")


def _public(placed: PlacedVersion, root: Path) -> dict[str, Any]:
    return {**placed.as_dict(), "reason": reason_of(placed.reason, root)}


async def _events(taken: Upload, root: Path) -> AsyncGenerator[bytes]:
    """Yield the events of ``taken``: each ``step``, then ``placed``, or ``error`` with its status."""
    try:
        async with aclosing(taken.make()) as steps:
            async for said in steps:
                if isinstance(said, PlacedVersion):
                    yield event("placed", _public(said, root))
                else:
                    yield event("step", {"step": said.step, "detail": said.detail})
    except FAILURES as exc:
        yield event("error", {"error": told(exc, root), "status": status_of(exc)})
