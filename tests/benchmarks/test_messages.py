"""Answers are put together the same way however their bytes arrive."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.messages import Response, ResponseReader, infer_request
from tests.examples import over

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nX-Id: a\r\n\r\nhello"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=1\r\n world\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"


def read_all(stream: bytes, cuts: list[int], has_body: bool = True) -> list[Response]:
    """Feed ``stream`` cut at ``cuts``; return every answer that came of it."""
    reader, found = ResponseReader(has_body), []
    places = [0, *sorted(cuts), len(stream)]
    for start, end in itertools.pairwise(places):
        response = reader.feed(stream[start:end])
        while response is not None:
            found.append(response)
            response = reader.feed(b"")
    return found


@given(st.lists(st.integers(0, len(INTERIM + LENGTH + CHUNKS + EMPTY)), max_size=20))
def test_answers_do_not_depend_on_where_the_stream_is_cut(cuts: list[int]) -> None:
    found = read_all(INTERIM + LENGTH + CHUNKS + EMPTY, cuts)
    assert [(each.status, each.body) for each in found] == [
        (200, b"hello"),
        (200, b"hello world"),
        (204, b""),
    ]
    assert [each.closes for each in found] == [False, False, True]
    assert found[0].header("x-id") == "a"


def test_an_answer_to_head_has_no_body_whatever_its_length_says() -> None:
    found = read_all(LENGTH.removesuffix(b"hello") * 2, [], has_body=False)
    assert [each.body for each in found] == [b"", b""]


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.0 500 Oops\r\n\r\nall of") is None
    assert reader.feed(b" it") is None
    last = reader.end()
    assert last is not None
    assert (last.status, last.body) == (500, b"all of it")


@over("cut", [b"HTTP/1.1 200 OK\r\n", LENGTH[:-1], CHUNKS[:-8]])
def test_an_end_in_the_middle_is_no_answer(cut: bytes) -> None:
    reader = ResponseReader()
    assert reader.feed(cut) is None
    assert reader.end() is None


def test_what_is_not_http_is_refused() -> None:
    with pytest.raises(ValueError, match="not an HTTP answer"):
        ResponseReader().feed(b"SSH-2.0-x\r\n\r\n")


def test_an_infer_request_says_how_long_it_is() -> None:
    head, _, body = infer_request("tiny", {"inputs": []}).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/tiny/infer HTTP/1.1\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert body == b'{"inputs":[]}'
