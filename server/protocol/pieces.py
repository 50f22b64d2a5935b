"""Answers that are written piece by piece, as fast as the client takes them."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.codec.compression import compressed
from server.codec.framing import JSON_LENGTH, Coding

_JSON, _MIXED = "application/json", "application/octet-stream"
_JSON_TYPE, _MIXED_TYPE = ((b"content-type", kind.encode()) for kind in (_JSON, _MIXED))
_JSON_LENGTH = JSON_LENGTH.encode()
# So much goes as a whole; and where it could be compressed.
_WHOLE_BYTES = 128 << 10
_WHOLE_UNCOMPRESSED_BYTES = 1 << 10

Make = Callable[[], Iterator[bytes]]


def _nothing() -> Iterator[bytes]:
    return iter(())


class PiecesResponse(Response):
    """Sends the pieces that ``text`` makes each time, JSON, then ``raw_bytes`` of ``raw``.

    ``is_mixed``: a header says how long the JSON is. What is little goes whole; else a piece is made when
    the one before has gone, and between two of them others have their turn, also while the client takes
    all that comes. Headers are made here: what Starlette does for those of any response takes as long as
    the JSON.
    """

    def __init__(
        self,
        text: Make,
        raw: Make = _nothing,
        raw_bytes: int = 0,
        is_mixed: bool = False,
        coding: Coding = "identity",
    ) -> None:
        self.status_code = 200
        self.background = None
        self._make, self._raw, self._raw_bytes = text, raw, raw_bytes
        self._is_mixed, self._coding = is_mixed, coding
        begun = text()
        first, second = next(begun), next(begun, None)
        most = _WHOLE_BYTES if coding == "identity" else _WHOLE_UNCOMPRESSED_BYTES
        self._is_whole = second is None and len(first) + raw_bytes <= most
        self.raw_headers = [_MIXED_TYPE if is_mixed else _JSON_TYPE]
        if self._is_whole:
            self.body = b"".join((first, *raw()))
            self.raw_headers.insert(0, (b"content-length", b"%d" % len(self.body)))
            if is_mixed:
                self.raw_headers.append((_JSON_LENGTH, b"%d" % len(first)))
        else:
            self._begun = chain((first,) if second is None else (first, second), begun)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; stop making pieces when the client has left."""
        if not self._is_whole:
            await self._describe(scope["http_version"] == "1.0")
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        if self._is_whole:
            await send({"type": "http.response.body", "body": self.body})
            return
        gone = scope["exchange"].is_gone
        for piece in self._pieces(self._begun):
            if gone():
                return
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _pieces(self, text: Iterator[bytes]) -> Iterator[bytes]:
        """Yield all pieces in their coding, those of ``text`` first; some may be empty."""
        return compressed(chain(text, self._raw()), self._coding)

    async def _describe(self, knows_no_chunks: bool) -> None:
        """Say in headers what must be known first: for that, text is made once more."""
        is_plain = self._coding == "identity"
        if not is_plain:
            self.raw_headers.append((b"content-encoding", self._coding.encode()))
        text_bytes = 0
        if self._is_mixed:
            text_bytes = await _length(self._make())
            self.raw_headers.append((_JSON_LENGTH, b"%d" % text_bytes))
        length = None
        if self._is_mixed and is_plain:
            length = text_bytes + self._raw_bytes
        elif knows_no_chunks:
            length = await _length(self._pieces(self._make()))
        if length is not None:
            self.raw_headers.append((b"content-length", b"%d" % length))


async def _length(pieces: Iterator[bytes]) -> int:
    length = 0
    for piece in pieces:
        length += len(piece)
        await asyncio.sleep(0)
    return length
