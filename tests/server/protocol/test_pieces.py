"""Answers in pieces: what arrives is what was made, and headers say what a client must know before it."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from server.codec.framing import CODINGS, Coding
from server.protocol.pieces import PiecesResponse

OPEN: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}
RAW = bytes(range(256)) * 300


def text(n_pieces: int) -> Iterator[bytes]:
    return (b'"%d"' % number + b" " * 40_000 for number in range(n_pieces))


async def received(sent: PiecesResponse, version: str) -> tuple[dict[bytes, bytes], bytes]:
    """Headers and body as a client gets them."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        raise AssertionError

    exchange = SimpleNamespace(is_gone=lambda: False)
    scope = {"type": "http", "http_version": version, "exchange": exchange}
    await sent(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in messages[1:])
    assert not messages[-1].get("more_body", False)
    return dict(messages[0]["headers"]), body


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize("n_pieces", [1, 2, 7])
async def test_what_arrives(version: str, coding: Coding, is_mixed: bool, n_pieces: int) -> None:
    raw = RAW if is_mixed else b""
    sent = PiecesResponse(lambda: text(n_pieces), lambda: iter((raw,)), len(raw), is_mixed, coding)
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
    sent = PiecesResponse(lambda: iter((b"{}",)), coding="gzip")
    headers, body = await received(sent, "1.1")
    assert body == b"{}"
    assert b"content-encoding" not in headers
    assert headers[b"content-length"] == b"2"
