"""Answers: a status, headers, and a body that is here as a whole, or comes in parts.

HTTP and gRPC send the same class: to gRPC a message is a whole body, and status and headers say nothing.
Long bodies are made part by part, as fast as the client takes them.
"""

import asyncio
import hashlib
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from http import HTTPStatus
from itertools import chain
from mimetypes import guess_type
from pathlib import Path
from typing import Any

import aiofiles
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.codec.compression import compressed
from server.codec.framing import JSON_LENGTH, Coding
from server.errors import DisconnectedError
from server.faults import Fault
from server.protocol.errors import hints_of
from server.requests.exchange import Client, Exchange

#: Where the scope of a request has what our middleware knows of it, an HttpRequest.
REQUEST = "layerstream.request"

Headers = list[tuple[bytes, bytes]]
Parts = AsyncGenerator[bytes]
JSON = "application/json"


class Answer(Response):
    """``content``: all of the body, or its parts as they come, until the client leaves.

    ``headers``: all of them but those of the connection; how long the body is, where that is known. What
    fails before the first part is answered as if no answer had been there.
    """

    def __init__(  # the base class has nothing else, and would encode headers
        self,
        content: bytes | Parts,
        headers: Headers | None = None,
        status: int = HTTPStatus.OK,
    ) -> None:
        self.content = content
        self.raw_headers = headers or []
        self.status_code = status
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it to the client whose request was served by our middleware."""
        await self.send(scope[REQUEST].exchange)

    async def send(self, exchange: Exchange) -> None:
        """Send it to the client of ``exchange``; no part to one that wants the head alone."""
        client, body = exchange.client, self.content
        if isinstance(body, bytes):
            client.start(self.status_code, self.raw_headers)
            await exchange.send(body)
            return
        async with aclosing(body):
            wants_body = client.wants_body  # else an answer without end would never end
            first = await anext(body, b"") if wants_body else b""
            client.start(self.status_code, self.raw_headers)
            if wants_body:
                with suppress(DisconnectedError), exchange.until_left():
                    await exchange.send(first, more=True)
                    async for part in body:
                        await exchange.send(part, more=True)
        # A client that sees the end finds nothing left of it.
        await exchange.send(b"")


# A body that is here.


def answered(
    body: bytes,
    media: str = JSON,
    status: int = HTTPStatus.OK,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return an answer with a ``body`` that is here."""
    length = (b"content-length", b"%d" % len(body))
    said = [*listed(headers or {}), length, (b"content-type", media.encode())]
    return Answer(body, said, status)


