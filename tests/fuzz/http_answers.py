"""Fuzz answers to requests: ``python -m tests.fuzz.http_answers [seconds] [first] [--minutes N]``.

Each example is a connection with some requests one behind the other, in reads that fall anywhere: whole,
broken off, with broken chunks or lines, trailers that say something of the connection, HTTP/1.0, Expect,
HEAD. The application answers when it likes: on the head, after the body, in the middle of both, not at all;
some requests are refused by the intake. A client that counts reads at most one answer to a request, in
order, none behind one that ends the connection, and one to each request that nothing was in the way of.
"""

import asyncio
import logging
import random
import re
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from server.errors import BusyError, LateError
from server.protocol.answers import Answer
from server.transport.intake import PAUSE_SECONDS, Arrived, Intake, Refused
from server.transport.limits import LINGER_SECONDS, READ_BYTES
from tests.fuzz.http_requests import TRAILERS, cut
from tests.fuzz.pack import chosen_run, run_examples
from tests.server.transport.wire import Wire

_MANNERS = [
    "at once",
    "after the body",
    "after a part",
    "slowly",
    "in pieces",
    "fails",
    "breaks off",
]
_MANNERS += ["closes", "refused", "begins early"]
#: Bytes at whose place a body in chunks is none any more.
_NO_CHUNKS = [
    *(
        b"zz\r\n",
        b"\r\n",
        b"-1\r\n",
        b"1\r\nab\r\n",
        b"0\r\nno field\r\n\r\n",
        b"0\r\na\0: b\r\n\r\n",
    ),
    *(
        b"1;" + b"x" * 40_000 + b"\r\na\r\n",
        b"0\r\na: " + b"b" * 40_000 + b"\r\n\r\n",
        b"1\nx\n",
        b"g",
    ),
    *(
        b"0\r\n folded\r\n\r\n",
        b"11111111111111111\r\n",
        b"1 \r\nx\r\n",
        b"0x1\r\nx\r\n",
        b"1\r\nx\n",
    ),
]
_NO_HEADS = [
    *(
        b"nonsense\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
        b"BREW / HTTP/1.1\r\nhost: x\r\n\r\n",
    ),
    *(
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\nhost: x\n\n",
        b"GET / HTTP/1.1\r\nno field\r\n\r\n",
    ),
    *(b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"b" * 40_000 + b"\r\n\r\n", b"\x16\x03\x01"),
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
]


@dataclass(frozen=True)
class Sent:
    """A request. ``ends``: none behind it has an answer. ``says_end``: its answer says so."""

    data: bytes
    method: str = "GET"
    ends: bool = False
    says_end: bool = False


def draw(rng: random.Random, index: int) -> Sent:
    """Draw request ``index``, which its path names."""
    if rng.random() < 0.05:
        return Sent(rng.choice(_NO_HEADS), ends=True, says_end=True)
    method = rng.choice(("GET", "POST", "POST", "PUT", "HEAD"))
    is_old = rng.random() < 0.1
    fields, ends, body, is_complete = ["host: x"], is_old, b"", True
    if rng.random() < 0.15:
        fields.append("expect: 100-continue")
    if rng.random() < 0.1:
        fields.append("connection: upgrade\r\nupgrade: h2c")
    elif rng.random() < 0.1:
        fields.append("connection: close")
        ends = True
    elif is_old and rng.random() < 0.5:
        fields.append("connection: keep-alive")
        ends = False
    content = rng.randbytes(rng.choice((0, 1, 10, 3000, 40_000)))
    framing = rng.choice(("none", "length", "chunks", "chunks", "broken"))
    if framing == "length":
        fields.append(f"content-length: {len(content)}")
        body = content
    elif framing != "none":
        fields.append("transfer-encoding: chunked")
        ends = ends or is_old  # HTTP/1.0 has no chunks
        body = _in_chunks(rng, content)
        if framing == "broken":
            body += rng.choice(_NO_CHUNKS)
            ends, is_complete = True, False
        else:
            body += b"0\r\n" + b"".join(rng.choices(TRAILERS, k=rng.choice((0, 1, 3)))) + b"\r\n"
    rng.shuffle(fields)
    manner = rng.choice(_MANNERS if rng.random() < 0.5 else _MANNERS[:2])
    ends = ends or manner in {"fails", "breaks off", "closes"}
    # HTTP/1.0 knows the end of an answer without a length by that of the connection.
    ends = ends or (is_old and manner in {"in pieces", "begins early"} and method != "HEAD")
    # What breaks off says nothing; an answer may be there before a body turns out to be none.
    says_end = ends and is_complete and manner != "breaks off"
    path = f"/{index}/{manner.replace(' ', '-')}"
    head = "\r\n".join([f"{method} {path} HTTP/1.{int(not is_old)}", *fields, "", ""])
    return Sent(head.encode() + body, method, ends, says_end)


