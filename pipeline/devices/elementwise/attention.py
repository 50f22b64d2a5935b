"""Attention in graphs of packs, as the operator of the native library (kernels/attention_operator.c).

A pack has ONNX Runtime's MultiHeadAttention; where the library is there, a piece that is one runs ours,
which keeps scores in the cache. Whether it is one the piece itself says, and no record of the pack.
"""

import functools
import math
import struct
from typing import NamedTuple

from models.network.names import MICROSOFT, Op
from models.runtime.wire import (
    FLOAT,
    AttributeField,
    DimensionField,
    GraphField,
    ModelField,
    NodeField,
    OpsetField,
    ShapeField,
    TensorTypeField,
    TypeField,
    ValueField,
    WireError,
    contents,
    field,
    fields,
)
from pipeline.devices.interface.native import (
    ATTENTION,
    ATTENTION_KEYS,
    ATTENTION_ROWS,
    DOMAIN,
    MAX_HEAD,
)

_OPSET_VERSION = 1
# Queries, keys, values; two inputs that are left out in front of a bias.
_TOKENS, _SKIPPED, _WITH_BIAS = 3, 2, 6
# Channels of values are filled up to whole vectors.
_FILLED = 32
_FLOAT_BYTES = 4
# What malloc adds, and numbers of rows.
_OTHER_BYTES = 8 << 10

Shape = tuple[int, ...]


class Attention(NamedTuple):
    """A piece that is one attention: ``graph`` with our operator, and what each thread allocates."""

    graph: bytes
    thread_bytes: int


@functools.lru_cache(maxsize=64)
def native_attention(graph: bytes) -> Attention | None:
    """Return the piece ``graph`` with the operator of ours; None: it is no attention that ours computes."""
    if MICROSOFT.encode() not in graph or ATTENTION.encode() not in graph:
        return None
    try:
        return _native(graph)
    except (WireError, UnicodeDecodeError):
        return None


def _native(graph: bytes) -> Attention | None:
    bodies = contents(graph, ModelField.GRAPH)
    nodes = contents(bodies[0], GraphField.NODE) if len(bodies) == 1 else []
    if len(nodes) != 1 or contents(bodies[0], GraphField.INITIALIZER):
        return None
    (node,) = nodes
    shapes = dict(map(_port, contents(bodies[0], GraphField.INPUT)))
    names = [name.decode() for name in contents(node, NodeField.INPUT)]
    heads = _heads(node)
    if heads is None or len(names) not in (_TOKENS, _WITH_BIAS):
        return None
    if len(contents(node, NodeField.OUTPUT)) != 1 or any(names[_TOKENS : _TOKENS + _SKIPPED]):
        return None
    inputs = [shapes.get(name, ()) for name in names if name]
    if not _fit(inputs, heads):
        return None
    query_head, value_head = inputs[0][2] // heads, -(-inputs[2][2] // heads // _FILLED) * _FILLED
    counts = (ATTENTION_ROWS + ATTENTION_KEYS) * (query_head + value_head)
    return Attention(_renamed(graph), _FLOAT_BYTES * counts + _OTHER_BYTES)


def _fit(shapes: list[Shape], heads: int) -> bool:
    """Return whether tensors are those of an attention of ``heads``, none of which is too large."""
    tokens, bias = shapes[:_TOKENS], shapes[_TOKENS:]
    if any(len(shape) != _TOKENS or shape[2] % heads for shape in tokens):
        return False
    queries, keys, values = tokens
    return (
        all(0 < shape[2] // heads <= MAX_HEAD for shape in tokens)
        and queries[0] == keys[0] == values[0]
        and queries[2] == keys[2]
        and keys[1] == values[1]
        and all(math.prod(shape) > 0 for shape in tokens)
        and all(
            len(shape) == 4
            and shape[0] in (1, queries[0])
            and shape[1] in (1, heads)
            and shape[2:] == (queries[1], keys[1])
            for shape in bias
        )
    )


def _heads(node: bytes) -> int | None:
    """Return how many heads a node has; None: it is no attention, or says what ours does not do."""
    operator = b"".join(contents(node, NodeField.OP_TYPE)).decode()
    domain = b"".join(contents(node, NodeField.DOMAIN)).decode()
    if f"{domain}.{operator}" != Op.MultiHeadAttention:
        return None
    counts = dict(map(_attribute, contents(node, NodeField.ATTRIBUTE)))
    heads, scale = int(counts.pop("num_heads", 0)), counts.pop("scale", 0.0)
    counts.pop("mask_filter_value", 0)  # of a mask that ours does not read
    # With a scale of zero ONNX Runtime takes another one.
    return heads if heads and scale and not any(counts.values()) else None


def _attribute(attribute: bytes) -> tuple[str, float]:
    """Return name and number of an attribute; NaN: it is no number."""
    value = math.nan
    for item in fields(attribute):
        if item.number == AttributeField.I:
            value = item.value
        elif item.number == AttributeField.F:
            (value,) = struct.unpack("<f", item.whole[-_FLOAT_BYTES:])
    return b"".join(contents(attribute, AttributeField.NAME)).decode(), value


def _port(port: bytes) -> tuple[str, Shape]:
    """Return name and shape of a port; (): it is not of floats, or of no known shape."""
    name = b"".join(contents(port, ValueField.NAME)).decode()
    lengths: list[int] = []
    for kind in contents(port, ValueField.TYPE):
        for tensor in contents(kind, TypeField.TENSOR_TYPE):
            types = [
                item.value for item in fields(tensor) if item.number == TensorTypeField.ELEM_TYPE
            ]
            if types != [FLOAT]:
                return name, ()
            for shape in contents(tensor, TensorTypeField.SHAPE):
                for axis in contents(shape, ShapeField.DIM):
                    lengths_of_axis = [
                        item.value
                        for item in fields(axis)
                        if item.number == DimensionField.DIM_VALUE
                    ]
                    lengths += lengths_of_axis or [0]
    return name, tuple(lengths)


def _renamed(graph: bytes) -> bytes:
    """Return ``graph`` with its node, and the version of operators that this has, in our domain."""
    messages = []
    for item in fields(graph):
        if item.number == ModelField.GRAPH:
            messages.append(field(ModelField.GRAPH, _in_our_domain(item.data)))
        elif item.number != ModelField.OPSET_IMPORT or MICROSOFT.encode() not in item.data:
            messages.append(item.whole)
    version = field(OpsetField.DOMAIN, DOMAIN) + field(OpsetField.VERSION, _OPSET_VERSION)
    return b"".join((*messages, field(ModelField.OPSET_IMPORT, version)))


def _in_our_domain(body: bytes) -> bytes:
    return b"".join(
        field(GraphField.NODE, _with_domain(item.data))
        if item.number == GraphField.NODE
        else item.whole
        for item in fields(body)
    )


def _with_domain(node: bytes) -> bytes:
    rest = (item.whole for item in fields(node) if item.number != NodeField.DOMAIN)
    return b"".join((*rest, field(NodeField.DOMAIN, DOMAIN)))
