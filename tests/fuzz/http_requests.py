"""Fuzz what reads HTTP/1.1: ``python -m tests.fuzz.http_requests [seconds] [first] [--minutes N]``.

Each example is a stream of requests, most of them damaged, in reads that fall anywhere. It says the same as
in one read; what h11 takes too, it reads as we do; what is refused has a short answer in our own words.
"""

import random
import sys
from collections.abc import Iterable
from itertools import pairwise

import h11

from server.transport.http1 import End, Event, Head, Refusal, Requests
from server.transport.limits import HEADER_BYTES
from tests.fuzz.pack import change_bytes, chosen_run, run_examples

_METHODS = [b"GET", b"POST", b"PUT", b"HEAD", b"BREW", b"get", b"M-SEARCH", b"CONNECT", b"PRI", b""]
_TARGETS = [b"/", b"/v2/models/a:b/infer?x=%20", b"http://h/p?q", b"*", b"/%zz", b"//x", b"/\xff"]
_VERSIONS = [b"1.1"] * 6 + [b"1.0", b"0.9", b"2.0", b"1.2"]
_LINES = [
    *(b"accept: */*", b"x-a:b", b"x-b:   c  ", b"expect: 100-continue", b"connection: close"),
    *(b"connection: keep-alive", b"connection: upgrade", b"upgrade: h2c", b"Upgrade: websocket"),
    *(b"host: y", b"transfer-encoding: chunked", b"transfer-encoding: gzip", b"content-length: 3"),
    *(b" folded", b"no colon", b"a\0: b", b"a: b\0", b": empty", b"content-length: +3", b"a: \xe9"),
    *(b"content-length: 3, 3", b"transfer-encoding: gzip, chunked", b"x: " + b"y" * 9000),
]
# Fields that say something of a connection or a body where they stand in a header.
TRAILERS = [
    *(b"connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"upgrade: h2c\r\n"),
    *(b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"transfer-encoding: gzip\r\n"),
    *(b"host: y\r\n", b"expect: 100-continue\r\n", b"content-length: 1\r\ncontent-length: 2\r\n"),
]


def stream(rng: random.Random) -> bytes:
    """Draw requests one behind the other, whole and damaged."""
    parts = b"".join(_request(rng) for _ in range(rng.choice((1, 1, 2, 3, 6))))
    return change_bytes(parts, rng) if rng.random() < 0.4 else parts


def _request(rng: random.Random) -> bytes:
    sound = rng.random() < 0.6
    method = rng.choice(_METHODS[:4] if sound else _METHODS)
    target = rng.choice(_TARGETS[:2] if sound else _TARGETS)
    lines = [b"host: x"] * rng.choice((1, 1, 1, 1, 0, 2))
    lines += rng.choices(_LINES[:6] if sound else _LINES, k=rng.choice((0, 1, 2, 4, 140)))
    body, size = b"", rng.choice((0, 1, 3, 300, 40_000))
    content = rng.randbytes(size // 2) + b"\r\n\r\n" * (size // 8)
    framing = rng.choice(("none", "length", "chunks"))
    if framing == "length":
        lines.append(b"content-length: %d" % len(content))
        body = content
    elif framing == "chunks":
        lines.append(b"transfer-encoding: chunked")
        step = rng.choice((1, 7, 5000)) if size < 1000 else 5000
        for start in range(0, len(content), step):
            chunk = content[start : start + step]
            extension = rng.choice((b"", b"", b";a=b", b";" + b"z" * 50_000))
            body += b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk)
        trailer = rng.choice(
            (b"", b"", b"a: b\r\n", b"a:\r\n" * 200, b"a: " + b"b" * 70_000 + b"\r\n", *TRAILERS)
        )
        body += b"0\r\n" + trailer + b"\r\n"
    rng.shuffle(lines)
    version = rng.choice(_VERSIONS[:1] if sound else _VERSIONS)
    end = rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\n"))
    before = rng.choice((b"", b"", b"\r\n", b"\n\r\n", b"\r\n" * 3000))
    return (
        before + end.join([b"%b %b HTTP/%b" % (method, target, version), *lines, b"", b""]) + body
    )


def said(parts: Iterable[bytes]) -> list[Event]:
    """Return what ``parts`` say where each request has its answer at once; neighbours of a body as one."""
    requests, found = Requests(), list[Event]()
    for part in parts:
        events = requests.receive(part)
        while events:
            for event in events:
                if isinstance(event, bytes) and found and isinstance(found[-1], bytes):
                    found[-1] += event
                else:
                    found.append(event)
            is_over = isinstance(found[-1], End)
            events = answered(requests) if is_over else []
    return found


def answered(requests: Requests) -> list[Event]:
    """Answer the current request; return the events behind it."""
    answer = requests.answer
    assert answer is not None
    answer.begin(204, [])
    answer.body(b"", more=False)
    return requests.resume()


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """Return ``data`` in parts, of single bytes where it is short."""
    if len(data) < 500 and rng.random() < 0.5:
        return [data[at : at + 1] for at in range(len(data))]
    count = min(len(data), rng.choice((1, 3, 20)))
    ends = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(count))})
    return [data[start:end] for start, end in pairwise(ends)]


def run(number: int) -> bool:
    """Read one stream; return whether nothing in it is refused."""
    rng = random.Random(number)
    data = stream(rng)
    found = said([data])
    assert said(cut(rng, data)) == found, "it depends on how reads fall"
    for event in found:
        if isinstance(event, Refusal):
            assert event.code.status in {400, 431, 501}
            assert 0 < len(event.message) <= 100
            assert event is found[-1], "something comes behind a refusal"
    _compare(found, data)
    return not isinstance(found[-1] if found else None, Refusal)


def _compare(found: list[Event], data: bytes) -> None:
    """Compare with what h11 reads, as far as both of them take it; it has other limits."""
    ours = iter(_requests(found))
    peer = h11.Connection(h11.SERVER, max_incomplete_event_size=2 * HEADER_BYTES)
    peer.receive_data(data)
    peer.receive_data(b"")
    try:
        while True:
            body, request = b"", peer.next_event()
            if not isinstance(request, h11.Request):
                return
            while isinstance(event := peer.next_event(), h11.Data):
                body += event.data
            if not isinstance(event, h11.EndOfMessage):
                return
            mine = next(ours, None)
            if mine is None:
                return
            head, mine_body = mine
            assert (head.method.encode(), head.version.encode()) == (
                request.method,
                request.http_version,
            )
            lower = [(name, value.strip()) for name, value in head.headers]
            theirs = [(name, value.strip()) for name, value in request.headers]
            if not request.target.startswith(b"http:"):  # else the host in it counts
                assert theirs == lower
            assert mine_body == body
            peer.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
            peer.send(h11.EndOfMessage())
            if peer.our_state is not h11.DONE or peer.their_state is not h11.DONE:
                return
            peer.start_next_cycle()
    except h11.ProtocolError:
        return


def _requests(found: list[Event]) -> list[tuple[Head, bytes]]:
    """Return those that have come to their end, with their bodies."""
    whole, head, body = list[tuple[Head, bytes]](), None, b""
    for event in found:
        if isinstance(event, Head):
            head, body = event, b""
        elif isinstance(event, bytes):
            body += event
        elif isinstance(event, End) and head is not None:
            whole.append((head, body))
    return whole


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