def _in_chunks(rng: random.Random, content: bytes) -> bytes:
    step = rng.choice((1, 7, 5000)) if len(content) < 1000 else 5000
    extension = rng.choice((b"", b"", b";a=b", b';a="b c"'))
    chunks = (content[start : start + step] for start in range(0, len(content), step))
    return b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer as the path says, with the path."""
    manner, text = scope["path"].split("/")[2], scope["path"].encode()
    if manner in {"after-the-body", "after-a-part", "in-pieces"}:
        await _read(receive, manner)
    if manner == "slowly":
        await asyncio.sleep(0.01)
    if manner == "fails":
        raise ValueError("as drawn")
    headers = [(b"x-path", text)]
    if manner not in {"in-pieces", "begins-early"}:
        headers.append((b"content-length", b"%d" % len(text)))
    if manner == "closes":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if manner == "breaks-off":
        return
    if manner in {"in-pieces", "begins-early"}:
        await send({"type": "http.response.body", "body": text[:1], "more_body": True})
        if manner == "begins-early":
            await _read(receive, manner)
        text = text[1:]
    await send({"type": "http.response.body", "body": text})


async def _read(receive: Any, manner: str) -> None:
    while (message := await receive())["type"] != "http.disconnect":
        if manner == "after-a-part" or not message["more_body"]:
            return


class _Reception:
    """Refuses what is to be refused."""

    def deadline(self, request: Arrived, is_free: bool) -> float | None:
        if request.head.path.endswith("/refused"):
            raise LateError("too late", 1.0)
        return None

    def refusal(self, request: Arrived, error: BusyError) -> Refused:
        path = request.head.path.encode()
        return Answer(b"", [(b"content-length", b"0"), (b"x-path", path)], 503)


async def exchange(chunks: list[bytes]) -> Wire:
    """Let a client send ``chunks`` as far as they are read; return the connection at its end."""
    wire = Wire(application)
    loop = wire.connection.loop
    wire.connection._intake = Intake(_Reception(), loop, loop.time)
    left = [
        chunk[offset : offset + READ_BYTES]
        for chunk in chunks
        for offset in range(0, len(chunk), READ_BYTES)
    ]
    left.reverse()
    idle = 0
    while idle < 3:
        if left and not (wire.transport.is_reading_paused or wire.transport.is_closing()):
            wire.connection.data_received(left.pop())
            await wire.settled()
        else:
            idle = 0 if left and not wire.transport.is_closing() else idle + 1
            await wire.time_passes(PAUSE_SECONDS + 0.002)
    await wire.time_passes(LINGER_SECONDS)
    return wire


class Answered(NamedTuple):
    """An answer as a client reads it; ``path``: of its request, empty if the connection gave it."""

    path: bytes
    is_last: bool
    is_complete: bool


def check(sent: list[Sent], wire: Wire) -> int:
    """Check what ``wire`` has answered to ``sent``; return how many answers that are."""
    data, is_over = wire.answer, False
    for index, request in enumerate(sent):
        answer, data = _next_answer(data, request.method)
        if answer is None:
            is_cut_off = request.ends and wire.transport.aborts > 0
            assert is_over or is_cut_off, f"request {index} has no answer"
            assert not data
            return index
        assert not is_over, f"request {index} has an answer behind the last one"
        assert answer.path in {b"", *_path(request)}, f"{index} has the answer to {answer.path!r}"
        assert answer.path or request.ends, f"request {index} has a refusal"
        assert answer.is_complete or request.ends, f"the answer to request {index} breaks off"
        assert request.ends or not answer.is_last, f"the connection ends behind request {index}"
        assert answer.is_last or not request.says_end, f"request {index} does not end it"
        is_over = request.ends
    assert not data, f"behind the last answer comes {data[:100]!r}"
    return len(sent)


def _path(request: Sent) -> list[bytes]:
    return request.data.split(b" ", 2)[1:2]


def _next_answer(data: bytes, method: str) -> tuple[Answered | None, bytes]:
    """Return the answer with which ``data`` begins, and what is behind it."""
    data = data.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not data:
        return None, b""
    head, end, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    assert re.fullmatch(rb"HTTP/1\.1 [2-5]\d\d [A-Za-z -]+", first), first
    assert end
    fields = dict(line.split(b": ", 1) for line in lines)
    is_last = fields.get(b"connection") == b"close"
    body: bytes | None = b""
    if method != "HEAD":
        if b"transfer-encoding" in fields:
            body, rest = _chunks(rest)
        elif (length := fields.get(b"content-length")) is not None:
            body, rest = rest[: int(length)], rest[int(length) :]
            body = body if len(body) == int(length) else None
        else:
            assert is_last
            rest = b""
    return Answered(fields.get(b"x-path", b""), is_last, body is not None), rest


def _chunks(data: bytes) -> tuple[bytes | None, bytes]:
    """Return the body in chunks that ``data`` begins with (None: it breaks off), and what is behind."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        n_bytes = int(size, 16)
        assert data[n_bytes : n_bytes + 2] == b"\r\n"
        body, data = body + data[:n_bytes], data[n_bytes + 2 :]
        if not n_bytes:
            return body, data
    return None, b""


def run(seed: int) -> bool:
    """Exchange one stream; return whether each request had its answer."""
    rng = random.Random(seed)
    sent = [draw(rng, position) for position in range(rng.choice((1, 2, 3, 6)))]
    chunks = cut(rng, b"".join(request.data for request in sent))
    wire = asyncio.run(exchange(chunks))
    return check(sent, wire) == len(sent)


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    logging.disable()  # what the application is drawn to fail with
    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
