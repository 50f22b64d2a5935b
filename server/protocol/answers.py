"""Answers over HTTP: a status, headers, and a body as a whole or in parts.

A long body is written piece by piece, as fast as the client takes it.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from hashlib import sha256
from http import HTTPStatus
from itertools import chain
from typing import Any, Protocol

import orjson
from starlette.types import ASGIApp, Message

from server.codec.compression import compressed
from server.codec.framing import JSON_LENGTH, Coding
from server.errors import DisconnectedError
from server.protocol.errors import LONGEST_MESSAGE
from server.requests.exchange import Client, Exchange, until_left
from server.transport.http1 import Head

_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)

#: The headers of a page and of each file that it loads: browsers must not guess another media type.
FILE_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def page_headers(html: str) -> dict[str, str]:
    """Return the headers of the page ``html``, which let browsers run its scripts and no others.

    Styles in the page are allowed, since Swagger UI sets hundreds of them.
    """
    scripts = " ".join(["'self'", *map(_source, _INLINE.findall(html))])
    policy = (
        "default-src 'none'; connect-src 'self'; img-src 'self' data:; font-src 'self' data:; "
        f"script-src {scripts}; style-src 'self' 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    return {**FILE_HEADERS, "Content-Security-Policy": policy, "X-Frame-Options": "DENY"}


def _source(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


Headers = list[tuple[bytes, bytes]]

_JSON, _MIXED = "application/json", "application/octet-stream"
_MIXED_TYPE = b"content-type", _MIXED.encode()
_JSON_LENGTH = JSON_LENGTH.encode()
# Bodies up to this size are sent whole; where the client takes compressed ones, up to the second size.
_WHOLE_BYTES = 128 << 10
_WHOLE_UNCOMPRESSED_BYTES = 1 << 10

Make = Callable[[], Iterator[bytes]]


class HttpClient(Client, Protocol):
    """The client of a request over HTTP, whose answer begins with a status and headers."""

    @property
    def head(self) -> Head:
        """The head of the request."""

    @property
    def client(self) -> tuple[str, int | None] | None:
        """Host and port; None: they are not known any more, or the connection is a Unix socket's."""

    @property
    def server(self) -> tuple[str, int | None] | None:
        """The end of the connection on this machine; the path of a Unix socket has no port."""

    @property
    def scheme(self) -> str: ...

    @property
    def is_begun(self) -> bool:
        """Whether the answer has begun."""

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Begin the answer; its head is sent together with the first bytes of the body."""


class Answer:
    """``body``, or ``parts`` as they come, until the client leaves; then ``resources`` are closed.

    ``headers``: all of them, but for those of the connection.
    """

    def __init__(
        self,
        status: int,
        headers: Headers,
        body: bytes = b"",
        parts: AsyncGenerator[bytes] | None = None,
        resources: AsyncExitStack | None = None,
    ) -> None:
        self.status, self.headers, self.body = status, headers, body
        self.parts, self._resources = parts, resources

    async def send(self, exchange: Exchange, client: HttpClient, identity: str) -> None:
        """Send it to ``client``, with the ``identity`` of its request.

        A HEAD request is sent no part, not even made and thrown away: some answers have no end.
        """
        parts, is_head = self.parts, client.head.method == "HEAD"
        named = b"x-request-id", identity.encode()
        if parts is None:
            client.start(self.status, [*self.headers, named])
            await exchange.send(b"" if is_head else self.body)
            return
        await self.describe(client.head.version == "1.0")
        async with self._resources or AsyncExitStack(), aclosing(parts):
            client.start(self.status, [*self.headers, named])
            if not is_head:
                with suppress(DisconnectedError):
                    await until_left(exchange, _send_all(parts, exchange))
        # The resources are closed by now, so a client that sees the end may rely on that.
        await exchange.send(b"")

    async def describe(self, knows_no_chunks: bool) -> None:
        """Add the headers of a body in parts that take time to make, before the first part is sent."""


async def _send_all(parts: AsyncGenerator[bytes], exchange: Exchange) -> None:
    async for part in parts:
        await exchange.send(part, more=True)


def _nothing() -> Iterator[bytes]:
    return iter(())


class Pieces(Answer):
    """An answer of the pieces that ``text`` makes each time, then of ``raw_bytes`` that ``raw`` makes.

    ``media``: the type of ``text``. ``is_mixed``: a header has the length of ``text``. A short answer is
    sent whole. Of a long one a piece is made when the one before was sent, and other tasks run between two
    pieces, also while the client takes them as fast as they are made.
    """

    def __init__(
        self,
        text: Make,
        raw: Make = _nothing,
        raw_bytes: int = 0,
        is_mixed: bool = False,
        coding: Coding = "identity",
        media: str = _JSON,
    ) -> None:
        self._make, self._raw, self._raw_bytes = text, raw, raw_bytes
        self._is_mixed, self._coding = is_mixed, coding
        begun = text()
        first, second = next(begun), next(begun, None)
        most = _WHOLE_BYTES if coding == "identity" else _WHOLE_UNCOMPRESSED_BYTES
        headers: Headers = [_MIXED_TYPE if is_mixed else (b"content-type", media.encode())]
        if second is None and len(first) + raw_bytes <= most:
            body = b"".join((first, *raw())) if raw_bytes else first
            headers.insert(0, (b"content-length", b"%d" % len(body)))
            if is_mixed:
                headers.append((_JSON_LENGTH, b"%d" % len(first)))
            super().__init__(200, headers, body)
        else:
            all_text = chain((first,) if second is None else (first, second), begun)
            super().__init__(200, headers, parts=self._one_by_one(all_text))

    async def _one_by_one(self, text: Iterator[bytes]) -> AsyncGenerator[bytes]:
        for piece in self._pieces(text):
            if piece:
                yield piece
            await asyncio.sleep(0)

    def _pieces(self, text: Iterator[bytes]) -> Iterator[bytes]:
        """Yield all pieces in their coding, those of ``text`` first; some may be empty."""
        return compressed(chain(text, self._raw()), self._coding)

    async def describe(self, knows_no_chunks: bool) -> None:
        """Add the lengths that clients need in front; to count them the text is made once more."""
        is_plain = self._coding == "identity"
        if not is_plain:
            self.headers.append((b"content-encoding", self._coding.encode()))
        text_bytes = 0
        if self._is_mixed:
            text_bytes = await _length(self._make())
            self.headers.append((_JSON_LENGTH, b"%d" % text_bytes))
        length = None
        if self._is_mixed and is_plain:
            length = text_bytes + self._raw_bytes
        elif knows_no_chunks:
            length = await _length(self._pieces(self._make()))
        if length is not None:
            self.headers.append((b"content-length", b"%d" % length))


async def _length(pieces: Iterator[bytes]) -> int:
    length = 0
    for piece in pieces:
        length += len(piece)
        await asyncio.sleep(0)
    return length


def answered(
    body: bytes,
    media: str = "application/json",
    status: int = HTTPStatus.OK,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return an answer with ``body``."""
    listed = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    length = (b"content-length", b"%d" % len(body))
    return Answer(status, [*listed, length, (b"content-type", media.encode())], body)


