"""HTTP/1.1 without a network: bytes that have come become events, answers become bytes.

Nothing here waits or knows the time. httptools parses; it is fed heads as a whole, and never bytes of two
requests at once. So the events do not depend on how reads cut the bytes, limits are exact, and bytes behind
a request are not looked at before it has its answer.
"""

import re
from collections.abc import Iterable
from http import HTTPStatus
from random import getrandbits
from typing import Final, NamedTuple
from urllib.parse import unquote

import httptools
import orjson

from server.transport.limits import HEADER_BYTES, HEADER_FIELDS

Headers = Iterable[tuple[bytes, bytes]]

_END = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
# The first bytes of something that may become a request.
_BEGINNING = re.compile(_TOKEN + rb"{0,32}(?: |\Z)")
_FIRST_LINE = re.compile(rb"(" + _TOKEN + rb"{1,32}) (\S+)(?: HTTP/([0-9]\.[0-9]))?")
_FIELD = re.compile(_TOKEN + rb"+:[^\0\r\n]*")
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r]*", re.IGNORECASE)

# Messages to clients that have sent no valid request.
_NO_REQUEST = "this is not an HTTP request: it does not begin with a line METHOD PATH HTTP/1.1"
_NO_LINES = "this is not an HTTP request: a line of its header does not end in CRLF"
_NO_FIELD = "this is not an HTTP request: its header has a line that is not NAME: VALUE"
_NO_LENGTH = "this is not an HTTP request: its header does not say well how long the body is"
_NO_CHUNKS = "this is not an HTTP request: its body does not come in chunks as its header says"
_NOT_SPOKEN = "HTTP/%s is not spoken here, HTTP/1.1 is"
_UNKNOWN = "the method %s is not known here"
_NO_PROXY = "a PROXY header: it is read with the setting proxy_protocol, from trusted_proxies alone"
_NO_PATH = "this is not an HTTP request: what it asks for has no path"


class Head(NamedTuple):
    """The head of a request; names of ``headers`` are in lower case.

    ``n_bytes``: of the body, None where no header says that. ``keeps``: the client keeps the connection
    behind the answer. ``expects``: it waits with the body to be told to send it.
    """

    method: str
    version: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    keeps: bool
    expects: bool
    n_bytes: int | None = None


class End(NamedTuple):
    """The end of a request."""


class Refusal(NamedTuple):
    """The bytes are no request, or exceed a limit; it is the last event."""

    status: int
    message: str


#: What the parser reports; bytes are a part of the body.
Event = Head | bytes | End | Refusal

_THE_END: Final = End()


# States of a connection: between two requests or in the head of one; in a body; after a request that waits
# for its answer; after the last request.
_HEAD, _BODY, _WHOLE, _OVER = range(4)


