"""HTTP/1.1 without a network: reads may fall anywhere, and peers read what is written."""

import random
from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.faults import Code
from server.transport.http1 import End, Head, Refusal, Requests, WireAnswer, refused
from server.transport.limits import HEADER_BYTES, HEADER_FIELDS
from tests.examples import examples, over
from tests.fuzz.http_requests import answered, cut, said, stream

GET = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"


@given(st.integers(0, 1 << 40), st.randoms(use_true_random=False))
@examples(few=25, many=5000)
def test_any_split_says_the_same(number: int, rng: random.Random) -> None:
    data = stream(random.Random(number))
    assert said(cut(rng, data)) == said([data])


@given(
    st.integers(-3, 3), st.integers(0, 40), st.lists(st.integers(0, HEADER_BYTES + 9), max_size=4)
)
@examples(few=15, many=2000)
def test_the_limit_of_a_header_is_exact(over: int, blank: int, cuts: list[int]) -> None:
    """Empty lines before it count, too."""
    frame = b"\r\n" * blank + b"GET / HTTP/1.1\r\nhost: x\r\na: %b\r\n\r\n"
    data = frame % (b"x" * (HEADER_BYTES + over - len(frame) + len(b"%b")))
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    found = said(data[start:end] for start, end in pairwise(ends))
    if over <= 0:
        assert isinstance(found[0], Head)
        assert found[1:] == [End()]
    else:
        assert found == [
            Refusal(Code.HEADERS_TOO_LARGE, f"the header is over the limit of {HEADER_BYTES} bytes")
        ]


@given(
    st.integers(-3, 3),
    st.sampled_from(
        ["an extension", "a field behind", "fields behind", "nothing of the last line"]
    ),
    st.lists(st.integers(0, HEADER_BYTES + 99), max_size=4),
)
@examples(few=15, many=2000)
def test_the_limit_of_what_is_no_body_is_exact(over: int, what: str, cuts: list[int]) -> None:
    """From one byte of a body in chunks to the next, or to its end."""
    before, end = b"3\r\nabc", b"\r\n0\r\n\r\n"
    size = HEADER_BYTES + over
    if what == "an extension":
        frame = b"\r\n1;%b\r\n"
        before += frame % (b"x" * (size - len(frame) + 2)) + b"d"
    elif what == "a field behind":
        end = b"\r\n0\r\na:" + b"x" * (size - 11) + b"\r\n\r\n"
    else:
        n_fields, left = divmod(size - len(end), 4)
        end = b"\r\n0\r\n" + b"a" * left + b"a:\r\n" * n_fields + b"\r\n"
        end = end[:-2] if what.startswith("nothing") else end
    data = GET[:-2] + b"transfer-encoding: chunked\r\n\r\n" + before + end
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    head, body, *rest = said(data[start:end] for start, end in pairwise(ends))
    assert isinstance(head, Head)
    assert body == (b"abcd" if what == "an extension" and over <= 0 else b"abc")
    if what.startswith("nothing") and over <= 2:
        assert rest == []
    elif over <= 0:
        assert rest == [End()]
    else:
        message = f"the chunks have {HEADER_BYTES} bytes without any of the body"
        assert rest == [Refusal(Code.HEADERS_TOO_LARGE, message)]