def as_json(
    document: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return ``document`` as an answer."""
    return answered(orjson.dumps(document), status=status, headers=headers)


def as_error(
    message: str,
    status: int,
    headers: Mapping[str, str] | None = None,
    beside: Mapping[str, Any] | None = None,
) -> Answer:
    """Return an answer that is an error; ``beside``: other fields of it."""
    return as_json({**(beside or {}), "error": message[:LONGEST_MESSAGE]}, status, headers)


class Page(Answer):
    """The answer of an ASGI application: responses of FastAPI and Starlette, such as pages and files.

    Only this class uses ASGI.
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(HTTPStatus.OK, [])
        self._app = app

    async def send(self, exchange: Exchange, client: HttpClient, identity: str) -> None:
        """Have the application answer ``client``."""

        async def receive() -> Message:
            if exchange.is_read:
                await exchange.left()
                return {"type": "http.disconnect"}
            try:
                body = await exchange.part()
            except DisconnectedError:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body, "more_body": not exchange.is_read}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                named = b"x-request-id", identity.encode()
                client.start(message["status"], [*message.get("headers", ()), named])
            else:
                await exchange.send(message.get("body", b""), message.get("more_body", False))

        await self._app(scope_of(client), receive, send)


def scope_of(client: HttpClient) -> dict[str, Any]:
    """Return the request of ``client`` as ASGI describes it."""
    head = client.head
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "server": client.server,
        "client": client.client,
        "scheme": client.scheme,
        "root_path": "",
        "method": head.method,
        "path": head.path,
        "raw_path": head.raw_path,
        "query_string": head.query,
        "headers": head.headers,
    }


# Server-sent events: how one is written, and the answer that sends them until they end.

MEDIA_TYPE = "text/event-stream"
_TYPE = f"{MEDIA_TYPE}; charset=utf-8"
#: A comment line: sending it shows whether the client is still there.
STILL_HERE = b":\n\n"


def event(kind: str, said: Any) -> bytes:
    """Return the event ``kind`` that carries ``said`` as JSON, on one line."""
    return written(kind, orjson.dumps(said))


def written(kind: str, document: bytes) -> bytes:
    """Return the event ``kind`` that carries ``document``, one line of JSON."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), document)


def event_stream(
    events: AsyncGenerator[bytes],
    resources: AsyncExitStack,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return ``events`` as they come, as an answer.

    ``resources``: closed when they have ended, before the client sees the end.
    """
    named = {
        "Cache-Control": "no-store",
        **(headers or {}),
        "Content-Type": _TYPE,
        "X-Accel-Buffering": "no",  # nginx would keep events until it has a page of them
    }
    listed = [(name.lower().encode(), value.encode()) for name, value in named.items()]
    return Answer(200, listed, parts=events, resources=resources)