class Requests:
    """The requests of a connection, one after the other."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._state = _HEAD
        #: The bytes that have come and were not looked at yet.
        self.rest = b""
        self._events: list[Event] = []
        # How many bytes of empty lines came before a head.
        self._skipped = 0
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        # How many bytes of a body are to come, where its header says how long it is; None: it comes in
        # chunks. Of chunks: their last bytes, how many bytes are left of a block, and whether the block had
        # bytes of the body.
        self._left: int | None = None
        self._tail, self._block_left, self._has_moved = b"", HEADER_BYTES, False

    @property
    def is_between(self) -> bool:
        """Whether the next bytes begin a request."""
        return self._state == _HEAD and not self.rest

    @property
    def is_heading(self) -> bool:
        """Whether a part of the head of a request has come."""
        return self._state == _HEAD and bool(self.rest)

    def receive(self, data: bytes) -> list[Event]:
        """Take ``data``; return the events of the request to which it belongs."""
        self.rest = self.rest + data if self.rest else data
        events = self._events = []
        while self.rest and self._state <= _BODY:
            if self._state == _BODY:
                self._read_body()
            elif not self._read_head():
                break
        return events

    def resume(self) -> list[Event]:
        """Go on with the bytes behind a request that is whole and has its answer; return their events."""
        if self._state == _WHOLE:
            self._state, self._skipped = _HEAD, 0
        return self.receive(b"") if self.rest else []

    def stop(self) -> None:
        """Drop all bytes, also those that come later."""
        self._state, self.rest = _OVER, b""

    def close(self) -> None:
        """Drop the parser, which refers to this object: else only the garbage collector frees both."""
        self.stop()
        del self._parser

    def _refuse(self, status: int, message: str) -> None:
        self._events.append(Refusal(status, message))
        self.stop()

    # The head

    def _read_head(self) -> bool:
        """Parse a head if all of it has come, refuse one that is wrong; return whether it is whole."""
        if self.rest[0] in _END:
            before = len(self.rest)
            self.rest = self.rest.lstrip(_END)
            self._skipped += before - len(self.rest)
        most = max(HEADER_BYTES - self._skipped, 0)
        end = self.rest.find(_END, 0, most) + len(_END)
        is_whole = end >= len(_END)
        head = self.rest[: end if is_whole else most]
        has_lines = head.count(b"\n") == head.count(b"\r\n")
        if is_whole and has_lines:
            self.rest = self.rest[end:]
            self._feed(head)
        elif not _BEGINNING.match(head):
            self._refuse(400, _NO_REQUEST)
        elif not has_lines:
            self._refuse(400, _NO_LINES)
        elif len(head) == most:
            self._refuse(431, f"the header is over the limit of {HEADER_BYTES} bytes")
        return is_whole

    def _feed(self, head: bytes) -> None:
        self._url, self._headers, wrong = b"", [], None
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            if self._state == _WHOLE:
                # Upgrades are ignored. This parser would take all bytes that follow for the other protocol.
                self._parser, self._state = httptools.HttpRequestParser(self), _HEAD
                self._events.clear()
                self._feed(_UPGRADE.sub(b"", head))
        except httptools.HttpParserError as exc:
            wrong = _wrong(head, isinstance(exc, httptools.HttpParserInvalidMethodError))
        else:
            if self._state == _HEAD:  # the parser skips the first bytes of HTTP/2
                wrong = _wrong(head, is_method_unknown=True)
        if wrong is not None and self._state != _OVER:
            self._events.clear()
            self._refuse(*wrong)

    # The body

    def _read_body(self) -> None:
        """Parse the bytes that have come, up to the end of the body."""
        size = self._cut() if self._left is None else self._left
        part, self.rest = self.rest[:size], self.rest[size:]
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserError:
            self._refuse(400, _NO_CHUNKS)
            return
        if self._left is not None:
            self._left -= len(part)
        elif self._state == _BODY:
            self._count(len(part))

    def _cut(self) -> int:
        """Return how many bytes of ``rest`` may be fed: chunks can end only after an empty line."""
        joined = self._tail + self.rest
        end = joined.find(_END) + len(_END)
        size = end - len(self._tail) if end >= len(_END) else len(self.rest)
        size = min(size, self._block_left)
        self._tail = joined[: len(self._tail) + size][1 - len(_END) :]
        return size

    def _count(self, n_bytes: int) -> None:
        """Count ``n_bytes`` of chunks, and refuse a whole block that has no byte of the body."""
        self._block_left -= n_bytes
        if self._block_left:
            return
        if not self._has_moved:
            self._refuse(431, f"the chunks have {HEADER_BYTES} bytes without any of the body")
        self._block_left, self._has_moved = HEADER_BYTES, False

    # What the parser calls

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._state == _HEAD:  # fields after the chunks (trailers) are ignored
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Check the head that the parser has read, and add it to the events."""
        headers, parser = self._headers, self._parser
        method, version = parser.get_method().decode("ascii"), parser.get_http_version()
        if method == "CONNECT":
            self._refuse(501, _UNKNOWN % method)
            return
        if version > "1.1":
            self._refuse(400, _NOT_SPOKEN % version)
            return
        first = dict(reversed(headers))
        hosts = int(b"host" in first)
        if len(first) < len(headers):
            hosts = sum(name == b"host" for name, _ in headers)
        try:
            url = httptools.parse_url(self._url)
            path = url.path.decode("ascii")
        except (httptools.HttpParserError, AttributeError, UnicodeDecodeError):
            self._refuse(400, _NO_PATH)
            return
        if len(headers) > HEADER_FIELDS:
            self._refuse(431, f"the header has over {HEADER_FIELDS} fields")
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self._refuse(400, f"a request has one Host header, this one has {hosts or 'none'}")
        else:
            length = first.get(b"content-length")
            self._left = None if length is None else int(length)
            self._tail, self._block_left, self._has_moved = b"", HEADER_BYTES, False
            self._state = _BODY
            self._events.append(
                Head(
                    method=method,
                    version=version,
                    path=unquote(path) if "%" in path else path,
                    raw_path=url.path,
                    query=url.query or b"",
                    headers=headers,
                    # HTTP/1.0 has no chunks: a client that sends some may see another end of the body.
                    keeps=parser.should_keep_alive()
                    and (version == "1.1" or b"transfer-encoding" not in first),
                    expects=version == "1.1"
                    and first.get(b"expect", b"").lower() == b"100-continue",
                    n_bytes=self._left,
                )
            )

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        self._events.append(body)

    def on_message_complete(self) -> None:
        if self._state == _BODY:
            self._events.append(_THE_END)
            self._state = _WHOLE


