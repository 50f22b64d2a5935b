"""Server-sent events: how one is written, and the answer that sends them until they end."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import orjson

from server.protocol.answers import Answer

MEDIA_TYPE = "text/event-stream"
_TYPE = f"{MEDIA_TYPE}; charset=utf-8"
#: A line that means nothing, so that a connection through which nobody listens any more is found.
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
    said = {
        "Cache-Control": "no-store",
        **(headers or {}),
        "Content-Type": _TYPE,
        "X-Accel-Buffering": "no",  # nginx would keep events until it has a page of them
    }
    listed = [(name.lower().encode(), value.encode()) for name, value in said.items()]
    return Answer(200, listed, parts=events, resources=resources)
