"""Nodes of serialised pieces, read without the ONNX library, which a serving process does not load.

Only what operators on elements have: numbers, and tensors of one element. Everything else is None.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

# Fields of ONNX's messages.
_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _OPERATOR, _ATTRIBUTE, _DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_FLOAT, _ATTRIBUTE_INTEGER, _ATTRIBUTE_STRING = 1, 2, 3, 4
_DIMENSIONS, _DATA_TYPE, _FLOATS, _TENSOR_NAME, _RAW = 1, 2, 4, 8, 9
_VALUE_NAME = 1
_FLOAT32, _FLOAT32_BYTES = 1, 4

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5

Attribute = float | int | str | None


class PieceError(Exception):
    """These bytes are no piece, or it holds tensors that are not read here."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node by names of values; ``constants``: those of its inputs that are one float each."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)
    domain: str = ""

    @property
    def values(self) -> tuple[str, ...]:
        """Its inputs that are no constants."""
        return tuple(name for name in self.inputs if name and name not in self.constants)

    def number(self, name: str, default: float) -> float:
        """Return attribute ``name``, NaN where it is no number."""
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, int | float) else float("nan")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece's nodes in order, and the names of its ports."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    value: int
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


def read_piece(graph: bytes) -> Piece:
    """Return what is in a serialised piece.

    Raises:
        PieceError: these bytes are none, or a node reads a constant that is more than one float.
    """
    (body,) = _all(graph, _GRAPH) or (b"",)
    initial = [_constant(data) for data in _all(body, _INITIALIZER)]
    constants = {name: value for name, value in initial if value is not None}
    piece = Piece(
        tuple(_node(data, constants) for data in _all(body, _NODE)),
        tuple(_name(data) for data in _all(body, _INPUT)),
        tuple(_name(data) for data in _all(body, _OUTPUT)),
    )
    known = {*piece.inputs, *(name for node in piece.nodes for name in node.outputs)}
    for name in (name for node in piece.nodes for name in node.values):
        if name not in known:
            raise PieceError(f"{name!r} is a constant that is not one float")
    return piece


def _node(data: bytes, constants: dict[str, float]) -> Node:
    texts: dict[int, list[str]] = {}
    attributes: dict[str, Attribute] = {}
    for item in _fields(data):
        if item.number == _ATTRIBUTE:
            attributes.update([_attribute(item.data)])
        else:
            texts.setdefault(item.number, []).append(item.text)
    inputs = tuple(texts.get(_NODE_INPUT, ()))
    return Node(
        "".join(texts.get(_OPERATOR, ())),
        inputs,
        tuple(texts.get(_NODE_OUTPUT, ())),
        attributes,
        {name: constants[name] for name in inputs if name in constants},
        "".join(texts.get(_DOMAIN, ())),
    )


def _attribute(data: bytes) -> tuple[str, Attribute]:
    name = ""
    value: Attribute = None
    for item in _fields(data):
        if item.number == _ATTRIBUTE_NAME:
            name = item.text
        elif item.number == _ATTRIBUTE_FLOAT:
            value = _floats(item.data)[0]
        elif item.number == _ATTRIBUTE_INTEGER:
            value = item.value
        elif item.number == _ATTRIBUTE_STRING:
            value = item.text
    return name, value


def _constant(data: bytes) -> tuple[str, float | None]:
    """Return a tensor's name and its number; None: it is no float, or not one."""
    name, values, elements, kind = "", b"", 1, 0
    for item in _fields(data):
        if item.number == _TENSOR_NAME:
            name = item.text
        elif item.number in (_RAW, _FLOATS):
            values = item.data
        elif item.number == _DATA_TYPE:
            kind = item.value
        elif item.number == _DIMENSIONS:
            for dimension in _packed(item):
                elements *= dimension
    alone = kind == _FLOAT32 and elements == 1 and len(values) == _FLOAT32_BYTES
    return name, _floats(values)[0] if alone else None


def _floats(data: bytes) -> Sequence[float]:
    if len(data) != _FLOAT32_BYTES:
        raise PieceError(f"a number of {len(data)} bytes")
    return [float(np.frombuffer(data, "<f4")[0])]


def _packed(item: _Field) -> Iterator[int]:
    """Yield the numbers of a repeated field, which may be packed."""
    if not item.data:
        yield item.value
        return
    at = 0
    while at < len(item.data):
        number, at = _varint(item.data, at)
        yield number


def _name(data: bytes) -> str:
    return next((item.text for item in _fields(data) if item.number == _VALUE_NAME), "")


def _all(data: bytes, number: int) -> list[bytes]:
    return [item.data for item in _fields(data) if item.number == number]


def _fields(data: bytes) -> Iterator[_Field]:
    """Yield the fields of a message: a number, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind, value = tag >> 3, tag & 7, 0
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield _Field(number, value, b"")
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = struct.calcsize("q" if kind == _EIGHT_BYTES else "i")
        else:
            raise PieceError(f"wire type {kind}")
        if at + length > len(data):
            raise PieceError(f"field {number} does not fit")
        yield _Field(number, 0, data[at : at + length])
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in base 128, least significant group first, and where it ends."""
    number = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise PieceError("a number does not end")
