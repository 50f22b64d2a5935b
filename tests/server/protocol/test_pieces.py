"""Answers in pieces: what arrives is what was made, and headers say what a client must know before it."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from server.codec.framing import CODINGS, Coding
from server.protocol.answers import Answer, Pieces
from server.transport.http1 import Head

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
        self.head = Head(method, version, "/", b"/", b"", [], keeps=True, expects=False)
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self.is_whole = False
        self.body = b""

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.headers = headers

    async def send(self, data: bytes, more: bool = False) -> None:
        assert not self.is_whole
        self.body += data
        self.is_whole = not more


async def received(
    sent: Answer, version: str, method: str = "GET"
) -> tuple[dict[bytes, bytes], bytes]:
    """Headers and body as a client gets them."""
    client: Any = Taking(version, method)
    exchange: Any = SimpleNamespace(send=client.send, left=asyncio.Event().wait)
    await sent.send(exchange, client, "")
    assert client.is_whole
    return dict(client.headers), client.body


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize("n_pieces", [1, 2, 7])
async def test_what_arrives(version: str, coding: Coding, is_mixed: bool, n_pieces: int) -> None:
    raw = RAW if is_mixed else b""
    sent = Pieces(lambda: text(n_pieces), lambda: iter((raw,)), len(raw), is_mixed, coding)
    headers, body = await received(sent, version)
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
    sent = Pieces(lambda: iter((b"{}",)), coding="gzip")
    headers, body = await received(sent, "1.1")
    assert body == b"{}"
    assert b"content-encoding" not in headers
    assert headers[b"content-length"] == b"2"


async def test_of_an_answer_without_end_the_head_is_an_end() -> None:
    async def without_end() -> AsyncGenerator[bytes]:
        while True:
            yield b"event"

    headers, body = await received(Answer(200, [], parts=without_end()), "1.1", "HEAD")
    assert (list(headers), body) == ([b"x-request-id"], b"")
