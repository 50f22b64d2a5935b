"""A graph of records becomes an ONNX message; large constants are references to their files."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from models.graphs.file import tensor_at
from models.graphs.graph import UNKNOWN_WORD, EmptyList, Graph, ListKind, TypeName
from models.graphs.ranges import INSIDE_BYTES, FileRange, range_of
from models.network.fields import STRINGS, UNKNOWN, Array
from models.network.node import Node

_LISTS: Mapping[ListKind, AttributeProto.AttributeType] = {
    "floats": AttributeProto.FLOATS,
    "ints": AttributeProto.INTS,
    "strings": AttributeProto.STRINGS,
}
#: ONNX's words for element types, where they are not those of arrays.
_WORDS = {"float32": "float", "float64": "double", STRINGS: "string"}


#: Writes a constant by its name.
TensorWriter = Callable[[str, NDArray[Any]], TensorProto]


def model_of(
    graph: Graph,
    folder: Path | None = None,
    title: str = "graph",
    tensor: TensorWriter | None = None,
) -> onnx.ModelProto:
    """Return ``graph`` as a message, whose graph is called ``title``.

    ``tensor`` writes its constants. None: those of more than 1 KiB that are mapped stay in their files:
    those in ``folder``, where the message is to lie, by their names, others by their whole paths. All
    others are in the message.
    """
    model = onnx.ModelProto(ir_version=graph.ir_version)
    for domain, version in graph.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    if folder is not None:
        folder = folder.resolve()  # as the paths of mapped files are
    _write(graph, model.graph, title, tensor or partial(tensor_of, folder=folder))
    return model


def serialised(graph: Graph, title: str = "") -> bytes:
    """Return ``graph`` as a serialised message that has all its constants; equal ones give equal bytes."""
    model = model_of(graph, title=title, tensor=tensor_inside)
    return bytes(model.SerializeToString(deterministic=True))


def _write(graph: Graph, to: onnx.GraphProto, name: str, tensor: TensorWriter) -> None:
    to.name = name
    to.node.extend(node_of(node, tensor) for node in graph.nodes)
    to.initializer.extend(tensor(key, array) for key, array in graph.constants.items())
    for names, ports in ((graph.inputs, to.input), (graph.outputs, to.output)):
        for port in names:
            _declare(graph, port, ports.add(name=port))


def _declare(graph: Graph, name: str, port: onnx.ValueInfoProto) -> None:
    """Let ``port`` say what is known of the type of the value ``name``."""
    dynamic = graph.dynamic.get(name)
    array = graph.values.get(name) if dynamic is None else dynamic.array
    if array is not None:
        tensor = port.type.tensor_type
        tensor.elem_type = kind_of(array)
        tensor.shape.SetInParent()
        for length in array.shape:
            dim = tensor.shape.dim.add()
            if length != UNKNOWN:
                dim.dim_value = length
    elif dynamic is not None and dynamic.type_name:
        _write_type(dynamic.type_name, port.type)


def kind_of(array: Array) -> int:
    """Return the element type of ``array`` as TensorProto numbers them."""
    return _element_type(_WORDS.get(array.dtype, array.dtype))


def _element_type(element: str) -> int:
    return int(TensorProto.DataType.Value(element.upper() or "UNDEFINED"))


def _write_type(name: str, to: onnx.TypeProto) -> None:
    """Write the type that has this name in ONNX's words."""
    outer, _, inner = name.partition("(")
    if outer == "seq":
        to.sequence_type.SetInParent()
        _write_type(inner[:-1], to.sequence_type.elem_type)
    elif outer == "optional":
        to.optional_type.SetInParent()
        _write_type(inner[:-1], to.optional_type.elem_type)
    elif outer == "map":
        key, _, value = inner[:-1].partition(",")
        to.map_type.key_type = _element_type(key)
        _write_type(value, to.map_type.value_type)
    elif outer:
        element, _, dims = inner.partition(")")
        kind = to.sparse_tensor_type if outer == "sparse_tensor" else to.tensor_type
        kind.elem_type = _element_type(element)
        if dims:
            kind.shape.SetInParent()
            for length in filter(None, dims[1:-1].split(",")):
                dim = kind.shape.dim.add()
                if length != UNKNOWN_WORD:
                    dim.dim_value = int(length)


