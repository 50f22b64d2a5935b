"""The client of an HTTP request, as any ASGI server has it; more is known of it where the server is ours.

Without our extension nothing is known of the time before the application is called, a client that leaves is
noticed by a task that waits for that, and is cut off by an end of the task that answers it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from server.errors import DisconnectedError, InvalidRequestError
from server.transport.extension import EXTENSION, RequestExtension
from server.transport.registry import owner


class AsgiClient:
    """The client whose request has ``scope``, is read by ``receive`` and answered by ``send``."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        extension = (scope.get("extensions") or {}).get(EXTENSION)
        if extension is None:
            extension = UnextendedRequest(scope, receive)
        self._extension: RequestExtension = extension
        self.headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        #: As Client has them.
        self.owner, self.arrived_at, self.expected = (
            extension.owner,
            extension.arrived_at,
            extension.expected,
        )
        #: The first header of each name.
        self.first = dict(reversed(self.headers))
        length = self.first.get(b"content-length", b"")
        self.declared_bytes = int(length[:20]) if length.isdigit() else 0
        self.wants_body: bool = scope["method"] != "HEAD"
        self.takes_chunks: bool = scope["http_version"] >= "1.1"
        #: The id of the request, and other headers that its answer has beside its own.
        self.request_id = ""
        self.more_headers: list[tuple[bytes, bytes]] = []
        #: Of the answer; 0: it has not begun.
        self.status = 0
        # Whether all of the body was received.
        self._is_received = False
        self._start: Message | None = None

    @property
    def answerable_at(self) -> float | None:
        """When it could be answered at the earliest, on time.monotonic's clock; None: unknown."""
        return self._extension.answerable_at

    @property
    def is_complete(self) -> bool:
        return self._is_received or self._extension.is_complete

    @property
    def is_begun(self) -> bool:
        """Whether its answer is; False for a client that has left, which gets none."""
        return self.status > 0 and not self._extension.is_gone

    async def part(self, reads_ahead: bool = False) -> bytes:
        """Return the next part of the body, as Client has it.

        Raises:
            InvalidRequestError: the body is none, as the server has answered. DisconnectedError: the client
                has left, or has had its answer.
        """
        if self._is_received:
            return b""
        self._extension.reads_ahead = reads_ahead
        message = await self._receive()
        if message["type"] != "http.request":
            if self._extension.refusal:
                raise InvalidRequestError(self._extension.refusal)
            raise DisconnectedError("the client went away while sending")
        self._is_received = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    def connection_bytes(self) -> None:
        """Return None: the body comes in parts."""

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Begin the answer; its head is sent with the first part of its body."""
        self._start = {"type": "http.response.start", "status": status, "headers": headers}

    async def send(self, data: bytes, more: bool = False) -> None:
        """Send a part of the answer, the last one where there is no ``more``."""
        start, self._start = self._start, None
        if start is not None:
            await self.deliver(start)
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def deliver(self, message: Message) -> None:
        """Send a message of the application, which may answer without ``start`` and ``send``."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            identity = b"x-request-id", self.request_id.encode()
            headers = [*message.get("headers", ()), *self.more_headers, identity]
            message = {**message, "headers": headers}
        await self._send(message)

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        """Have ``leaves`` called when it leaves, as Client has it."""
        self._extension.on_leave(leaves)

    def abort(self) -> None:
        """Cut it off."""
        self._extension.abort()


class UnextendedRequest:
    """What is known of a request without the extension."""

    arrived_at: float | None = None
    answerable_at: float | None = None
    expected: Any = None
    reads_ahead = is_complete = False
    refusal = ""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self.owner = owner(scope["client"][0]) if scope.get("client") else ""
        self.is_gone = False

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        self._watcher = None if leaves is None else asyncio.create_task(self._watch(leaves))

    async def _watch(self, leaves: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        leaves()

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
