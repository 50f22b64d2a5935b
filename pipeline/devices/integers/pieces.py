"""Nodes of serialised pieces, read without the ONNX library, which a serving process does not load.

What quantised layers have: numbers, lists of integers, and tensors. Everything else is None.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.runtime.onnx_fields import (
    AttributeField,
    GraphField,
    ModelField,
    NodeField,
    TensorField,
    ValueField,
)
from models.runtime.wire import WireError, contents, fields

_FLOAT_BYTES = 4

# Of ONNX: element types that quantised layers have.
_DTYPES = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8"}

Attribute = float | int | str | tuple[int, ...] | None


class PieceError(Exception):
    """These bytes are no piece."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node by names of values."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    domain: str = ""

    def number(self, name: str, default: float) -> float:
        """Return attribute ``name``, NaN where it is no number."""
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, int | float) else float("nan")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece's nodes in order, the names of its ports, and its constants."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: dict[str, NDArray[Any]] = field(default_factory=dict)


def read_graph(graph: bytes) -> Piece:
    """Return what is in a serialised piece.

    Raises:
        PieceError: these bytes are none.
    """
    try:
        return _read(graph)
    except WireError as exc:
        raise PieceError(str(exc)) from exc


def _read(graph: bytes) -> Piece:
    body = b"".join(contents(graph, ModelField.GRAPH))
    inputs = tuple(_name(data) for data in contents(body, GraphField.INPUT))
    outputs = tuple(_name(data) for data in contents(body, GraphField.OUTPUT))
    tensors = dict(map(_constant, contents(body, GraphField.INITIALIZER)))
    for name in (*inputs, *outputs):  # what is bound counts, not what an input would be without
        tensors.pop(name, None)
    return Piece(
        tuple(_node(data) for data in contents(body, GraphField.NODE)),
        inputs,
        outputs,
        {name: array for name, array in tensors.items() if array is not None},
    )


def _node(data: bytes) -> Node:
    texts: dict[int, list[str]] = {}
    attributes: dict[str, Attribute] = {}
    for item in fields(data):
        if item.number == NodeField.ATTRIBUTE:
            attributes.update([_attribute(item.data)])
        else:
            texts.setdefault(item.number, []).append(item.text)
    return Node(
        "".join(texts.get(NodeField.OP_TYPE, ())),
        tuple(texts.get(NodeField.INPUT, ())),
        tuple(texts.get(NodeField.OUTPUT, ())),
        attributes,
        "".join(texts.get(NodeField.DOMAIN, ())),
    )


def _attribute(data: bytes) -> tuple[str, Attribute]:
    name = ""
    value: Attribute = None
    listed: list[int] = []
    for item in fields(data):
        if item.number == AttributeField.NAME:
            name = item.text
        elif item.number == AttributeField.INTS:
            listed += item.numbers
        elif item.number == AttributeField.F:
            value = _float(item.data)
        elif item.number == AttributeField.I:
            value = item.value
        elif item.number == AttributeField.S:
            value = item.text
    return name, tuple(listed) if listed else value


def _constant(data: bytes) -> tuple[str, NDArray[Any] | None]:
    """Return a tensor's name and itself; None: of a type or form that is not read here."""
    name, values, kind = "", b"", 0
    shape: list[int] = []
    for item in fields(data):
        if item.number == TensorField.NAME:
            name = item.text
        elif item.number in (TensorField.RAW_DATA, TensorField.FLOAT_DATA):
            values = item.data
        elif item.number == TensorField.DATA_TYPE:
            kind = item.value
        elif item.number == TensorField.DIMS:
            shape += item.numbers
    dtype = np.dtype(_DTYPES.get(kind, "V1"))
    if kind not in _DTYPES or math.prod(shape) * dtype.itemsize != len(values) or not values:
        return name, None
    return name, np.frombuffer(values, dtype).reshape(shape)


def _float(data: bytes) -> float:
    if len(data) != _FLOAT_BYTES:
        raise PieceError(f"a number of {len(data)} bytes")
    return float(np.frombuffer(data, "<f4")[0])


def _name(data: bytes) -> str:
    return next((item.text for item in fields(data) if item.number == ValueField.NAME), "")
