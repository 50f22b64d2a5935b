"""Server-sent events: how one is written, and the answer that sends them until they end."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import DisconnectedError
from server.protocol.serving import until_left

MEDIA_TYPE = "text/event-stream"
#: A line that means nothing, so that a connection through which nobody listens any more is found.
STILL_HERE = b":\n\n"


def event(kind: str, said: Any) -> bytes:
    """Return the event ``kind`` that carries ``said`` as JSON, on one line."""
    return written(kind, orjson.dumps(said))


def written(kind: str, document: bytes) -> bytes:
    """Return the event ``kind`` that carries ``document``, one line of JSON."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), document)


class EventStream(Response):
    """Sends ``events`` as they come; a client that leaves ends them.

    ``resources``: closed when they have ended, before the client sees the end.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        resources: AsyncExitStack,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store", **(headers or {})}
        )
        # It ends when it ends.
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._events = events
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them; to a client that has gone nothing more is said."""
        async with self._resources, aclosing(self._events):
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            with suppress(DisconnectedError):
                await until_left(scope["exchange"], self._send_all(send))
        # Whoever sees the end finds nothing left of it.
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        async for said in self._events:
            await send({"type": "http.response.body", "body": said, "more_body": True})