@over(
    "version, fields, keeps",
    [
        (b"1.1", b"", True),
        (b"1.1", b"connection: close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"connection: keep-alive\r\n", True),
        (b"1.0", b"connection: keep-alive\r\ntransfer-encoding: chunked\r\n", False),
    ],
)
def test_who_keeps_the_connection(version: bytes, fields: bytes, keeps: bool) -> None:
    head, *_ = said([b"POST / HTTP/%b\r\nhost: x\r\n%b\r\n0\r\n\r\n" % (version, fields)])
    assert isinstance(head, Head)
    assert head.keeps == keeps


def test_a_header_has_so_many_fields() -> None:
    data = b"GET / HTTP/1.1\r\nhost: x\r\n%b\r\n"
    assert isinstance(said([data % (b"a:\r\n" * (HEADER_FIELDS - 1))])[0], Head)
    (refusal,) = said([data % (b"a:\r\n" * HEADER_FIELDS)])
    assert refusal == Refusal(Code.HEADERS_TOO_LARGE, f"the header has over {HEADER_FIELDS} fields")


@over(
    "version, hosts, is_taken",
    [
        (b"1.1", 1, True),
        (b"1.1", 0, False),
        (b"1.1", 2, False),
        (b"1.0", 0, True),
        (b"1.0", 2, False),
    ],
)
def test_a_request_names_its_host_once(version: bytes, hosts: int, is_taken: bool) -> None:
    found = said([b"GET / HTTP/%b\r\n" % version + b"host: x\r\n" * hosts + b"\r\n"])
    if is_taken:
        assert isinstance(found[0], Head)
    else:
        assert isinstance(found[0], Refusal)
        assert "one Host header" in found[0].message


@over(
    "target, host",
    [
        (b"/", b"x"),
        (b"http://evil.example/v2", b"evil.example"),
        (b"http://localhost@evil.example:81/v2", b"evil.example:81"),
        (b"http://[::1]:8080/v2", b"[::1]:8080"),
    ],
)
def test_the_host_in_a_target_counts_more_than_the_field(target: bytes, host: bytes) -> None:
    """As RFC 9112 has it (3.2.2): else one of them could be checked and the other one asked."""
    head, _ = said([b"GET %b HTTP/1.1\r\nhost: x\r\na: b\r\n\r\n" % target])
    assert isinstance(head, Head)
    assert [value for name, value in head.headers if name == b"host"] == [host]
    assert (b"a", b"b") in head.headers


def test_what_is_behind_a_request_waits_for_its_answer() -> None:
    requests = Requests()
    found = requests.receive(GET + b"nonsense")
    assert [type(event) for event in found] == [Head, End]
    assert requests.receive(b"\r\n\r\n") == []
    assert not requests.is_between
    assert requests.resume() == []
    (refusal,) = answered(requests)
    assert isinstance(refusal, Refusal)
    assert requests.receive(GET) == requests.resume() == []


def test_a_request_to_change_the_protocol_has_its_body() -> None:
    """The parser takes what follows such a header for the other protocol."""
    fields = b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\n"
    head, body, end, *_ = said([b"POST / HTTP/1.1\r\nhost: x\r\n" + fields + b"abc" + GET])
    assert isinstance(head, Head)
    assert (body, end) == (b"abc", End())


@over(
    "data, status, words",
    [
        (b"BREW /pot HTTP/1.1\r\nhost: x\r\n\r\n", 501, "BREW"),
        (b"get / HTTP/1.1\r\nhost: x\r\n\r\n", 501, "get"),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n", 501, "CONNECT"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "HTTP/1.1 is"),
        (b"GET / HTTP/2.0\r\nhost: x\r\n\r\n", 400, "HTTP/1.1 is"),
        (b"GET / HTTP/3.7\r\nhost: x\r\n\r\n", 400, "HTTP/1.1 is"),
        (b"\x16\x03\x01", 400, "METHOD PATH"),
        (b"GET / x HTTP/1.1\r\n\r\n", 400, "METHOD PATH"),
        (b"GET / HTTP/1.1\nhost: x\n\n", 400, "CRLF"),
        (b"GET / HTTP/1.1\r\nhost: x\r\na\r\n\r\n", 400, "NAME: VALUE"),
        (
            b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            400,
            "long",
        ),
        (b"GET http://x HTTP/1.1\r\nhost: x\r\n\r\n", 400, "path"),
    ],
)
def test_what_is_no_request_is_told_so_in_our_words(data: bytes, status: int, words: str) -> None:
    found = said([data])
    assert isinstance(found[0], Refusal)
    assert found[0].code.status == status
    assert words in found[0].message
    assert len(found) == 1


PARTS = st.lists(st.binary(max_size=40), max_size=5)


@given(PARTS, st.sampled_from(["length", "none"]), st.sampled_from(["1.1", "1.0"]), st.booleans())
@examples(few=25, many=2000)
def test_a_client_reads_what_the_application_said(
    parts: list[bytes], framing: str, version: str, keeps: bool
) -> None:
    head = Head("GET", version, "/", b"/", b"", [], keeps, expects=False)
    answer, sent = WireAnswer(head, [(b"date", b"today")]), b""
    size = b"%d" % sum(map(len, parts))
    answer.begin(200, [(b"content-length", size)] if framing == "length" else [])
    for part in parts:
        sent += answer.body(part, more=True)
    sent += answer.body(b"", more=False)
    peer = h11.Connection(h11.CLIENT)
    peer.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    peer.send(h11.EndOfMessage())
    peer.receive_data(sent)
    if not answer.keeps:
        peer.receive_data(b"")
    found, event = b"", peer.next_event()
    assert isinstance(event, h11.Response)
    headers = dict(event.headers)
    assert headers[b"date"] == b"today"
    # Clients that speak HTTP/1.0 read no chunks: the connection ends where the answer does.
    assert answer.keeps == (keeps and (version == "1.1" or framing == "length"))
    kept = b"keep-alive" if version == "1.0" else None
    assert headers.get(b"connection") == (kept if answer.keeps else b"close")
    assert (b"transfer-encoding" in headers) == (framing == "none" and version == "1.1")
    while isinstance(event := peer.next_event(), h11.Data):
        found += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert found == b"".join(parts)


@over("header", [(b"a", b"b\r\nc: d"), (b"a\n", b"b"), (b"a", b"\0")])
def test_no_header_of_an_answer_becomes_two(header: tuple[bytes, bytes]) -> None:
    answer = WireAnswer(Head("GET", "1.1", "/", b"/", b"", [], keeps=True, expects=False), [])
    with pytest.raises(RuntimeError, match="line end"):
        answer.begin(200, [header])


def test_what_has_had_its_answer_has_no_other() -> None:
    requests = Requests()
    requests.receive(GET[:-2] + b"transfer-encoding: chunked\r\n\r\n")
    answer = requests.answer
    assert answer is not None
    answer.begin(204, [])
    assert answer.body(b"", more=False)
    with pytest.raises(RuntimeError, match="started"):
        answer.begin(200, [])
    with pytest.raises(RuntimeError, match="whole"):
        answer.body(b"", more=False)
    (refusal,) = requests.receive(b"zz")
    assert isinstance(refusal, Refusal)
    assert requests.refuse(Code.INVALID_REQUEST, "no") == b""
    assert requests.refuse(Code.INVALID_REQUEST, "no") == b""
    assert requests.receive(GET) == requests.resume() == []


def test_a_refusal_is_the_one_answer() -> None:
    for data in (b"", GET[:9], GET, GET[:-2] + b"content-length: 3\r\n\r\n"):
        requests = Requests()
        requests.receive(data)
        assert requests.refuse(Code.STALLED, "late").startswith(b"HTTP/1.1 408")
        assert requests.refuse(Code.STALLED, "late") == b""
        assert requests.answer is not None
        with pytest.raises(RuntimeError, match="started"):
            requests.answer.begin(200, [])
        assert requests.receive(GET) == requests.resume() == []


def test_after_an_answer_that_ends_the_connection_nothing_is_read() -> None:
    """Whether or not the caller stops."""
    requests = Requests()
    requests.receive(GET[:-2] + b"connection: close\r\n\r\n" + GET)
    assert answered(requests) == requests.receive(GET) == []


def test_who_waits_for_a_word_gets_it_once_and_before_an_answer() -> None:
    data = GET[:-2] + b"expect: 100-continue\r\ncontent-length: 3\r\n\r\n"
    for begins in (False, True):
        requests = Requests()
        requests.receive(data)
        answer = requests.answer
        assert answer is not None
        if begins:
            answer.begin(200, [])
        assert bool(answer.proceed()) != begins
        assert answer.proceed() == b""


@pytest.mark.parametrize("body", [b"o", b"okk"])
def test_an_answer_is_as_long_as_it_says(body: bytes) -> None:
    answer = WireAnswer(Head("GET", "1.1", "/", b"/", b"", [], keeps=True, expects=False), [])
    answer.begin(200, [(b"content-length", b"2")])
    with pytest.raises(RuntimeError, match="Content-Length"):
        answer.body(body, more=False)


def test_a_refusal_has_what_other_answers_have() -> None:
    answer = refused(Code.BUSY, "no", [(b"date", b"today")])
    head, body = answer.split(b"\r\n\r\n")
    assert body == b'{"error":"no","code":"busy"}'
    names = [line.split(b":")[0] for line in head.split(b"\r\n")[1:]]
    assert sorted(names) == sorted(
        [
            b"date",
            b"content-length",
            b"content-type",
            b"x-request-id",
            b"retry-after",
            b"connection",
        ]
    )


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_clients_of_http_1_0_expect_nothing(version: str) -> None:
    said = f"POST / HTTP/{version}\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    (head,) = Requests().receive(said.encode())
    assert isinstance(head, Head)
    assert head.expects == (version == "1.1")
