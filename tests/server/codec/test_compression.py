"""Compressed bodies: what the standard library makes of them and back, in bounded blocks."""

import gzip
import random
import zlib
from collections.abc import Callable

import pytest

from server.codec.compression import BodyOpener, compressed
from server.codec.framing import CODINGS, Coding
from server.errors import InvalidRequestError, TooLargeError
from tests.examples import over

_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
}
_OPEN: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
    "identity": bytes,
}
_MOST_BYTES = 1 << 20
_BLOCK = 16 << 10

BODIES = [b"", b"a", bytes(300_000), random.Random(0).randbytes(100_000), b"ab" * 70_000]


def opened(coding: Coding, body: bytes, step: int) -> bytes:
    found = BodyOpener(coding, _MOST_BYTES)
    blocks: list[bytes] = []
    for start in range(0, len(body), step):
        blocks += found.blocks(body[start : start + step])
    found.finish()
    assert all(len(block) <= max(_BLOCK, step) for block in blocks)
    return b"".join(blocks)


@over("coding", CODINGS)
@over("step", [997, 1 << 20])
def test_bodies_come_back(coding: Coding, step: int) -> None:
    for body in BODIES:
        assert opened(coding, _COMPRESS[coding](body), step) == body
        pieces = [body[start : start + step] for start in range(0, len(body), step)]
        assert _OPEN[coding](b"".join(compressed(pieces, coding))) == body


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_bodies_that_are_none(coding: Coding) -> None:
    body = _COMPRESS[coding](b"body" * 100)
    damaged = bytearray(body)
    damaged[-1] ^= 1
    for text, words in (
        (b"{}", f"not {coding}"),
        (bytes(damaged), f"not {coding}"),
        (body[:-1], "ends early"),
        (b"", "ends early"),
        (body + b"xx", "not gzip" if coding == "gzip" else "something follows"),
    ):
        for step in (1, 1000):
            with pytest.raises(InvalidRequestError, match=words):
                opened(coding, text, step)


@over("step", [1, 7, 1000])
def test_a_gzip_body_may_have_several_members(step: int) -> None:
    body = b"".join(map(_COMPRESS["gzip"], (b"first ", b"", b"second")))
    assert opened("gzip", body, step) == b"first second"
    with pytest.raises(InvalidRequestError, match="ends early"):
        opened("gzip", body[:-1], step)
    with pytest.raises(InvalidRequestError, match="something follows"):
        opened("deflate", _COMPRESS["deflate"](b"first ") * 2, step)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_is_refused_at_the_limit(coding: Coding) -> None:
    bomb = _COMPRESS[coding](bytes(16 << 20))
    assert len(bomb) < 20_000
    blocks: list[int] = []
    with pytest.raises(TooLargeError, match=str(_MOST_BYTES)):
        blocks.extend(map(len, BodyOpener(coding, _MOST_BYTES).blocks(bomb)))
    assert sum(blocks) <= _MOST_BYTES
