"""Answers over HTTP: a status, headers, and a body that is here, or comes in parts."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from http import HTTPStatus
from typing import Any, Protocol

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from server.errors import DisconnectedError
from server.protocol.errors import LONGEST_MESSAGE
from server.requests.exchange import Client, Exchange, until_left
from server.transport.http1 import Head

Headers = list[tuple[bytes, bytes]]


class HttpClient(Client, Protocol):
    """The client of a request over HTTP, whose answer begins with a status and headers."""

    @property
    def head(self) -> Head:
        """Of the request."""

    @property
    def client(self) -> tuple[str, int | None] | None:
        """Host and port; None: nobody knows any more, or it is a Unix socket's."""

    @property
    def server(self) -> tuple[str, int | None] | None:
        """The end of the connection on this machine; the path of a Unix socket has no port."""

    @property
    def scheme(self) -> str: ...

    @property
    def is_begun(self) -> bool:
        """Whether the answer is."""

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Begin the answer; its head goes with what is sent first."""


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

        Who asks for the head alone is sent no part: an answer without end would have none for him.
        """
        parts, is_head = self.parts, client.head.method == "HEAD"
        if parts is None:
            client.start(self.status, [*self.headers, _named(identity)])
            await exchange.send(b"" if is_head else self.body)
            return
        async with self._resources or AsyncExitStack(), aclosing(parts):
            client.start(self.status, [*self.headers, _named(identity)])
            if not is_head:
                with suppress(DisconnectedError):
                    await until_left(exchange, _send_all(parts, exchange))
        # Whoever sees the end finds nothing left of it.
        await exchange.send(b"")


def _named(identity: str) -> tuple[bytes, bytes]:
    return b"x-request-id", identity.encode()


async def _send_all(parts: AsyncGenerator[bytes], exchange: Exchange) -> None:
    async for part in parts:
        await exchange.send(part, more=True)


def answered(
    body: bytes,
    media: str = "application/json",
    status: int = HTTPStatus.OK,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return an answer with a ``body`` that is here."""
    said = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    length = (b"content-length", b"%d" % len(body))
    return Answer(status, [*said, length, (b"content-type", media.encode())], body)


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
    """What an ASGI application answers: responses of FastAPI and Starlette, such as pages and files.

    Here alone ASGI is spoken.
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
                client.start(message["status"], [*message.get("headers", ()), _named(identity)])
            else:
                await exchange.send(message.get("body", b""), message.get("more_body", False))

        await self._app(scope_of(client), receive, send)


def scope_of(client: HttpClient) -> dict[str, Any]:
    """Return what ASGI says of the request of ``client``."""
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


def answer_of(what: Any) -> Answer:
    """Return what a handler has returned as an answer: one of ours, Starlette's, or what becomes JSON."""
    if isinstance(what, Answer):
        return what
    return Page(what) if isinstance(what, Response) else as_json(what)
