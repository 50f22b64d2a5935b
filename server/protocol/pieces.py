"""Answers that are written piece by piece, as fast as the client takes them."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.codec.compression import compressed
from server.codec.framing import JSON_LENGTH, Coding

_JSON, _MIXED = "application/json", "application/octet-stream"
_JSON_TYPE, _MIXED_TYPE = ((b"content-type", kind.encode()) for kind in (_JSON, _MIXED))
# So much goes as a whole; and where it could be compressed.
_WHOLE_BYTES = 128 << 10
_WHOLE_UNCOMPRESSED_BYTES = 1 << 10

Make = Callable[[], Iterator[bytes]]


def _nothing() -> Iterator[bytes]:
    return iter(())


class Sent(NamedTuple):
    """What is sent: the pieces that ``text`` makes each time, JSON, then ``raw_bytes`` of ``raw``.

    ``is_mixed``: a header says how long the JSON is.
    """

    text: Make
    raw: Make = _nothing
    raw_bytes: int = 0
    is_mixed: bool = False
    coding: Coding = "identity"

    def pieces(self, text: Iterator[bytes]) -> Iterator[bytes]:
        """Yield all pieces in their coding, those of ``text`` first; some may be empty."""
        return compressed(chain(text, self.raw()), self.coding)

    @property
    def media_type(self) -> str:
        return _MIXED if self.is_mixed else _JSON


class WholeResponse(Response):
    """Sends all at once; ``text`` is that of what is ``sent``.

    It makes its headers itself: what Starlette does for those of any response takes as long as the JSON.
    """

    def __init__(self, sent: Sent, text: bytes) -> None:
        self.status_code = 200
        self.background = None
        self.body = b"".join((text, *sent.raw()))
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            _MIXED_TYPE if sent.is_mixed else _JSON_TYPE,
        ]
        if sent.is_mixed:
            self.raw_headers.append((JSON_LENGTH.encode(), b"%d" % len(text)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


class PiecesResponse(Response):
    """Sends pieces one after the other; each is made when the one before has gone. ``text`` comes first.

    Between two of them others have their turn, also while the client takes all that comes.
    """

    def __init__(self, sent: Sent, text: Iterator[bytes]) -> None:
        super().__init__(media_type=sent.media_type)
        del self.headers["content-length"]
        self._sent = sent
        self._text = text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; stop making pieces when the client has left."""
        await self._describe(scope["http_version"] == "1.0")
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        gone = scope["exchange"].is_gone
        for piece in self._sent.pieces(self._text):
            if gone():
                return
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _describe(self, knows_no_chunks: bool) -> None:
        """Say in headers what must be known first: for that, text is made once more."""
        sent = self._sent
        is_plain = sent.coding == "identity"
        if not is_plain:
            self.headers["content-encoding"] = sent.coding
        text_bytes = 0
        if sent.is_mixed:
            text_bytes = await _length(sent.text())
            self.headers[JSON_LENGTH] = str(text_bytes)
        if sent.is_mixed and is_plain:
            self.headers["content-length"] = str(text_bytes + sent.raw_bytes)
        elif knows_no_chunks:
            self.headers["content-length"] = str(await _length(sent.pieces(sent.text())))


async def _length(pieces: Iterator[bytes]) -> int:
    length = 0
    for piece in pieces:
        length += len(piece)
        await asyncio.sleep(0)
    return length


def respond_in_pieces(sent: Sent) -> Response:
    """Return a response of what is ``sent``: as a whole, and as it is, where that is little."""
    text = sent.text()
    first, second = next(text), next(text, None)
    most = _WHOLE_BYTES if sent.coding == "identity" else _WHOLE_UNCOMPRESSED_BYTES
    if second is not None or len(first) + sent.raw_bytes > most:
        begun = (first,) if second is None else (first, second)
        return PiecesResponse(sent, chain(begun, text))
    return WholeResponse(sent, first)
