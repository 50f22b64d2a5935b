"""Answers that are written piece by piece, as fast as the client takes them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import chain

from server.codec.compression import compressed
from server.codec.framing import JSON_LENGTH, Coding
from server.protocol.answers import Answer, Headers, HttpClient
from server.requests.exchange import Exchange

_JSON, _MIXED = "application/json", "application/octet-stream"
_MIXED_TYPE = b"content-type", _MIXED.encode()
_JSON_LENGTH = JSON_LENGTH.encode()
# So much goes as a whole; and where it could be compressed.
_WHOLE_BYTES = 128 << 10
_WHOLE_UNCOMPRESSED_BYTES = 1 << 10

Make = Callable[[], Iterator[bytes]]


def _nothing() -> Iterator[bytes]:
    return iter(())


class Pieces(Answer):
    """The pieces that ``text`` makes each time, then ``raw_bytes`` of ``raw``.

    ``media``: what ``text`` is. ``is_mixed``: a header says how long it is. What is little goes whole;
    else a piece is made when the one before has gone, and between two of them others have their turn, also
    while the client takes all that comes.
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
            body = b"".join((first, *raw()))
            headers.insert(0, (b"content-length", b"%d" % len(body)))
            if is_mixed:
                headers.append((_JSON_LENGTH, b"%d" % len(first)))
            super().__init__(200, headers, body)
        else:
            all_text = chain((first,) if second is None else (first, second), begun)
            super().__init__(200, headers, parts=self._one_by_one(all_text))

    async def send(self, exchange: Exchange, client: HttpClient, identity: str) -> None:
        """Send it; stop making pieces when the client has left."""
        if self.parts is not None:
            await self._describe(client.head.version == "1.0")
        await super().send(exchange, client, identity)

    async def _one_by_one(self, text: Iterator[bytes]) -> AsyncGenerator[bytes]:
        for piece in self._pieces(text):
            if piece:
                yield piece
            await asyncio.sleep(0)

    def _pieces(self, text: Iterator[bytes]) -> Iterator[bytes]:
        """Yield all pieces in their coding, those of ``text`` first; some may be empty."""
        return compressed(chain(text, self._raw()), self._coding)

    async def _describe(self, knows_no_chunks: bool) -> None:
        """Say in headers what must be known first: for that, text is made once more."""
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
