"""Writes infer answers as JSON in pieces, so that no answer is held as text as a whole."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from models.packs.manifest import STRINGS
from server.codec.datatypes import DATATYPES
from server.codec.fields import RequestedOutput
from server.errors import NotFiniteError

#: The longest piece of text.
PIECE_BYTES = 128 << 10
# Whatever the dtype, so many numbers stay below that: none takes more than 25 bytes and a comma.
_NUMBERS = 4096
_CHARACTERS = 16 << 10
# By dtype: its name takes NumPy as long as writing a small array.
_DATATYPES = {
    np.dtype(object if name == STRINGS else name): kind for kind, name in DATATYPES.items()
}


def write_response(
    model: str,
    version: str,
    identity: str | None,
    outputs: Mapping[str, NDArray[Any]],
    wanted: Sequence[RequestedOutput] | None,
) -> Iterator[bytes]:
    """Return the pieces of an infer response: outputs that are ``wanted``, in that order, or all.

    Each is at most PIECE_BYTES long and takes about a millisecond; a small response is one piece.

    Raises:
        NotFiniteError: an output has NaN or infinite values. Raised here, before the first piece.
    """
    names = [output.name for output in wanted] if wanted else list(outputs)
    for name in names:
        _check_finite(name, outputs[name])
    chosen = {name: outputs[name] for name in names}
    if sum(array.size for array in chosen.values()) <= _NUMBERS and not _has_strings(chosen):
        return iter((_whole(model, version, identity, chosen),))
    return _gathered(_texts(model, version, identity, chosen))


def _check_finite(name: str, array: NDArray[Any]) -> None:
    if array.dtype.kind != "f":
        return
    flat = array.ravel()
    step = PIECE_BYTES  # no mask as large as the array
    if not all(np.isfinite(flat[i : i + step]).all() for i in range(0, flat.size, step)):
        raise NotFiniteError(f"output {name!r} has NaN or infinite values; JSON cannot carry them")


def _has_strings(outputs: Mapping[str, NDArray[Any]]) -> bool:
    return any(array.dtype.kind == "O" for array in outputs.values())


def _whole(
    model: str, version: str, identity: str | None, outputs: Mapping[str, NDArray[Any]]
) -> bytes:
    """Return a small response at once; the same bytes as its pieces."""
    document: dict[str, Any] = {
        "model_name": model,
        "model_version": version,
        "outputs": [
            {**_fields(name, array), "data": array.ravel()} for name, array in outputs.items()
        ],
    }
    if identity is not None:
        document["id"] = identity
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _fields(name: str, array: NDArray[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": _DATATYPES[array.dtype], "shape": array.shape}


def _texts(
    model: str, version: str, identity: str | None, outputs: Mapping[str, NDArray[Any]]
) -> Iterator[bytes]:
    head = orjson.dumps({"model_name": model, "model_version": version})
    before = head[:-1] + b',"outputs":['
    for name, array in outputs.items():
        yield before + orjson.dumps(_fields(name, array))[:-1] + b',"data":['
        yield from _values(array.ravel())
        before = b"]},"
    if not outputs:
        yield before
    yield b"]}" * bool(outputs) + b"]"
    if identity is not None:
        yield b',"id":' + orjson.dumps(identity)
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
