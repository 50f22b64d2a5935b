"""Both ends of an exchange as text: bytes over a plain socket, messages over gRPC."""

import contextlib
import gzip
import hashlib
import json
import re
import socket
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from server.grpc.details import KEY as DETAILS
from server.grpc.messages import inference_pb2 as messages
from server.page.routes import STATIC
from tests.exchanges.servers import LIMIT_SECONDS, Server
from tests.server.grpc.stubs import reason_of_details

#: What was asked, and what was seen of the answer.
Exchange = tuple[str, list[str]]
View = Callable[[bytes], str]
#: A part of a request, or what is waited for before the next one is sent.
Part = bytes | Callable[[], object]

#: Bodies of more characters are a hash.
SHORT = 500
PROBE = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
SERVICE = "inference.GRPCInferenceService"

# What is not the same twice, or on another machine, by what it is called instead. Folders, ports and the
# version of the package are replaced where they are known.
_FIGURES = (
    "ns|last_inference|lastInference|delay_ms|byte_size|byteSize|"
    "staging|ring|resident|arena|scratch|io|sessions|objects"
)
RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(?m)^(date|last-modified): .*", r"\1: DATE"),
    (r"(?m)^etag: .*", "etag: ETAG"),
    (r"(?m)^(HTTP/1.1 41[36]) .*", r"\1 PHRASE"),  # Python's, another one from 3.13 on
    (r"\b[0-9a-f]{32}\b", "ID"),
    (r"(?m)^(retry-after|grpc-retry-pushback-ms): \d+", r"\1: N"),
    (r'("count": "\d+"), "ns": "\d+"', r"\1"),  # of gRPC, which leaves out what takes no time
    (rf'("(?:{_FIGURES})": ?)"?[0-9][0-9.e+-]*"?', r"\1N"),
    (r'"(?:probability|score|box)": ?(\[[^]]*\]|[0-9.e+-]+)', lambda found: rounded(found[0])),
    (r"\b[0-9.]+ [KMG]iB( \(\d+ bytes\))?|SIZE \(\d+ bytes\)", "SIZE"),
    (r"(?m)^(content-range: .*)/\d+", r"\1/N"),
    (r"(exceeds soft limit).*", r"\1"),
    (r"no answer within [0-9.]+ s", "no answer within N s"),
)


def steady(text: str) -> str:
    """Return ``text`` as it is every time."""
    for pattern, name in RULES:
        text = re.sub(pattern, name, text)
    return text


def rounded(text: str) -> str:
    return re.sub(r"-?[0-9][0-9.]*(e[+-]?\d+)?", lambda found: f"{float(found[0]):.4g}", text)


def short(body: bytes) -> str:
    """Return ``body``, or its start and a digest of all of it."""
    try:
        text = steady(body.decode())
    except UnicodeDecodeError:
        text = ""
    if text or not body:
        return text if len(text) <= SHORT else f"{text[:80]}... {digest(text.encode())}"
    return body.hex() if len(body) <= 100 else digest(body)


def digest(data: bytes) -> str:
    return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:16]}"


def file_of_page(body: bytes) -> str:
    """Return which file of the page it is."""
    return next((f"FILE {p.name}" for p in Path(STATIC).iterdir() if p.read_bytes() == body), "")


def names(body: bytes) -> str:
    """Return names and kinds of metrics, and their labels."""
    kinds = re.findall(r"(?m)^# TYPE (.*)$", body.decode())
    samples = re.findall(r"(?m)^([a-z]\w*)(?:{(.*)})? ", body.decode())
    labels = {" ".join([name, *re.findall(r"(\w+)=", said)]) for name, said in samples}
    return "\n".join([*kinds, *sorted(labels)])


def operations(body: bytes) -> str:
    """Return what an OpenAPI document says: a line for each operation, one for all schemas."""
    document = json.loads(body)
    lines = [
        f"{method} {path}: {' '.join(said['responses'])} {digest(_canonical(said))}"
        for path, methods in document["paths"].items()
        for method, said in methods.items()
    ]
    schemas = document["components"]["schemas"]
    return "\n".join(
        [*lines, *(f"{name} {digest(_canonical(said))}" for name, said in schemas.items())]
    )


def _canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def structure(body: bytes) -> str:
    """Return the fields of JSON without their values, of each event of a stream."""
    text = body.decode()
    found = [json.loads(part) for part in re.findall(r"(?m)^(?:data: )?([{\[].*)$", text)]
    events = re.findall(r"(?m)^event: .*$", text)
    return "\n".join(dict.fromkeys(events + [json.dumps(_kinds(each)) for each in found]))


def _kinds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _kinds(each) for key, each in value.items()}
    if isinstance(value, list):
        return [json.loads(text) for text in sorted({json.dumps(_kinds(each)) for each in value})]
    return "number" if isinstance(value, int | float) else type(value).__name__


# HTTP


class Wire:
    """A connection of one client, and what it sees."""

    def __init__(self, server: Server, plain: bool = False) -> None:
        self.socket = server.connect(plain)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, *parts: Part) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                if isinstance(part, bytes):
                    self.socket.sendall(part)
                else:
                    part()

    def answer(self, is_head: bool = False, view: View = short) -> list[str]:
        """Return the next answer, line by line; nothing where the connection ends before it."""
        try:
            return self._answer(is_head, view)
        except OSError:
            return []

    def _answer(self, is_head: bool, view: View) -> list[str]:
        head = [line.rstrip(b"\r\n").decode("latin-1") for line in iter(self._line, b"")]
        if not head:
            return []
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        has_none = is_head or head[0].split()[1] in ("100", "204", "304")
        body = b"" if has_none else self._body(fields)
        coding = fields.get("content-encoding")
        if coding is not None and body:
            body = gzip.decompress(body) if coding == "gzip" else zlib.decompress(body)
        said = view(body)
        lines = steady("\n".join(head)).split("\n")
        if "content-length" in fields and (is_head or view is not short or is_unsteady(body)):
            lines = [re.sub(r"(?i)^(content-length): .*", r"\1: LENGTH", line) for line in lines]
        return [*lines, *([said] if said else [])]

    def _line(self) -> bytes:
        line = self.file.readline()
        return b"" if line == b"\r\n" else line

    def _body(self, fields: dict[str, str]) -> bytes:
        if fields.get("transfer-encoding") == "chunked":
            return b"".join(iter(self._chunk, b""))
        if "content-length" in fields:
            return self.file.read(int(fields["content-length"]))
        return self.file.read()

    def _chunk(self) -> bytes:
        size = int(self.file.readline(), 16)
        found = self.file.read(size)
        self.file.readline()
        return found

    def first_events(self) -> list[str]:
        """Return the head of an answer that goes on, and its first two events."""
        head = [line.rstrip(b"\r\n").decode() for line in iter(self._line, b"")]
        events = [structure(self._chunk()) for _ in range(2)]
        return [*steady("\n".join(head)).split("\n"), *events]

    def end(self) -> str:
        """Return whether another request is answered."""
        self.send(PROBE)
        found = self.answer()
        if not found:
            return "then closed"
        return "then kept" if " 200 " in found[0] else f"then {found[0]}"


def is_unsteady(body: bytes) -> bool:
    """Return whether a body is as long as its figures."""
    with contextlib.suppress(UnicodeDecodeError):
        return steady(body.decode()) != body.decode()
    return False


def http(
    server: Server,
    *parts: Part,
    answers: int = 1,
    view: View = short,
    plain: bool = False,
) -> list[str]:
    """Send ``parts`` and return what comes: that many answers, and whether the connection is kept."""
    seen: list[str] = []
    with Wire(server, plain) as wire:
        wire.send(*parts)
        first = next((part for part in parts if isinstance(part, bytes)), b"")
        for _ in range(answers):
            found = wire.answer(first.startswith(b"HEAD "), view)
            seen += found
            if not found:
                break
        return [*seen, wire.end()]


def ask(
    method: str,
    target: str,
    body: bytes | dict[str, Any] | list[Any] | None = None,
    *headers: str,
    host: str = "localhost",
    version: str = "1.1",
) -> bytes:
    """Return a request; a body that is no bytes is JSON."""
    data = json.dumps(body).encode() if isinstance(body, dict | list) else body
    lines = [f"{method} {target} HTTP/{version}", f"host: {host}", *headers]
    lines += [] if data is None else [f"content-length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (data or b"")


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


# gRPC


def call(
    channel: grpc.Channel,
    method: str,
    *asked: Message | bytes,
    metadata: Sequence[tuple[str, str]] = (),
    seconds: float = LIMIT_SECONDS,
    **options: Any,
) -> list[str]:
    """Call ``method`` with these messages and return what comes: answers, metadata, status."""
    data = [each if isinstance(each, bytes) else each.SerializeToString() for each in asked]
    ask_for: Any = channel.stream_stream(f"/{SERVICE}/{method}")
    begun = ask_for(iter(data), timeout=seconds, metadata=metadata, **options)
    return list(told(method, begun))


def told(method: str, begun: Any) -> Iterator[str]:
    kind = getattr(messages, f"{method}Response", None)
    answers: list[str] = []
    try:
        for data in begun:
            said = kind.FromString(data) if kind else data
            text = MessageToJson(said, indent=None, sort_keys=True) if kind else data.hex()
            answers.append(short(text.encode()))
    except grpc.RpcError:
        pass
    yield from _pairs("initial", begun.initial_metadata())
    yield from answers
    yield f"{begun.code().name} {steady(begun.details() or '')}".strip()
    yield from _pairs("trailing", begun.trailing_metadata())


def _pairs(when: str, found: Any) -> Iterator[str]:
    for key, value in found or ():
        text = reason_of_details(value) if key == DETAILS else value
        yield f"{when} {steady(f'{key}: {text}')}"


def closed(connection: socket.socket) -> str:
    """Return what comes until the other end closes."""
    said = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(1 << 16):
            said += part
    return steady(said.decode("latin-1")) or "nothing"
