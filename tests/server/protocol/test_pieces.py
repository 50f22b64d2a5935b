"""Answers in pieces: what arrives is what was made, and headers say what a client must know before it."""

import gzip
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from server.codec.framing import CODINGS, Coding
from server.memory.request_memory import Lease, RequestMemory
from server.protocol.answers import Answer, in_pieces
from server.requests.exchange import BodyLimit, Exchange
from tests.examples import over

OPEN: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}
RAW = bytes(range(256)) * 300


def text(n_pieces: int) -> Iterator[bytes]:
    return (b'"%d"' % number + b" " * 40_000 for number in range(n_pieces))


class Taking:
    """A client that takes all that is sent; it has no other member of one."""

    def __init__(self, version: str, method: str) -> None:
        self.wants_body, self.takes_chunks = method != "HEAD", version >= "1.1"
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self.is_complete = self.is_gone = False
        self.arrived_at = self.expected = None
        self.declared_bytes = 0
        self.body = b""

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.headers = headers

    async def send(self, data: bytes, more: bool = False) -> None:
        assert not self.is_complete
        self.body += data
        self.is_complete = not more

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        pass

    def abort(self) -> None:
        raise AssertionError


async def received(
    make: Callable[[Any], Awaitable[Answer]], version: str, method: str = "GET"
) -> tuple[dict[bytes, bytes], bytes]:
    """Headers and body as a client gets them of the answer that is made for it."""
    client: Any = Taking(version, method)
    sent = await make(client)
    await sent.send(Exchange(client, Lease(RequestMemory(0)), BodyLimit(0)))
    assert client.is_complete
    return dict(client.headers), client.body


@over("version", ["1.0", "1.1"])
@over("coding", CODINGS)
@over("is_mixed", [False, True])
@over("n_pieces", [1, 2, 7])
async def test_what_arrives(version: str, coding: Coding, is_mixed: bool, n_pieces: int) -> None:
    raw = RAW if is_mixed else b""

    def made(client: Any) -> Awaitable[Answer]:
        pieces = lambda: text(n_pieces), lambda: iter((raw,)), len(raw)
        return in_pieces(client, *pieces, is_mixed=is_mixed, coding=coding)

    headers, body = await received(made, version)
    whole = b"".join(text(n_pieces))
    assert OPEN[headers.get(b"content-encoding", b"identity").decode()](body) == whole + raw
    assert (b"content-encoding" in headers) == (coding != "identity")
    length = headers.get(b"inference-header-content-length")
    assert length == (str(len(whole)).encode() if is_mixed else None)
    kind = "application/octet-stream" if is_mixed else "application/json"
    assert headers[b"content-type"].decode() == kind
    says = headers.get(b"content-length")
    assert says in {None, str(len(body)).encode()}
    assert says is not None or version == "1.1"


async def test_what_is_little_goes_as_it_is() -> None:
    def made(client: Any) -> Awaitable[Answer]:
        return in_pieces(client, lambda: iter((b"{}",)), coding="gzip")

    headers, body = await received(made, "1.1")
    assert body == b"{}"
    assert b"content-encoding" not in headers
    assert headers[b"content-length"] == b"2"


async def test_of_an_answer_without_end_the_head_is_an_end() -> None:
    async def without_end() -> AsyncGenerator[bytes]:
        while True:
            yield b"event"

    async def made(_: Any) -> Answer:
        return Answer(without_end())

    headers, body = await received(made, "1.1", "HEAD")
    assert (headers, body) == ({}, b"")
