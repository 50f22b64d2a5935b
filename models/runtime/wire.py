"""Protobuf's wire format, as far as ONNX uses it: a serving process does not load the ONNX library."""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_BITS = 64


class WireError(Exception):
    """These bytes are no message."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message: a number, or the bytes ``data``. ``whole``: as it stands in the message.

    Numbers are as they are written: a negative one is 2^64 more.
    """

    number: int
    value: int
    data: bytes
    whole: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises:
        WireError: it is none.
    """
    at = 0
    while at < len(data):
        start = at
        tag, at = _read_varint(data, at)
        number, kind, value = tag >> 3, tag & 7, 0
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield Field(number, value, b"", data[start:at])
            continue
        if kind == _BYTES:
            length, at = _read_varint(data, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = struct.calcsize("q" if kind == _EIGHT_BYTES else "i")
        else:
            raise WireError(f"wire type {kind}")
        if at + length > len(data):
            raise WireError(f"field {number} does not fit")
        content, at = data[at : at + length], at + length
        yield Field(number, 0, content, data[start:at])


def contents(data: bytes, number: int) -> list[bytes]:
    """Return what the fields ``number`` of a message hold: texts, or messages.

    Raises:
        WireError: it is no message.
    """
    return [field.data for field in fields(data) if field.number == number]


def field(number: int, content: int | str | bytes) -> bytes:
    """Return field ``number`` that holds ``content``: a number of 64 bits, a text, or a message."""
    if isinstance(content, int):
        return _varint(number << 3 | _VARINT) + _varint(content)
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def packed(number: int, values: Iterable[int]) -> bytes:
    """Return the repeated field ``number`` that holds all ``values``."""
    return field(number, b"".join(map(_varint, values)))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in base 128, least significant group first, and where it ends."""
    number = shift = 0
    while at < len(data) and shift < _BITS:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number % (1 << _BITS), at
    raise WireError("a number does not end")


def _varint(number: int) -> bytes:
    number %= 1 << _BITS
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
