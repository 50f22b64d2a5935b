"""HTTP/1.1 without a network: bytes that have come become events, answers become bytes.

Nothing here waits or knows the time. httptools parses heads, each as a whole and with a parser of its own;
bodies are read here. So the events do not depend on how reads cut the bytes, limits are exact, no request
changes how another is read, and bytes behind a request are not looked at before it has its answer.
"""

import re
from collections.abc import Callable, Iterable
from http import HTTPStatus
from random import getrandbits
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import httptools
import orjson

from server.faults import Code, Fault
from server.transport.limits import HEADER_BYTES, HEADER_FIELDS

Headers = Iterable[tuple[bytes, bytes]]

#: Ends a head; empty lines before one are skipped.
HEAD_END = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
# The first bytes of something that may become a request.
_BEGINNING = re.compile(_TOKEN + rb"{0,32}(?: |\Z)")
_FIRST_LINE = re.compile(rb"(" + _TOKEN + rb"{1,32}) (\S+)(?: HTTP/([0-9]\.[0-9]))?")
_FIELD = re.compile(_TOKEN + rb"+:[^\0\r\n]*")
_TRAILER = re.compile(_FIELD.pattern + rb"\r\n")

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

    code: Code
    message: str


#: What the parser reports; bytes are a part of the body.
Event = Head | bytes | End | Refusal

_THE_END: Final = End()


# States of a connection: between two requests or in the head of one; in a body; after a request that waits
# for its answer; after the last request.
_HEAD, _BODY, _WHOLE, _OVER = range(4)


