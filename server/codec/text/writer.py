"""Writes infer answers as JSON in pieces, so that no answer is held as text as a whole."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from server.codec.datatypes import datatype
from server.codec.messages import ModelAnswer, Output
from server.codec.text.arrays import SHORT
from server.errors import InvalidRequestError

#: The longest piece of text.
PIECE_BYTES = 128 << 10
# Whatever the dtype, so many numbers stay below that: none takes more than 25 bytes and a comma.
_NUMBERS = 4096
_CHARACTERS = 16 << 10


def write_text(answer: ModelAnswer, raw_sizes: Mapping[str, int]) -> Iterator[bytes]:
    """Return the pieces of ``answer`` as JSON; of outputs in ``raw_sizes`` only their fields and size.

    Each is at most PIECE_BYTES long and takes about a millisecond; a small response is one piece. All
    values that are written are finite.
    """
    if _is_small(answer, raw_sizes):
        return iter((_whole(answer, raw_sizes),))
    return _gathered(_texts(answer, raw_sizes))


def check_finite(output: Output) -> None:
    """Check that JSON can carry ``output``.

    Raises:
        InvalidRequestError: it has NaN or infinite values.
    """
    if output.array.dtype.kind != "f":
        return
    flat = output.array.ravel()
    if flat.size <= SHORT and math.isfinite(sum(flat.tolist())):
        return
    for start in range(0, flat.size, PIECE_BYTES):  # no mask as large as the array
        if not np.logical_and.reduce(np.isfinite(flat[start : start + PIECE_BYTES])):
            raise InvalidRequestError(
                f"output {output.name!r} has NaN or infinite values, which JSON cannot carry: "
                "ask for it as binary data (parameters.binary_data of the output)"
            )


def _is_small(answer: ModelAnswer, raw_sizes: Mapping[str, int]) -> bool:
    """Return whether all that becomes text is so little, and so surely, that it is made at once."""
    left = _NUMBERS
    for output in answer.outputs:
        if output.name in raw_sizes:
            continue
        left -= output.array.size
        if left < 0 or output.array.dtype.kind == "O":
            return False
    return True


def _whole(answer: ModelAnswer, raw_sizes: Mapping[str, int]) -> bytes:
    """Return a small response at once; the same bytes as its pieces."""
    outputs: list[dict[str, Any]] = []
    document = {
        "model_name": answer.model,
        "model_version": answer.version,
        "outputs": outputs,
    }
    for output in answer.outputs:
        outputs.append(_fields(output, raw_sizes))
        if output.name not in raw_sizes:
            outputs[-1]["data"] = output.array.ravel()
    if answer.id is not None:
        document["id"] = answer.id
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _fields(output: Output, raw_sizes: Mapping[str, int]) -> dict[str, Any]:
    array = output.array
    fields: dict[str, Any] = {
        "name": output.name,
        "datatype": datatype(array.dtype),
        "shape": array.shape,
    }
    if output.name in raw_sizes:
        fields["parameters"] = {"binary_data_size": raw_sizes[output.name]}
    return fields


def _texts(answer: ModelAnswer, raw_sizes: Mapping[str, int]) -> Iterator[bytes]:
    head = orjson.dumps({"model_name": answer.model, "model_version": answer.version})
    before = head[:-1] + b',"outputs":['
    for output in answer.outputs:
        fields = before + orjson.dumps(_fields(output, raw_sizes))
        before = b","
        if output.name in raw_sizes:
            yield fields
            continue
        yield fields[:-1] + b',"data":['
        yield from _values(output.array.ravel())
        yield b"]}"
    yield b"]"
    if answer.id is not None:
        yield b',"id":' + orjson.dumps(answer.id)
    yield b"}"


def _values(flat: NDArray[Any]) -> Iterator[bytes]:
    comma = b""
    for part in _strings(flat) if flat.dtype.kind == "O" else _numbers(flat):
        yield comma
        yield orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        comma = b","


def _numbers(flat: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, flat.size, _NUMBERS):
        yield flat[start : start + _NUMBERS]


def _strings(flat: NDArray[Any]) -> Iterator[list[str]]:
    part: list[str] = []
    length = 0
    for text in flat:
        part.append(text)
        length += len(text) + 1
        if length > _CHARACTERS:
            yield part
            part, length = [], 0
    if part:
        yield part


def _gathered(texts: Iterator[bytes]) -> Iterator[bytes]:
    """Join short texts and cut long ones, to PIECE_BYTES at most."""
    piece = bytearray()
    for text in texts:
        if piece and len(piece) + len(text) > PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
        start = 0
        while len(text) - start > PIECE_BYTES:
            yield text[start : start + PIECE_BYTES]
            start += PIECE_BYTES
        piece += text[start:] if start else text
    yield bytes(piece)
