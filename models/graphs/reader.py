"""An ONNX message becomes a graph of records; large constants stay in their files, mapped."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from models.graphs.file import reference
from models.graphs.graph import UNKNOWN_WORD, DynamicValue, EmptyList, Graph, TypeName
from models.graphs.ranges import mapped
from models.network.fields import DTYPES, STRINGS, UNKNOWN, Array
from models.network.names import domain_of, named
from models.network.node import Node

# The field of an attribute that its type says.
_FIELDS: Mapping[int, str] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
}
_MESSAGES = {"t", "g", "tp"}
_ABOUT_IT = {"name", "type", "doc_string"}


class UnreadableError(ValueError):
    """A message says what no record can hold, so that nothing could check it later; the text says what."""


def graph_of(model: onnx.ModelProto, folder: Path = Path()) -> Graph:
    """Return the graph of ``model``, which has no functions; ``folder``: where its files lie.

    Nothing is known of its values but what its inputs and outputs say.

    Raises:
        UnreadableError: an attribute, an operator or a type is not what ONNX has.
    """
    opsets = {domain_of(item.domain): item.version for item in model.opset_import}
    return _Reader(opsets, model.ir_version, folder).graph(model.graph)


def graph_from(data: bytes) -> Graph:
    """Return the graph of a serialised model that has all its constants inside."""
    return graph_of(onnx.ModelProto.FromString(data))


def graph_at(path: Path) -> Graph:
    """Return the graph in ``path``, a file that this program wrote; its weights lie next to it."""
    return graph_of(onnx.load(path, load_external_data=False), path.parent)


def shapes_at(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes that ONNX infers of values in such a file; lengths may be ``UNKNOWN``."""
    model = onnx.load(path, load_external_data=False)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    return {
        value.name: _lengths(value.type.tensor_type)
        for value in (*inferred.input, *inferred.output, *inferred.value_info)
        if value.type.tensor_type.HasField("shape")
    }


@dataclass(frozen=True)
class _Reader:
    """Reads messages of a model; bodies have its versions."""

    opsets: Mapping[str, int]
    ir_version: int
    folder: Path

    def graph(self, graph: onnx.GraphProto) -> Graph:
        ports = {port.name: _typed(port) for port in (*graph.output, *graph.input)}
        return Graph(
            nodes=tuple(map(self.node, graph.node)),
            values={name: item for name, item in ports.items() if isinstance(item, Array)},
            constants={
                tensor.name: constant_of(tensor, self.folder) for tensor in graph.initializer
            },
            inputs=tuple(port.name for port in graph.input),
            outputs=tuple(port.name for port in graph.output),
            opsets=self.opsets,
            dynamic={name: item for name, item in ports.items() if isinstance(item, DynamicValue)},
            ir_version=self.ir_version,
        )

    def node(self, node: onnx.NodeProto) -> Node:
        if "." in node.op_type:
            raise UnreadableError(f"node {node.name!r}: no operator is called {node.op_type!r}")
        count = max((index + 1 for index, name in enumerate(node.output) if name), default=0)
        attributes = {item.name: self.value(node, item) for item in node.attribute}
        if len(attributes) < len(node.attribute):
            raise UnreadableError(f"node {node.name!r}: two attributes have one name")
        return Node(
            named(node.domain, node.op_type),
            tuple(node.input),
            tuple(node.output[:count]),
            attributes,
            self.opsets.get(domain_of(node.domain), 1),
            node.name,
        )

    def value(self, node: onnx.NodeProto, item: AttributeProto) -> Any:
        _check_attribute(node, item)
        value: Any
        match item.type:
            case AttributeProto.GRAPH:
                value = self.graph(item.g)
            case AttributeProto.TENSOR:
                value = constant_of(item.t, self.folder)
            case AttributeProto.TENSORS:
                value = tuple(constant_of(tensor, self.folder) for tensor in item.tensors)
            case AttributeProto.TYPE_PROTO:
                value = TypeName(_type_name(item.tp))
            case AttributeProto.STRING:
                value = _text(item.s)
            case AttributeProto.STRINGS:
                value = list(map(_text, item.strings)) or EmptyList("strings")
            case AttributeProto.FLOATS:
                value = list(item.floats) or EmptyList("floats")
            case AttributeProto.INTS:
                value = list(item.ints) or EmptyList("ints")
            case _:
                value = helper.get_attribute_value(item)
        return value


