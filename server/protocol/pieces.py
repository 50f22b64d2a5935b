"""JSON answers that are written piece by piece, as fast as the client takes them."""

import asyncio
from collections.abc import Callable, Iterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class PiecesResponse(Response):
    """Sends ``pieces`` one after the other; each is made when the one before has gone.

    Between two of them others have their turn, also while the client takes all that comes.
    """

    def __init__(self, pieces: Iterator[bytes], again: Callable[[], Iterator[bytes]]) -> None:
        super().__init__(media_type="application/json")
        del self.headers["content-length"]
        self._pieces = pieces
        self._again = again

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; stop making pieces when the client has left."""
        headers = self.raw_headers
        if scope["http_version"] == "1.0":  # it knows no chunks: how long all is must come first
            headers = [*headers, (b"content-length", b"%d" % await self._length())]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        gone = scope["exchange"].is_gone
        for piece in self._pieces:
            if gone():
                return
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _length(self) -> int:
        length = 0
        for piece in self._again():
            length += len(piece)
            await asyncio.sleep(0)
        return length


def respond_in_pieces(make: Callable[[], Iterator[bytes]]) -> Response:
    """Return a response of the pieces that ``make`` makes each time: as a whole where there is only one."""
    pieces = make()
    first = next(pieces)
    second = next(pieces, None)
    if second is None:
        return Response(first, media_type="application/json")
    return PiecesResponse(_chained(first, second, pieces), make)


def _chained(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest
