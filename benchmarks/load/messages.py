"""HTTP/1.1 messages without IO: requests as bytes, answers put together from whatever arrives.

Reads what servers send to these programs, no more: a length, chunks, or an end with the connection.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Response:
    """One answer; ``head`` is the status line and the header lines as they came."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of the first header called ``name``, in any case."""
        wanted = name.lower().encode()
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == wanted:
                return value.strip().decode("latin-1")
        return None

    @property
    def closes(self) -> bool:
        """Return whether the server will close the connection after this answer."""
        return (self.header("connection") or "").lower() == "close"

    def json(self) -> Any:
        """Return what the body says; raises ValueError when it is not JSON."""
        return json.loads(self.body)


def request_bytes(
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    host: str = "localhost",
) -> bytes:
    """Return a request; one with a body gets its Content-Length."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + _HEAD_END + (body or b"")


def tensors_document(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the document of an infer request of ``arrays`` by name, as FP32 tensors of JSON."""
    return {
        "inputs": [
            {"name": name, "shape": array.shape, "datatype": "FP32", "data": array.ravel().tolist()}
            for name, array in arrays.items()
        ]
    }


def infer_request(model: str, document: Mapping[str, Any]) -> bytes:
    """Return an infer request to ``model`` with ``document`` as JSON."""
    body = json.dumps(document, separators=(",", ":")).encode()
    kind = {"Content-Type": "application/json"}
    return request_bytes("POST", f"/v2/models/{model}/infer", body, kind)


def mixed_request(model: str, document: Mapping[str, Any], data: bytes) -> bytes:
    """Return an infer request to ``model`` with ``document`` as JSON, and ``data`` behind it."""
    text = json.dumps(document).encode()
    length = {"Inference-Header-Content-Length": str(len(text))}
    return request_bytes("POST", f"/v2/models/{model}/infer", text + data, length)


class ResponseReader:
    """Takes bytes as they arrive and gives each answer when its last byte is there."""

    def __init__(self, has_body: bool = True) -> None:
        """``has_body`` False: answers to HEAD, whose length is that of a body not sent."""
        self._has_body = has_body
        self._data = bytearray()
        self._reset()

    def _reset(self) -> None:
        self._head: bytes | None = None
        self._length: int | None = None  # None: chunks, or until the end
        self._chunked = False
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> Response | None:
        """Add ``data``; return an answer once it is complete (again with b"" for one that followed it).

        Raises:
            ValueError: this is not HTTP.
        """
        self._data += data
        while True:
            if self._head is None and not self._read_head():
                return None
            body = self._read_body()
            if body is None:
                return None
            response = self._finish(body)
            if response.status >= 200:
                return response

    def end(self) -> Response | None:
        """Return the answer that the end of the connection completes, if it does."""
        if self._head is None or self._chunked or self._length is not None:
            return None
        return self._finish(bytes(self._data))

    def _finish(self, body: bytes) -> Response:
        assert self._head is not None
        response = Response(int(self._head[9:12]), self._head, body)
        self._reset()
        return response

    def _read_head(self) -> bool:
        end = self._data.find(_HEAD_END)
        if end < 0:
            return False
        head = bytes(self._data[:end])
        if not head.startswith(b"HTTP/1."):
            raise ValueError(f"not an HTTP answer: {head[:40]!r}")
        del self._data[: end + len(_HEAD_END)]
        self._head = head
        lower = head.lower()
        self._chunked = b"\r\ntransfer-encoding: chunked" in lower
        _, named, rest = lower.partition(b"\r\ncontent-length:")
        if not self._has_body or head[9:10] == b"1" or head[9:12] in {b"204", b"304"}:
            self._chunked, self._length = False, 0
        elif named and not self._chunked:
            self._length = int(rest.partition(b"\r\n")[0])
        return True

    def _read_body(self) -> bytes | None:
        if self._chunked:
            return self._read_chunks()
        if self._length is None or len(self._data) < self._length:
            return None
        body = bytes(self._data[: self._length])
        del self._data[: self._length]
        return body

    def _read_chunks(self) -> bytes | None:
        while True:
            end = self._data.find(b"\r\n")
            if end < 0:
                return None
            size = int(self._data[:end].partition(b";")[0], 16)
            after = end + 2 + size
            if len(self._data) < after + 2:
                return None
            self._parts.append(bytes(self._data[end + 2 : after]))
            del self._data[: after + 2]
            if size == 0:
                return b"".join(self._parts)