def _check_attribute(node: onnx.NodeProto, item: AttributeProto) -> None:
    """Check that ``item`` has what its type says, and nothing else; default values may be left out."""
    fields = {field.name for field, _ in item.ListFields()} - _ABOUT_IT
    expected = _FIELDS.get(item.type)
    if expected is None or fields - {expected} or (expected in _MESSAGES and not fields):
        kind = AttributeProto.AttributeType.Name(item.type)
        raise UnreadableError(
            f"node {node.name!r}: attribute {item.name!r} of type {kind} has "
            f"{', '.join(sorted(fields)) or 'no value'}"
        )


def constant_of(tensor: TensorProto, folder: Path = Path()) -> NDArray[Any]:
    """Return what ``tensor`` holds; what lies in a file, in ``folder`` or anywhere, is mapped."""
    if tensor.data_type == TensorProto.STRING:
        texts = np.empty(len(tensor.string_data), np.object_)
        texts[:] = list(tensor.string_data)
        return texts.reshape(tuple(tensor.dims))
    location = reference(tensor)
    if location is None:
        return np.asarray(numpy_helper.to_array(tensor))
    location = replace(location, path=folder / location.path)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if location.length != dtype.itemsize * math.prod(tensor.dims):
        # Several elements share a byte: NumPy has no array of such.
        data = mapped(location, np.uint8, (location.length,)).tobytes()
        inside = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=data)
        return np.asarray(numpy_helper.to_array(inside))
    return mapped(location, dtype, tensor.dims)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


# Types of values, in ONNX's words: "tensor(float)", "seq(tensor(float))".


def _typed(port: onnx.ValueInfoProto) -> Array | DynamicValue:
    """Return what ``port`` says of its type and shape."""
    name = _type_name(port.type)
    tensor = port.type.tensor_type
    if not port.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return DynamicValue(f"value {port.name!r} has type {name or 'unknown'}", None, name)
    dims = _lengths(tensor)
    dtype = dtype_of(tensor.elem_type)
    if dtype is None:
        return DynamicValue(f"value {port.name!r} has type {name}", None, name)
    array = Array(dtype=dtype, shape=dims)
    if array.is_loose:
        return DynamicValue(f"value {port.name!r} has no known size", array, name)
    return array


def _lengths(tensor: onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor) -> tuple[int, ...]:
    """Return the lengths of dimensions; some exporters write a negative one that is not known."""
    return tuple(
        max(dim.dim_value, UNKNOWN) if dim.HasField("dim_value") else UNKNOWN
        for dim in tensor.shape.dim
    )


def dtype_of(kind: int) -> str | None:
    """Return the element type ``kind``, of TensorProto, as arrays call it; None: they have none."""
    if kind == TensorProto.STRING:
        return STRINGS
    try:
        name = np.dtype(helper.tensor_dtype_to_np_dtype(kind)).name
    except (KeyError, ValueError, TypeError):
        return None
    return name if name in DTYPES else None


def _type_name(kind: onnx.TypeProto) -> str:
    if kind.HasField("sequence_type"):
        return f"seq({_type_name(kind.sequence_type.elem_type)})"
    if kind.HasField("optional_type"):
        return f"optional({_type_name(kind.optional_type.elem_type)})"
    if kind.HasField("map_type"):
        key, value = kind.map_type.key_type, kind.map_type.value_type
        return f"map({element_of(key)},{_type_name(value)})"
    if kind.HasField("tensor_type"):
        tensor = kind.tensor_type
        return f"tensor({element_of(tensor.elem_type)}){_dims(tensor)}"
    if kind.HasField("sparse_tensor_type"):
        sparse = kind.sparse_tensor_type
        return f"sparse_tensor({element_of(sparse.elem_type)}){_dims(sparse)}"
    return ""


def _dims(kind: onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor) -> str:
    if not kind.HasField("shape"):
        return ""
    lengths = _lengths(kind)
    return f"[{','.join(UNKNOWN_WORD if dim == UNKNOWN else str(dim) for dim in lengths)}]"


def element_of(kind: int) -> str:
    """Return the element type ``kind``, of TensorProto, in ONNX's word; "": it is not given."""
    if kind not in TensorProto.DataType.values():
        raise UnreadableError(f"no element type has the number {kind}")
    return str(TensorProto.DataType.Name(kind).lower()) if kind else ""