def tensor_of(name: str, array: NDArray[Any], folder: Path | None = None) -> TensorProto:
    """Return ``array`` as a tensor; mapped and large, as a reference to its file."""
    held = range_of(array) if array.nbytes > INSIDE_BYTES else None
    if held is None:
        return tensor_inside(name, array)
    return tensor_at(held, name, array, by_name=held.path.parent == folder)


def tensors_at(offsets: Mapping[str, tuple[Path, int]]) -> TensorWriter:
    """Return what writes constants as references to where they lie: files and offsets; others inside."""

    def tensor(name: str, array: NDArray[Any]) -> TensorProto:
        if name not in offsets:
            return tensor_inside(name, array)
        path, offset = offsets[name]
        return tensor_at(FileRange(path, offset, array.nbytes), name, array)

    return tensor


def tensor_inside(name: str, array: NDArray[Any]) -> TensorProto:
    """Return ``array`` as a tensor that has its numbers."""
    return numpy_helper.from_array(np.array(array), name)


def word_of(array: NDArray[Any]) -> str:
    """Return what ONNX calls the element type of ``array``."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return str(TensorProto.DataType.Name(kind).lower())


def constant_offsets(data: bytes) -> list[int]:
    """Return where the numbers of each constant begin in ``data``, a model that has them inside."""
    offsets = []
    for tensor in onnx.ModelProto.FromString(data).graph.initializer:
        message = tensor.SerializeToString(deterministic=True)
        # Its name is its own, and its numbers are its last field.
        offsets.append(data.index(message) + len(message) - len(tensor.raw_data))
    return offsets


def node_of(node: Node, tensor: TensorWriter = tensor_of) -> onnx.NodeProto:
    """Return ``node`` as a message; ``tensor`` writes the constants of its graphs."""
    message = onnx.NodeProto(
        op_type=node.op_type,
        input=node.inputs,
        output=node.outputs,
        name=node.name or None,
        domain=node.domain or None,
    )
    message.attribute.extend(_attributes(node, tensor))
    return message


def _attributes(node: Node, tensor: TensorWriter) -> Iterator[AttributeProto]:
    for name, value in node.attributes.items():
        item = AttributeProto(name=name)
        if isinstance(value, Graph):
            item.type = AttributeProto.GRAPH
            _write(value, item.g, name, tensor)
        elif isinstance(value, EmptyList):
            item.type = _LISTS[value.kind]
        elif isinstance(value, TypeName):
            item.type = AttributeProto.TYPE_PROTO
            _write_type(value, item.tp)
        elif isinstance(value, np.ndarray):
            item.type = AttributeProto.TENSOR
            item.t.CopyFrom(tensor_inside("", value))
        elif _is_arrays(value):
            item.type = AttributeProto.TENSORS
            item.tensors.extend(tensor_inside("", array) for array in value)
        else:
            item = _numbers_or_texts(name, value)
        yield item


def _numbers_or_texts(name: str, value: Any) -> AttributeProto:
    """Return an attribute; the usual ones without the checks of ``make_attribute``, which take longer."""
    match value:
        case int():
            return AttributeProto(name=name, type=AttributeProto.INT, i=value)
        case str():
            return AttributeProto(name=name, type=AttributeProto.STRING, s=value.encode())
        case [int(), *_] if all(type(item) is int for item in value):
            return AttributeProto(name=name, type=AttributeProto.INTS, ints=value)
    return helper.make_attribute(name, value)


def _is_arrays(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(array, np.ndarray) for array in value)
