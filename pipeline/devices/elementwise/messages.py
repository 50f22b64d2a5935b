"""ONNX's messages as bytes, written without the ONNX library, which a serving process does not load."""

from collections.abc import Sequence

from models.runtime.wire import (
    FLOAT,
    TYPE_INTS,
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
    field,
    packed,
)

#: Of the format of ONNX's files.
_VERSION = 8

#: A tensor of floats: its name and the length of each axis.
Port = tuple[str, tuple[int, ...]]


def node(
    operator: str,
    domain: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    **attributes: Sequence[int],
) -> bytes:
    """Return a node, a message of its own, whose ``attributes`` are lists of integers."""
    return b"".join(
        (
            *(field(NodeField.INPUT, name) for name in inputs),
            *(field(NodeField.OUTPUT, name) for name in outputs),
            field(NodeField.OP_TYPE, operator),
            *(
                field(NodeField.ATTRIBUTE, _integers(name, held))
                for name, held in attributes.items()
            ),
            field(NodeField.DOMAIN, domain),
        )
    )


def model(
    nodes: Sequence[bytes],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    domains: Sequence[tuple[str, int]],
) -> bytes:
    """Return a model of ``nodes``, with the versions of the ``domains`` that they are from."""
    graph = (
        *(field(GraphField.NODE, each) for each in nodes),
        field(GraphField.NAME, "g"),
        *(field(GraphField.INPUT, _port(each)) for each in inputs),
        *(field(GraphField.OUTPUT, _port(each)) for each in outputs),
    )
    imports = (
        field(
            ModelField.OPSET_IMPORT,
            field(OpsetField.DOMAIN, domain) + field(OpsetField.VERSION, version),
        )
        for domain, version in domains
    )
    return b"".join(
        (field(ModelField.IR_VERSION, _VERSION), field(ModelField.GRAPH, b"".join(graph)), *imports)
    )


def _integers(name: str, numbers: Sequence[int]) -> bytes:
    return (
        field(AttributeField.NAME, name)
        + packed(AttributeField.INTS, numbers)
        + field(AttributeField.TYPE, TYPE_INTS)
    )


def _port(port: Port) -> bytes:
    name, lengths = port
    axes = (field(DimensionField.DIM_VALUE, length) for length in lengths)
    shape = b"".join(field(ShapeField.DIM, axis) for axis in axes)
    tensor = field(TensorTypeField.ELEM_TYPE, FLOAT) + field(TensorTypeField.SHAPE, shape)
    return field(ValueField.NAME, name) + field(
        ValueField.TYPE, field(TypeField.TENSOR_TYPE, tensor)
    )