class Requests:
    """The requests of a connection, one after the other, and which answers they may have.

    All bytes of answers come from here or from ``answer``. So no request has two, and nothing goes behind
    an answer that ends the connection, whatever the caller does.

    ``usual``: returns headers that every answer has.
    """

    def __init__(self, usual: Callable[[], Headers] = tuple) -> None:
        self._usual = usual
        self._state = _HEAD
        #: The bytes that have come and were not looked at yet.
        self.rest = b""
        #: The answer to the request whose head came last, until the next one may begin.
        self.answer: WireAnswer | None = None
        self._events: list[Event] = []
        # How many bytes of empty lines came before a head.
        self._skipped = 0
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._parser: httptools.HttpRequestParser | None = None
        # How many bytes of a body are to come, where it does not come in chunks.
        self._left = 0
        self._chunks: _Chunks | None = None

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
        if self.answer is not None and self.answer.is_last:
            self.stop()
        while self.rest and self._state <= _BODY:
            if self._state == _BODY:
                self._read_body()
            elif not self._read_head():
                break
        return events

    def resume(self) -> list[Event]:
        """Go on with the bytes behind a request that is whole and has its answer; return their events."""
        answer = self.answer
        if self._state == _WHOLE and answer is not None and answer.is_complete:
            self._state, self._skipped, self.answer = _HEAD, 0, None
            if not answer.keeps:
                self.stop()
        return self.receive(b"") if self.rest else []

    def refuse(self, code: Code, message: str) -> bytes:
        """Answer what is no whole request, and stop; return b"" if its request has its answer already."""
        self.stop()
        if self.answer is None:
            self.answer = WireAnswer(_NO_HEAD, self._usual())
        return b"" if self.answer.is_begun else self.answer.refuse(code, message)

    def stop(self) -> None:
        """Drop all bytes, also those that come later."""
        self._state, self.rest = _OVER, b""

    def _refuse(self, code: Code, message: str) -> None:
        self._events.append(Refusal(code, message))
        self.stop()

    # The head

    def _read_head(self) -> bool:
        """Parse a head if all of it has come, refuse one that is wrong; return whether it is whole."""
        if self.rest[0] in HEAD_END:
            before = len(self.rest)
            self.rest = self.rest.lstrip(HEAD_END)
            self._skipped += before - len(self.rest)
        most = max(HEADER_BYTES - self._skipped, 0)
        end = self.rest.find(HEAD_END, 0, most) + len(HEAD_END)
        is_whole = end >= len(HEAD_END)
        head = self.rest[: end if is_whole else most]
        has_lines = head.count(b"\n") == head.count(b"\r\n")
        if is_whole and has_lines:
            self.rest = self.rest[end:]
            self._feed(head)
        elif not _BEGINNING.match(head):
            self._refuse(Code.INVALID_REQUEST, _NO_REQUEST)
        elif not has_lines:
            self._refuse(Code.INVALID_REQUEST, _NO_LINES)
        elif len(head) == most:
            self._refuse(
                Code.HEADERS_TOO_LARGE, f"the header is over the limit of {HEADER_BYTES} bytes"
            )
        return is_whole

    def _feed(self, head: bytes) -> None:
        """Parse ``head`` with a parser that sees nothing else, so that no request changes another."""
        self._url, self._headers, wrong = b"", [], None
        self._parser = parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass  # upgrades are ignored
        except httptools.HttpParserError as exc:
            wrong = _wrong(head, isinstance(exc, httptools.HttpParserInvalidMethodError))
        finally:
            self._parser = None  # it refers to this object
        if wrong is None and self._state == _HEAD:  # the parser skips the first bytes of HTTP/2
            wrong = _wrong(head, is_method_unknown=True)
        if wrong is not None and self._state != _OVER:
            self._events.clear()
            self.answer = None
            self._refuse(*wrong)
        elif self._state == _BODY and not self._left and self._chunks is None:
            self._finish()

    # The body

    def _read_body(self) -> None:
        """Read the bytes that have come, up to the end of the body."""
        chunks = self._chunks
        if chunks is None:
            body, self.rest = self.rest[: self._left], self.rest[self._left :]
            self._left -= len(body)
        else:
            body, self.rest = chunks.read(self.rest)
        if body:
            self._events.append(body)
        if chunks is not None and chunks.fault is not None:
            self._refuse(*chunks.fault)
        elif chunks.is_complete if chunks is not None else not self._left:
            self._finish()

    def _finish(self) -> None:
        self._events.append(_THE_END)
        self._state = _WHOLE

    # What the parser calls

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Check the head that the parser has read, and add it to the events."""
        headers, parser = self._headers, self._parser
        assert parser is not None
        method, version = parser.get_method().decode("ascii"), parser.get_http_version()
        if method == "CONNECT":
            self._refuse(Code.UNSUPPORTED, _UNKNOWN % method)
            return
        if version > "1.1":
            self._refuse(Code.INVALID_REQUEST, _NOT_SPOKEN % version)
            return
        first = dict(reversed(headers))
        hosts = int(b"host" in first)
        if len(first) < len(headers):
            hosts = sum(name == b"host" for name, _ in headers)
        try:
            url = httptools.parse_url(self._url)
            path = url.path.decode("ascii")
        except (httptools.HttpParserError, AttributeError, UnicodeDecodeError):
            self._refuse(Code.INVALID_REQUEST, _NO_PATH)
            return
        if len(headers) > HEADER_FIELDS:
            self._refuse(Code.HEADERS_TOO_LARGE, f"the header has over {HEADER_FIELDS} fields")
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self._refuse(
                Code.INVALID_REQUEST,
                f"a request has one Host header, this one has {hosts or 'none'}",
            )
        else:
            if url.host is not None:  # RFC 9112, section 3.2.2: it counts more than the header
                headers = [_host(url), *(field for field in headers if field[0] != b"host")]
            # The parser takes a length or a transfer coding that ends with chunks, and never both.
            length, is_chunked = first.get(b"content-length"), b"transfer-encoding" in first
            self._left, self._chunks = int(length or 0), _Chunks() if is_chunked else None
            head = Head(
                method=method,
                version=version,
                path=unquote(path) if "%" in path else path,
                raw_path=url.path,
                query=url.query or b"",
                headers=headers,
                # HTTP/1.0 has no chunks: a client that sends some may see another end of the body.
                keeps=parser.should_keep_alive() and (version == "1.1" or not is_chunked),
                expects=version == "1.1" and first.get(b"expect", b"").lower() == b"100-continue",
                n_bytes=None if length is None else int(length),
            )
            self._state, self.answer = _BODY, WireAnswer(head, self._usual())
            self._events.append(head)


# The line end behind a chunk and the line with the size of the next one, and what may become both.
# Extensions are ignored.
_EXTENSION = rb"(?:;[^\0-\x08\x0a-\x1f\x7f]*)?"
_SIZE = re.compile(rb"\r\n([0-9A-Fa-f]{1,16})" + _EXTENSION + rb"\r\n")
_SIZE_BEGINNING = re.compile(rb"\r?|\r\n(?:[0-9A-Fa-f]{1,16}(?:" + _EXTENSION + rb"\r?)?)?")


class _Chunks:
    """A body that comes in chunks (RFC 9112, section 7.1); its trailer section is read and dropped.

    It consumes all bytes up to its end. Between two bytes of the body there are at most HEADER_BYTES.
    """

    def __init__(self) -> None:
        self.is_complete = False
        #: What is wrong with it.
        self.fault: Refusal | None = None
        # What has come of a line, or of a size; no line end stands before the first size.
        self._line = b"\r\n"
        self._in_trailers = False  # in the trailer section
        self._left = 0  # of the current chunk
        self._others = 0  # bytes since the last one of the body

    def read(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes of the body in ``data``, and those behind its end."""
        segments, offset, left = list[bytes](), 0, self._left
        while offset < len(data) and not (self.is_complete or self.fault):
            if left:
                segment = data[offset : offset + left]
                segments.append(segment)
                offset += len(segment)
                left -= len(segment)
                self._others = 0
                continue
            is_inside = bool(self._line) or self._in_trailers
            matched = None if is_inside else _SIZE.match(data, offset)
            if matched is None or matched.end() - offset > HEADER_BYTES:
                offset, left = self._add(data, offset)
            else:  # all of it is here: a client may send a byte in each chunk
                self._others = matched.end() - offset
                offset, left = matched.end(), int(matched[1], 16)
                self._in_trailers = not left
        self._left = left
        return b"".join(segments), data[offset:]

    def _add(self, data: bytes, offset: int) -> tuple[int, int]:
        """Read ``data`` from ``offset`` up to a line end; return where that is, and a size after it."""
        if self._others >= HEADER_BYTES:
            message = f"the chunks have {HEADER_BYTES} bytes without any of the body"
            self.fault = Refusal(Code.HEADERS_TOO_LARGE, message)
            return offset, 0
        end = data.find(b"\n", offset) + 1 or len(data)
        end = min(end, offset + HEADER_BYTES - self._others)
        self._line += data[offset:end]
        self._others += end - offset
        return end, self._read_trailer() if self._in_trailers else self._read_size()

    # Both look at what has come of a line, and drop one that is whole.

    def _read_size(self) -> int:
        """Return the size, 0 if it has not come."""
        matched, size = _SIZE.fullmatch(self._line), 0
        if matched is not None:
            size = int(matched[1], 16)
            self._line, self._in_trailers = b"", not size
        elif not _SIZE_BEGINNING.fullmatch(self._line):
            self.fault = Refusal(Code.INVALID_REQUEST, _NO_CHUNKS)
        return size

    def _read_trailer(self) -> int:
        line = self._line
        if line.endswith(b"\n"):
            self._line = b""
            self.is_complete = line == b"\r\n"
            if not (self.is_complete or _TRAILER.fullmatch(line)):
                self.fault = Refusal(Code.INVALID_REQUEST, _NO_CHUNKS)
        return 0