def _wrong(head: bytes, is_method_unknown: bool) -> Refusal:
    """Return the refusal of ``head``, which the parser cannot read, with a message that says why."""
    first, *fields = head[: -len(_END)].split(b"\r\n")
    line = _FIRST_LINE.fullmatch(first)
    if line is None:
        return Refusal(400, _NO_PROXY if first.startswith(b"PROXY ") else _NO_REQUEST)
    if line[3] is not None and not line[3].startswith(b"1."):
        return Refusal(400, _NOT_SPOKEN % line[3].decode())
    if is_method_unknown:
        return Refusal(501, _UNKNOWN % line[1].decode())
    if not all(_FIELD.fullmatch(field) for field in fields):
        return Refusal(400, _NO_FIELD)
    is_about_length = re.search(rb"(?i)\r\n(content-length|transfer-encoding):", head)
    return Refusal(400, _NO_LENGTH if is_about_length else _NO_REQUEST)


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase.encode()
    except ValueError:
        phrase = b""
    return b"HTTP/1.1 %d %b" % (status, phrase)


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}
_WITHOUT_BODY = (204, 304)


class WireAnswer:
    """The answer to ``head``: makes bytes of the status, headers and body that the application gives.

    ``usual``: headers that every answer has. ``keeps``: whether the connection is kept after it; where that
    is False when it begins, it has "Connection: close".
    """

    def __init__(self, head: Head, usual: Headers) -> None:
        self._usual = usual
        self._has_body = head.method != "HEAD"
        self._is_old = head.version < "1.1"
        self.keeps = head.keeps
        self.is_begun = self.is_complete = False
        self._held = b""
        self._left: int | None = None  # None: it goes in chunks, or to the end of the connection
        self._is_chunked = False

    def begin(self, status: int, headers: Headers) -> None:
        """Begin; the head is kept until the first bytes of the body, so that both go as one segment.

        Raises:
            RuntimeError: a header has a line end in it.
        """
        every = [*self._usual, *headers]
        values_by_name = dict(every)
        length = values_by_name.get(b"content-length")
        self._left = None if length is None else int(length)
        says_close = b"close" in values_by_name.get(b"connection", b"").lower()
        self._has_body = self._has_body and status not in _WITHOUT_BODY
        has_end = self._left is not None or not self._has_body
        self._is_chunked = not (has_end or self._is_old)
        self.keeps = self.keeps and not says_close and (has_end or self._is_chunked)
        lines = [_STATUS_LINES[status], *map(b": ".join, every)]
        if not (says_close or self.keeps):
            lines.append(b"connection: close")
        elif self._is_old and not says_close:
            lines.append(b"connection: keep-alive")
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked")
        head = b"\r\n".join(lines) + _END
        if len(head.splitlines()) != len(lines) + 1 or b"\0" in head:
            raise RuntimeError("a header of the answer has a line end in it")
        self._held, self.is_begun = head, True

    def body(self, data: bytes | memoryview, more: bool) -> bytes | memoryview:
        """Return the bytes to send for ``data``, a part of the body; without ``more`` the last one.

        Raises:
            RuntimeError: the body is not as long as its header says, or was whole before.
        """
        if self.is_complete:
            raise RuntimeError("the answer is whole")
        size = len(data)
        if not self._has_body:
            data = b""
        elif self._is_chunked:
            chunk = b"".join((b"%x\r\n" % size, data, b"\r\n")) if size else b""
            data = chunk if more else chunk + b"0\r\n\r\n"
        elif self._left is not None:
            self._left -= size
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the answer is not as long as its Content-Length")
        self.is_complete = not more
        if self._held:
            data, self._held = self._held + data, b""
        return data

    def held(self) -> bytes:
        """Return the head of the answer, if that was not sent yet."""
        head, self._held = self._held, b""
        return head


_NO_HEAD: Final = Head("", "1.1", "", b"", b"", [], keeps=False, expects=False)


def refused(status: int, message: str, usual: Headers = ()) -> bytes:
    """Return the answer to bytes that are no whole request: the last answer of a connection."""
    body = orjson.dumps({"error": message})
    headers = [
        (b"content-length", b"%d" % len(body)),
        (b"content-type", b"application/json"),
        (b"x-request-id", b"%032x" % getrandbits(128)),
    ]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    answer = WireAnswer(_NO_HEAD, usual)
    answer.begin(status, headers)
    return bytes(answer.body(body, more=False))
