"""Protobuf's wire format, as far as ONNX uses it: a serving process does not load the ONNX library."""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from mmap import mmap
from typing import NamedTuple

# Numbers of the fields of ONNX's messages (onnx.proto) that a serving process reads or writes as bytes.


class ModelField(IntEnum):
    """ModelProto."""

    IR_VERSION = 1
    GRAPH = 7
    OPSET_IMPORT = 8


class OpsetField(IntEnum):
    """OperatorSetIdProto."""

    DOMAIN = 1
    VERSION = 2


class GraphField(IntEnum):
    """GraphProto."""

    NODE = 1
    NAME = 2
    INITIALIZER = 5
    INPUT = 11
    OUTPUT = 12


class NodeField(IntEnum):
    """NodeProto."""

    INPUT = 1
    OUTPUT = 2
    NAME = 3
    OP_TYPE = 4
    ATTRIBUTE = 5
    DOMAIN = 7


class AttributeField(IntEnum):
    """AttributeProto: ``INTS`` holds many numbers."""

    NAME = 1
    F = 2
    I = 3  # noqa: E741  as ONNX calls it
    INTS = 8
    TYPE = 20


class TensorField(IntEnum):
    """TensorProto: a weight or constant."""

    NAME = 8


class ValueField(IntEnum):
    """ValueInfoProto: a port."""

    NAME = 1
    TYPE = 2


class TypeField(IntEnum):
    """TypeProto."""

    TENSOR_TYPE = 1


class TensorTypeField(IntEnum):
    """TypeProto.Tensor."""

    ELEM_TYPE = 1
    SHAPE = 2


class ShapeField(IntEnum):
    """TensorShapeProto."""

    DIM = 1


class DimensionField(IntEnum):
    """TensorShapeProto.Dimension."""

    DIM_VALUE = 1


#: AttributeProto.INTS as a type, and TensorProto.FLOAT.
TYPE_INTS, FLOAT = 7, 1


# Messages read and written field by field.

_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
# A number has so many bits, seven to a byte.
_BITS, _LONGEST = 64, 10

Bytes = bytes | mmap


class WireError(Exception):
    """These bytes are no message."""


class WireField(NamedTuple):
    """A field of a message: a number, or the bytes ``data``. ``whole``: as it stands in the message.

    Numbers are as they are written: a negative one is 2^64 more.
    """

    number: int
    value: int
    data: bytes
    whole: bytes


class FieldPlace(NamedTuple):
    """Where field ``number`` lies in a message: [start, end), what it holds from ``content`` on."""

    number: int
    kind: int
    start: int
    content: int
    end: int

    @property
    def has_bytes(self) -> bool:
        """Whether it holds a text, a message, or packed numbers."""
        return self.kind == _BYTES


def places(data: Bytes, start: int, end: int) -> Iterator[FieldPlace]:
    """Yield where the fields of the message [start, end) of ``data`` lie.

    Raises:
        WireError: it is none.
    """
    while start < end:
        tag, content = _read_varint(data, start, end)
        number, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            length, content = _read_varint(data, content, end)
            stop = content + length
        elif kind == _VARINT:
            _, stop = _read_varint(data, content, end)
        elif kind in _FIXED:
            stop = content + _FIXED[kind]
        else:
            raise WireError(f"wire type {kind} at byte {start}")
        if stop > end or number == 0:
            raise WireError(
                f"field {number} at byte {start} does not fit: it is cut short, or damaged"
            )
        yield FieldPlace(number, kind, start, content, stop)
        start = stop


def fields(data: bytes) -> Iterator[WireField]:
    """Yield the fields of a message.

    Raises:
        WireError: it is none.
    """
    for place in places(data, 0, len(data)):
        whole = data[place.start : place.end]
        if place.kind == _VARINT:
            value, _ = _read_varint(data, place.content, place.end)
            yield WireField(place.number, value, b"", whole)
        else:
            yield WireField(place.number, 0, data[place.content : place.end], whole)


def contents(data: bytes, number: int) -> list[bytes]:
    """Return what the fields ``number`` of a message hold: texts, or messages.

    Raises:
        WireError: it is no message.
    """
    return [field.data for field in fields(data) if field.number == number]


def field(number: int, content: int | str | bytes) -> bytes:
    """Return field ``number`` that holds ``content``: a number of 64 bits, a text, or a message."""
    if isinstance(content, int):
        return varint(number << 3 | _VARINT) + varint(content)
    data = content.encode() if isinstance(content, str) else content
    return head(number, len(data)) + data


def head(number: int, length: int) -> bytes:
    """Return what stands before a text or message of ``length`` bytes in field ``number``."""
    return varint(number << 3 | _BYTES) + varint(length)


def packed(number: int, values: Iterable[int]) -> bytes:
    """Return the repeated field ``number`` that holds all ``values``."""
    return field(number, b"".join(map(varint, values)))


def varint(number: int) -> bytes:
    """Return ``number`` in base 128, least significant group first; a negative one is 2^64 more."""
    number %= 1 << _BITS
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _read_varint(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """Return a number in base 128, and where it ends."""
    if start < end and data[start] < 0x80:
        return data[start], start + 1  # nearly all are that short
    number = shift = 0
    for at in range(start, min(end, start + _LONGEST)):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number % (1 << _BITS), at + 1
    raise WireError(f"a number at byte {start} does not end")