def _wrong(head: bytes, is_method_unknown: bool) -> Refusal:
    """Return the refusal of ``head``, which the parser cannot read, with a message that says why."""
    first, *fields = head[: -len(HEAD_END)].split(b"\r\n")
    line = _FIRST_LINE.fullmatch(first)
    if line is None:
        return Refusal(
            Code.INVALID_REQUEST, _NO_PROXY if first.startswith(b"PROXY ") else _NO_REQUEST
        )
    if line[3] is not None and not line[3].startswith(b"1."):
        return Refusal(Code.INVALID_REQUEST, _NOT_SPOKEN % line[3].decode())
    if is_method_unknown:
        return Refusal(Code.UNSUPPORTED, _UNKNOWN % line[1].decode())
    if not all(_FIELD.fullmatch(field) for field in fields):
        return Refusal(Code.INVALID_REQUEST, _NO_FIELD)
    is_about_length = re.search(rb"(?i)\r\n(content-length|transfer-encoding):", head)
    return Refusal(Code.INVALID_REQUEST, _NO_LENGTH if is_about_length else _NO_REQUEST)


def _host(url: Any) -> tuple[bytes, bytes]:
    """Return the Host header that says what ``url`` says."""
    host = b"[%b]" % url.host if b":" in url.host else url.host
    return b"host", host if url.port is None else b"%b:%d" % (host, url.port)


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase.encode()
    except ValueError:
        phrase = b""
    return b"HTTP/1.1 %d %b" % (status, phrase)


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}
_WITHOUT_BODY = (204, 304)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class WireAnswer:
    """The answer to ``head``: makes bytes of the status, headers and body that the application gives.

    ``usual``: headers that every answer has. ``keeps``: whether the connection is kept after it; where that
    is False when it begins, it has "Connection: close". ``expects``: the client waits for ``proceed``.
    """

    def __init__(self, head: Head, usual: Headers) -> None:
        self._usual = usual
        self._has_body = head.method != "HEAD"
        self._is_old = head.version < "1.1"
        self.keeps, self.expects = head.keeps, head.expects
        self.is_begun = self.is_complete = False
        self._held = b""
        self._left: int | None = None  # None: it goes in chunks, or to the end of the connection
        self._is_chunked = False

    @property
    def is_last(self) -> bool:
        """Whether it is complete and nothing goes behind it."""
        return self.is_complete and not self.keeps

    def proceed(self) -> bytes:
        """Return what lets a client send its body that waits for that; b"" where none waits."""
        expects, self.expects = self.expects, False
        return _CONTINUE if expects else b""

    def begin(self, status: int, headers: Headers) -> None:
        """Begin; the head is kept until the first bytes of the body, so that both go as one segment.

        Raises:
            RuntimeError: it has started already, or a header has a line end in it.
        """
        if self.is_begun:
            raise RuntimeError("the answer has started")
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
        head = b"\r\n".join(lines) + HEAD_END
        if len(head.splitlines()) != len(lines) + 1 or b"\0" in head:
            raise RuntimeError("a header of the answer has a line end in it")
        self._held, self.is_begun, self.expects = head, True, False

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

    def refuse(self, code: Code, message: str) -> bytes:
        """Return all of an error, the last answer of its connection; raises as ``begin``."""
        body = orjson.dumps(Fault(code, message).document)
        headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
            (b"x-request-id", b"%032x" % getrandbits(128)),
        ]
        if code.status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append((b"retry-after", b"1"))
        self.keeps = False
        self.begin(code.status, headers)
        return bytes(self.body(body, more=False))


_NO_HEAD: Final = Head("", "1.1", "", b"", b"", [], keeps=False, expects=False)


def refused(code: Code, message: str, usual: Headers = ()) -> bytes:
    """Return the answer to bytes that are no whole request: the last answer of a connection."""
    return WireAnswer(_NO_HEAD, usual).refuse(code, message)
