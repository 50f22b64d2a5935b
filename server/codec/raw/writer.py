"""Arrays to raw bytes, in pieces."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.codec.raw import LENGTH_BYTES

#: The longest piece.
PIECE_BYTES = 64 << 10


def raw_bytes(array: NDArray[Any]) -> int:
    """Return how long ``array`` is as raw bytes."""
    if array.dtype.kind != "O":
        return array.nbytes
    return sum(LENGTH_BYTES + len(text.encode()) for text in array.flat)


def raw_pieces(array: NDArray[Any]) -> Iterator[bytes]:
    """Yield ``array`` as raw bytes, PIECE_BYTES at most at a time."""
    for part in raw_parts(array):
        for start in range(0, len(part), PIECE_BYTES):
            yield bytes(part[start : start + PIECE_BYTES])


def raw_parts(array: NDArray[Any]) -> Iterator[memoryview]:
    """Yield ``array`` as raw bytes, numbers where they lie."""
    return _strings(array) if array.dtype.kind == "O" else _numbers(array)


def _numbers(array: NDArray[Any]) -> Iterator[memoryview]:
    if array.size:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _strings(array: NDArray[Any]) -> Iterator[memoryview]:
    piece = bytearray()
    for text in array.flat:
        data = text.encode()
        piece += len(data).to_bytes(LENGTH_BYTES, "little") + data
        if len(piece) >= PIECE_BYTES:
            yield memoryview(bytes(piece))
            piece = bytearray()
    yield memoryview(bytes(piece))
