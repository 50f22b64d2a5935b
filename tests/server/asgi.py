"""Tests speak ASGI: their clients (httpx) to what answers requests, their applications to connections."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from server.errors import DisconnectedError
from server.protocol.routing import HttpClient
from server.transport.http1 import Head

Asgi = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class _Client:
    """The client of a request that an ASGI server has; ``scope["connection"]``: what is asked of that."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        version = scope["http_version"]
        raw_path, query = scope.get("raw_path") or b"", scope["query_string"]
        self.headers: Sequence[tuple[bytes, bytes]] = list(scope["headers"])
        self.head = Head(
            *(scope["method"], version, scope["path"], raw_path, query, list(self.headers)),
            keeps=True,
            expects=False,
        )
        self.client, self.server, self.scheme = scope["client"], scope["server"], scope["scheme"]
        self.owner = self.client[0] if self.client else ""
        self.at, self.answerable_at = scope.get("arrived_at"), scope.get("answerable_at")
        length = dict(self.headers).get(b"content-length", b"")
        self.expected = None
        self.declared_bytes = int(length[:20]) if length.isdigit() else 0
        self._connection = scope.get("connection")
        self.is_whole = self._connection is None or self._connection.body_has_come
        self.is_begun = self.is_gone = False
        self.wants_body, self.takes_chunks = scope["method"] != "HEAD", version >= "1.1"
        self._start: dict[str, Any] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def part(self, reads_ahead: bool = False) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError("the client went away while sending")
        self.is_whole = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        self._watcher = None if leaves is None else asyncio.create_task(self._watched(leaves))

    async def _watched(self, leaves: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        leaves()

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.is_begun = True
        self._start = {"type": "http.response.start", "status": status, "headers": headers}

    async def send(self, data: bytes, more: bool = False) -> None:
        start, self._start = self._start, {}
        if start:
            await self._send(start)
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()


def as_asgi(answer: Callable[[HttpClient], Awaitable[None]]) -> Asgi:
    """Return what answers requests as an ASGI application."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(_Client(scope, receive, send))

    return app


def answering_with(
    app: Callable[[Scope, Receive, Send], Awaitable[None]],
) -> Callable[[HttpClient], Awaitable[None]]:
    """Return an ASGI application as what answers the requests of connections."""

    async def answer(client: Any) -> None:
        async def receive() -> dict[str, Any]:
            try:
                if was_read:
                    gone = asyncio.Event()
                    client.on_leave(gone.set)
                    await gone.wait()
                    return {"type": "http.disconnect"}
                body = await client.part()
            except DisconnectedError:
                return {"type": "http.disconnect"}
            if client.is_whole:
                was_read.append(True)
            return {"type": "http.request", "body": body, "more_body": not client.is_whole}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                client.start(message["status"], message.get("headers", ()))
            else:
                await client.send(message.get("body", b""), message.get("more_body", False))

        was_read: list[bool] = []
        await app(_scope_of(client), receive, send)

    return answer


def _scope_of(client: Any) -> Scope:
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
