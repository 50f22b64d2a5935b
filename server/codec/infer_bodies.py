"""Bodies of requests to named arrays, named arrays to bodies of answers, whichever way they are encoded.

JSON comes first, and raw tensors, if there are any, behind it. Nothing is held but the arrays, and bytes
that are no value yet.

Short, ordinary requests are parsed at once: RequestReader takes most of its time whatever the size. Of
everything that is not short, flat and right, it has the last word.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from server.codec.framing import Framing
from server.codec.messages import (
    ModelAnswer,
    ModelRequest,
    Signature,
    is_count,
    matched_inputs,
    model_request,
    parse_fields,
    timeout_seconds,
)
from server.codec.raw import RawReader, RawTensor, bare_tensor, raw_bytes, raw_pieces, raw_tensor
from server.codec.text.arrays import PortArray
from server.codec.text.reader import RequestReader
from server.codec.text.writer import check_finite, write_text
from server.errors import InvalidRequestError, ServiceError

# The classification extension: of an output only its best classes, as text.


def best_classes(scores: NDArray[Any], n_classes: int, labels: Sequence[str] = ()) -> NDArray[Any]:
    """Return the best ``n_classes`` of ``scores``, best first, ties by index, as "score:index[:label]".

    Of each item of the first axis, if there are two or more: strings of shape [items, classes], otherwise
    [classes]; fewer classes where there are not so many. ``labels``: by index, as far as they go.
    """
    n_rows = scores.shape[0] if scores.ndim > 1 else 1
    rows = scores.reshape(n_rows, scores.size // max(n_rows, 1))
    n_best = min(n_classes, rows.shape[1])
    found = np.empty((len(rows), n_best), object)
    for row, best in zip(rows, found, strict=True):
        best[:] = [_line(row[index], index, labels) for index in _order(row)[:n_best]]
    return found if scores.ndim > 1 else found.reshape(n_best)


def _order(row: NDArray[Any]) -> list[int]:
    """Return the indices of ``row``, highest value first; NaN is where minus infinity would be."""
    values = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    backwards = np.argsort(values[::-1], kind="stable")[::-1]
    order: list[int] = (row.size - 1 - backwards).tolist()
    return order


def _line(value: Any, index: int, labels: Sequence[str]) -> str:
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{value!s}:{index}{label}"


# Chunks of a body to named arrays, whichever way they are encoded: what headers say decides.

#: A longer text is read as it comes; in so short a one no number is too long.
PLAIN_BYTES = 4096
# With more of them it may be nested, or have values, beyond what a reader of any text takes.
_MOST_BRACKETS, _MOST_COMMAS = 32, 1024


def decode_at_once(body: bytes, framing: Framing, model: Signature) -> ModelRequest | None:
    """Return the request that a short, ordinary ``body`` is, or None: a BodyDecoder must be asked."""
    length = framing.json_bytes
    if framing.coding != "identity" or length == 0 or (length or 0) > len(body):
        return None
    text, raw = body[:length], b"" if length is None else body[length:]
    is_nested = text.count(b"[") + text.count(b"{") > _MOST_BRACKETS
    if is_nested or len(text) > PLAIN_BYTES or text.count(b",") > _MOST_COMMAS or b"\\" in text:
        return None
    began = time.perf_counter()
    arrays: dict[str, NDArray[Any]] = {}
    behind: list[RawTensor] = []
    try:
        document = orjson.loads(text)
        if orjson.dumps(document).count(b'"') != text.count(b'"'):
            return None  # a key that is there twice is lost in parsing, its quotes are not
        fields = parse_fields(document)
        for where, tensor, port in matched_inputs(fields, model):
            if tensor.data is None:
                behind.append(raw_tensor(where, port, tensor.parameters["binary_data_size"]))
                arrays[port.name] = behind[-1].array
                continue
            array = PortArray(where, port)
            if len(tensor.data) != array.n_values:
                return None
            array.add(tensor.data)
            arrays[port.name] = array.array
        if behind or raw:
            reader = RawReader(behind)
            reader.feed(memoryview(raw))
            reader.finish()
        return model_request(fields, arrays, model, time.perf_counter() - began)
    except (ServiceError, TypeError, ValueError):
        return None


def text_that_is_here(received: bytes, framing: Framing, is_complete: bool) -> bytes | None:
    """Return the JSON of a body of which so much is ``received``; None: it is not all there."""
    length = framing.json_bytes
    if framing.coding != "identity":
        return None
    if length is None:
        return received if is_complete else None
    return received[:length] if length <= len(received) else None


def named_timeout(text: bytes) -> float | None:
    """Return the timeout in seconds that the JSON of a request has; None: none that a request can have."""
    try:
        timeout = orjson.loads(text)["parameters"]["timeout"]
    except (ValueError, TypeError, LookupError):
        return None
    return timeout_seconds(timeout) if is_count(timeout) else None


class BodyDecoder:
    """Reads one body, opened if it was compressed; after an error it is of no more use."""

    def __init__(self, framing: Framing, model: Signature) -> None:
        self._framing = framing
        self._text_left = framing.json_bytes
        self._text = RequestReader(model)
        # Both are there when the JSON has ended.
        self._request: ModelRequest | None = None
        self._raw = RawReader(())
        self._seconds = 0.0
        self._bare: tuple[str, RawTensor] | None = None
        if framing.json_bytes == 0:
            name, tensor = bare_tensor([*model.inputs.values()], model.shapes)
            self._bare = name, tensor
            self._request = ModelRequest({name: tensor.array}, model.all_outputs[True])
            self._raw = RawReader([tensor])

    @property
    def begun(self) -> ModelRequest | None:
        """The request, once its JSON has come; its raw tensors may still be coming."""
        return self._request

    @property
    def loose_bytes(self) -> int:
        """Of what is held, what no array of numbers is."""
        return self._text.loose_bytes + self._raw.loose_bytes

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body, any number of them.

        Raises:
            InvalidRequestError: no request that the model takes begins like this.
            TooLargeError: it is over the limit of the model.
        """
        began = time.perf_counter()
        block = memoryview(chunk)
        if self._request is None:
            block = self._feed_text(block)
        self._raw.feed(block)
        self._seconds += time.perf_counter() - began

    def finish(self) -> ModelRequest:
        """Return the request: the body has ended.

        Raises:
            InvalidRequestError: it is not whole, or not what the model takes.
        """
        began = time.perf_counter()
        if self._text_left:
            raise InvalidRequestError(
                f"the body ends {self._text_left} bytes before its JSON does, of which "
                f"Inference-Header-Content-Length says {self._framing.json_bytes}"
            )
        if self._request is None:
            self._end_text()
        self._raw.finish()
        assert self._request is not None
        if self._bare is not None:  # its shape may have followed from its length
            name, tensor = self._bare
            self._request.inputs[name] = tensor.array
        seconds = self._seconds + time.perf_counter() - began
        return self._request._replace(decoding_seconds=seconds)

    def _feed_text(self, block: memoryview) -> memoryview:
        """Read JSON from ``block``; return what is behind it."""
        text = block if self._text_left is None else block[: self._text_left]
        self._text.feed(text)
        if self._text_left is not None:
            self._text_left -= len(text)
            if not self._text_left:
                self._end_text()
        return block[len(text) :]

    def _end_text(self) -> None:
        self._request = self._text.finish()
        if self._text.raw and self._framing.json_bytes is None:
            raise InvalidRequestError(
                "binary_data_size is given, and no header Inference-Header-Content-Length"
            )
        self._raw = RawReader(self._text.raw)


# Named arrays to the body of an answer, in pieces: JSON, and behind it the tensors that are wanted raw.


class Body:
    """The body of ``answer``; both parts can be made again.

    ``is_mixed``: there are raw tensors, of ``raw_bytes``, so the length of the JSON must be said.

    Raises:
        InvalidRequestError: an output that is wanted as JSON has NaN or infinite values.
    """

    def __init__(self, answer: ModelAnswer) -> None:
        self._answer = answer
        self._raw_sizes: dict[str, int] = {}
        for output in answer.outputs:
            if output.is_binary:
                self._raw_sizes[output.name] = raw_bytes(output.array)
            else:
                check_finite(output)
        self.is_mixed = bool(self._raw_sizes)
        self.raw_bytes = sum(self._raw_sizes.values())

    def text(self) -> Iterator[bytes]:
        """Return the pieces of the JSON, each made in about a millisecond."""
        return write_text(self._answer, self._raw_sizes)

    def raw(self) -> Iterator[bytes]:
        """Yield the pieces of the raw tensors."""
        for output in self._answer.outputs:
            if output.is_binary:
                yield from raw_pieces(output.array)
