"""What headers say of bodies: lengths and codings, and which answers are compressed."""

import pytest

from server.codec.framing import Framing, answer_coding
from server.errors import EncodedError, InvalidRequestError
from tests.examples import over

LENGTH = b"inference-header-content-length"
CODING = b"content-encoding"


@over(
    "headers, framing",
    [
        ([], Framing()),
        ([(b"content-length", b"9"), (b"content-type", b"text/odd")], Framing()),
        ([(LENGTH, b"12")], Framing(12)),
        ([(LENGTH, b"0")], Framing(0)),
        ([(LENGTH, b"12"), (LENGTH, b"12")], Framing(12)),
        ([(CODING, b"GZip")], Framing(None, "gzip")),
        ([(CODING, b"x-gzip")], Framing(None, "gzip")),
        ([(CODING, b" deflate"), (LENGTH, b"7")], Framing(7, "deflate")),
        ([(CODING, b""), (CODING, b"identity")], Framing()),
    ],
)
def test_headers_are_understood(headers: list[tuple[bytes, bytes]], framing: Framing) -> None:
    assert Framing.of(headers) == framing


@over(
    "value", [b"", b"-1", b"+1", b"1.0", b"0x10", b"1 2", b"\xb2", b"9" * 19, b"9" * 5000, b"1_0"]
)
def test_a_length_that_is_none(value: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="Inference-Header-Content-Length") as info:
        Framing.of([(LENGTH, value)])
    assert len(str(info.value)) < 150


def test_two_lengths() -> None:
    with pytest.raises(InvalidRequestError, match="given twice"):
        Framing.of([(LENGTH, b"1"), (LENGTH, b"2")])


@over("value", [b"br", b"gzip, deflate", b"gzip,gzip", b"x" * 5000, b"\xff"])
def test_a_coding_that_is_not_read(value: bytes) -> None:
    with pytest.raises(EncodedError, match="taken is identity, gzip, deflate") as info:
        Framing.of([(CODING, value)])
    assert len(str(info.value)) < 300


def test_two_codings() -> None:
    with pytest.raises(EncodedError, match="twice"):
        Framing.of([(CODING, b"gzip"), (CODING, b"gzip")])


@over(
    "value, coding",
    [
        (b"gzip", "gzip"),
        (b"deflate", "deflate"),
        (b"GZIP;q=0.5", "gzip"),
        (b"gzip, identity;q=0", "gzip"),
        (b"gzip;q=1, br;q=0", "gzip"),
        (b"gzip, deflate, br", "identity"),  # what libraries say by themselves
        (b"gzip;q=0", "identity"),
        (b"gzip;q=0.000, deflate", "deflate"),
        (b"br", "identity"),
        (b"*", "identity"),
        (b"", "identity"),
        (b";q=1,,", "identity"),
    ],
)
def test_answers_are_compressed_for_who_names_one_coding(value: bytes, coding: str) -> None:
    assert answer_coding([(b"accept", b"*/*"), (b"accept-encoding", value)]) == coding