def listed(headers: Mapping[str, str]) -> Headers:
    """Return ``headers`` as an answer has them."""
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def as_json(
    document: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return ``document`` as an answer."""
    return answered(orjson.dumps(document), status=status, headers=headers)


def as_error(
    fault: Fault,
    document: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return ``fault`` as an answer: ``document``, or its own; ``headers``: those it has in addition."""
    if document is None:
        document = fault.document
    return as_json(document, fault.code.status, {**hints_of(fault), **(headers or {})})


# A body that is made: pieces of text, and raw tensors behind it.

_MIXED_TYPE = b"content-type", b"application/octet-stream"
_JSON_LENGTH = JSON_LENGTH.encode()
# So much goes as a whole; and where it could be compressed.
_WHOLE_BYTES = 128 << 10
_WHOLE_UNCOMPRESSED_BYTES = 1 << 10

Make = Callable[[], Iterator[bytes]]


def _nothing() -> Iterator[bytes]:
    return iter(())


async def in_pieces(
    client: Client,
    text: Make,
    raw: Make = _nothing,
    raw_bytes: int = 0,
    *,
    is_mixed: bool = False,
    coding: Coding = "identity",
    media: str = JSON,
) -> Answer:
    """Return the pieces that ``text`` makes each time, then ``raw_bytes`` of ``raw``, as an answer.

    ``media``: what ``text`` is. ``is_mixed``: a header says how long it is. What is little goes whole; else
    a piece is made when the one before has gone, and between two of them others have their turn, also while
    the client takes all that comes. What the headers must say before it is counted on text that is made
    once more.
    """
    begun = text()
    first, second = next(begun), next(begun, None)
    headers: Headers = [_MIXED_TYPE if is_mixed else (b"content-type", media.encode())]
    is_plain = coding == "identity"
    most = _WHOLE_BYTES if is_plain else _WHOLE_UNCOMPRESSED_BYTES
    if second is None and len(first) + raw_bytes <= most:
        body = b"".join((first, *raw())) if raw_bytes else first
        headers.insert(0, (b"content-length", b"%d" % len(body)))
        if is_mixed:
            headers.append((_JSON_LENGTH, b"%d" % len(first)))
        return Answer(body, headers)
    if not is_plain:
        headers.append((b"content-encoding", coding.encode()))
    length = None
    if is_mixed:
        text_bytes = await _length(text())
        headers.append((_JSON_LENGTH, b"%d" % text_bytes))
        length = text_bytes + raw_bytes if is_plain else None
    if length is None and not client.takes_chunks:
        length = await _length(compressed(chain(text(), raw()), coding))
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    all_text = chain((first,) if second is None else (first, second), begun)
    return Answer(_one_by_one(compressed(chain(all_text, raw()), coding)), headers)


async def _one_by_one(pieces: Iterator[bytes]) -> Parts:
    for piece in pieces:
        if piece:
            yield piece
        await asyncio.sleep(0)


async def _length(pieces: Iterator[bytes]) -> int:
    length = 0
    for piece in pieces:
        length += len(piece)
        await asyncio.sleep(0)
    return length


# Files of a page, which is what it says it is, and whose scripts are its own.

#: With each file that a page loads, and with the page: it is what it says it is.
FILE_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_PART_BYTES = 64 << 10


def page_headers(html: str) -> dict[str, str]:
    """Return the headers of the page ``html``: of scripts in it, these run and no others.

    Styles in the page are allowed: Swagger UI sets them by the hundred.
    """
    scripts = " ".join(["'self'", *map(_source, _INLINE.findall(html))])
    policy = (
        "default-src 'none'; connect-src 'self'; img-src 'self' data:; font-src 'self' data:; "
        f"script-src {scripts}; style-src 'self' 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    return {**FILE_HEADERS, "Content-Security-Policy": policy, "X-Frame-Options": "DENY"}


def _source(script: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def file_answer(path: Path, headers: Mapping[str, str]) -> Answer:
    """Return the file at ``path`` as an answer."""
    media = guess_type(path.name)[0] or "application/octet-stream"
    is_text = media.startswith("text/")
    named = {
        **headers,
        "Content-Type": f"{media}; charset=utf-8" if is_text else media,
        "Content-Length": str(path.stat().st_size),
    }
    return Answer(_parts_of(path), listed(named))


async def _parts_of(path: Path) -> Parts:
    async with aiofiles.open(path, "rb") as file:
        while part := await file.read(_PART_BYTES):
            yield part


# Server-sent events: how one is written, and the answer that sends them until they end.

MEDIA_TYPE = "text/event-stream"
#: A line that means nothing, so that a connection with no client behind it any more is found.
STILL_HERE = b":\n\n"


def event(kind: str, said: Any) -> bytes:
    """Return the event ``kind`` that carries ``said`` as JSON, on one line."""
    return written(kind, orjson.dumps(said))


def written(kind: str, document: bytes) -> bytes:
    """Return the event ``kind`` that carries ``document``, one line of JSON."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), document)


def event_stream(events: Parts, headers: Mapping[str, str] | None = None) -> Answer:
    """Return ``events`` as they come, as an answer."""
    named = {
        "Cache-Control": "no-store",
        **(headers or {}),
        "Content-Type": f"{MEDIA_TYPE}; charset=utf-8",
        "X-Accel-Buffering": "no",  # nginx would keep events until it has a page of them
    }
    return Answer(events, listed(named))
