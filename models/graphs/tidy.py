"""Spellings that ONNX Runtime takes and the ONNX standard does not: made standard before they are checked.

A model without them is left as it is. And two things that are spelled in one way from here on: Constant
nodes are initializers, one form of weight to count, map and stream; versions newer than ONNX Runtime
supports are lowered where nothing in the model is newer, since onnx marks what it writes with its newest
versions.
"""

import math
from collections.abc import Iterable, MutableSequence
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

from models.errors import OnnxError
from models.graphs.nodes import (
    all_graphs,
    made,
    name_nodes,
    new_node,
    reads,
    replace_nodes,
)
from models.graphs.order import fresh, stable_order
from models.network.names import Op, domain_of, op_of
from models.runtime.kernels import NEWEST_IR, NEWEST_OPSET, WITHOUT_KERNEL

# A sparse weight becomes a dense one inside a protobuf message, which cannot exceed 2 GiB.
_MAX_DENSE_BYTES = 1 << 30

Nodes = MutableSequence[onnx.NodeProto]
# IR version 14 added two element types, which ONNX Runtime refuses by name, and nothing else.
_KNOWN_IR = 14
_TYPES = {
    ("value_float", AttributeProto.FLOAT): np.float32,
    ("value_floats", AttributeProto.FLOATS): np.float32,
    ("value_int", AttributeProto.INT): np.int64,
    ("value_ints", AttributeProto.INTS): np.int64,
}


def tidy(path: Path, model: onnx.ModelProto) -> None:
    """Name graphs and nodes, sort these, spell operator sets one way, make sparse weights dense.

    Args:
        path: the file, for messages.
        model: its tensors were checked (models/graphs/file.py), sparse ones as values and indices.

    Raises:
        OnnxError: a sparse weight is impossible, or too large as a dense one.
    """
    _spell_domains(model)
    for graph in all_graphs(model.graph):
        graph.name = graph.name or "graph"
        _keep_first(graph)
        _sort(graph.node)
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(path, sparse))
        del graph.sparse_initializer[:]
        _replace_sparse_constants(path, graph.node)
    name_nodes(model)


def _spell_domains(model: onnx.ModelProto) -> None:
    """Call ONNX's own operators "", not "ai.onnx"."""
    for node in (node for graph in all_graphs(model.graph) for node in graph.node):
        if node.domain == "ai.onnx":
            node.domain = ""
    by_domain: dict[str, onnx.OperatorSetIdProto] = {}
    for item in model.opset_import:
        item.domain = domain_of(item.domain)
        by_domain.setdefault(item.domain, item)
    kept = list(by_domain.values())
    if len(kept) < len(model.opset_import):
        del model.opset_import[:]
        model.opset_import.extend(kept)


def _keep_first(graph: onnx.GraphProto) -> None:
    """Of weights with the same name keep the first, as ONNX Runtime does."""
    first: dict[str, TensorProto] = {}
    for tensor in graph.initializer:
        first.setdefault(tensor.name, tensor)
    if len(first) < len(graph.initializer):
        kept = list(first.values())
        del graph.initializer[:]
        graph.initializer.extend(kept)


def _sort(nodes: Nodes) -> None:
    """Put each node behind those that it reads from; nodes in a circle stay for the checker."""
    makers = {name: index for index, node in enumerate(nodes) for name in made(node)}
    needs = {
        index: {makers[name] for name in reads(node) if name in makers}
        for index, node in enumerate(nodes)
    }
    if all(max(needed, default=-1) < index for index, needed in needs.items()):
        return
    order = stable_order(needs)
    if len(order) == len(nodes):
        ordered = [nodes[index] for index in order]
        del nodes[:]
        nodes.extend(ordered)


def _replace_sparse_constants(path: Path, nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for item in node.attribute:
            if op_of(node) == Op.Constant and item.HasField("sparse_tensor"):
                tensor = _dense(path, item.sparse_tensor)
                item.CopyFrom(helper.make_attribute("value", tensor))


def _dense(path: Path, sparse: onnx.SparseTensorProto) -> TensorProto:
    """Return ``sparse`` as a dense tensor of the same name, dims and data type."""
    where = f"{path}: sparse tensor {sparse.values.name!r}"
    dims = tuple(sparse.dims)
    if sparse.values.data_type == TensorProto.STRING:
        raise OnnxError(f"{where}: has strings")
    if any(dim < 0 for dim in dims):
        raise OnnxError(f"{where}: negative dimension in {list(dims)}")
    values = numpy_helper.to_array(sparse.values)
    n_bytes = math.prod(dims) * values.dtype.itemsize
    if n_bytes > _MAX_DENSE_BYTES:
        raise OnnxError(f"{where}: {list(dims)} has {n_bytes} bytes, at most 1 GiB is supported")
    dense = np.zeros(math.prod(dims), values.dtype)
    dense[_places(where, sparse, values.shape)] = values
    return numpy_helper.from_array(dense.reshape(dims), sparse.values.name)


def _places(
    where: str, sparse: onnx.SparseTensorProto, shape: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return where the values of ``sparse``, of shape ``shape``, lie in the flat dense tensor, int64."""
    dims = tuple(sparse.dims)
    if sparse.indices.data_type != TensorProto.INT64:
        raise OnnxError(f"{where}: its indices are not int64")
    indices = np.asarray(numpy_helper.to_array(sparse.indices), np.int64)
    by_axis = indices.ndim == 2
    limits = np.array(dims if by_axis else [math.prod(dims)], np.int64)
    rows = indices if by_axis else indices.reshape(-1, 1)
    if len(shape) != 1 or indices.ndim not in (1, 2) or rows.shape != (shape[0], len(limits)):
        raise OnnxError(
            f"{where}: indices {list(indices.shape)} do not fit values {list(shape)} "
            f"and dimensions {list(dims)}"
        )
    if ((rows < 0) | (rows >= limits)).any():
        raise OnnxError(f"{where}: an index lies outside of {list(dims)}")
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))] if by_axis else [1]
    return rows @ np.array(strides, np.int64)


def lower_versions(model: onnx.ModelProto) -> None:
    """Lower IR version and operator set of ``model``, if every operator means the same in both."""
    if NEWEST_IR < model.ir_version <= _KNOWN_IR:
        model.ir_version = NEWEST_IR
    own = [node for graph in all_graphs(model.graph) for node in graph.node if not node.domain]
    for item in model.opset_import:
        if item.domain or item.version > defs.onnx_opset_version():
            continue
        limits = [
            WITHOUT_KERNEL[node.op_type] - 1
            for node in own
            if item.version >= WITHOUT_KERNEL.get(node.op_type, math.inf)
        ]
        version = min([NEWEST_OPSET, *limits])
        # Kernels for more element types are worth more than a lower number, unless one is missing.
        is_same = _means_the_same if limits else _is_the_same
        if version < item.version and all(is_same(node, version, item.version) for node in own):
            item.version = version


def _is_the_same(node: onnx.NodeProto, *versions: int) -> bool:
    """Return whether ONNX has one operator of ``node`` for all ``versions``."""
    return len({schema.since_version for schema in _schemas(node, versions)}) == 1


def _means_the_same(node: onnx.NodeProto, *versions: int) -> bool:
    """Return whether all ``versions`` have what ``node`` says, with other element types at most."""
    schemas = _schemas(node, versions)
    attributes = [{*schema.attributes} for schema in schemas]
    shared = attributes[0].intersection(*attributes) if attributes else set()
    signatures = [
        (
            [(item.name, item.option, item.type_str) for item in schema.inputs[: len(node.input)]],
            [(item.name, item.type_str) for item in schema.outputs[: len(node.output)]],
            [
                (name, schema.attributes[name].default_value.SerializeToString())
                for name in sorted(shared)
            ],
        )
        for schema in schemas
    ]
    # What a version adds has a default with which it is as it was.
    is_old = {item.name for item in node.attribute} <= shared
    return bool(signatures) and is_old and all(other == signatures[0] for other in signatures)


def _schemas(node: onnx.NodeProto, versions: Iterable[int]) -> list[defs.OpSchema]:
    """Return the schemas of ``node`` in ``versions``; nothing where it is not in all of them."""
    try:
        return [defs.get_schema(node.op_type, version) for version in versions]
    except defs.SchemaError:
        return []


def lift_constants(model: onnx.ModelProto) -> None:
    """Make the tensors of Constant nodes initializers of their graphs.

    In bodies, too: ONNX Runtime saves a Constant of a body inside a body twice, and then refuses what it
    saved.
    """
    for graph in reversed(
        list(all_graphs(model.graph))
    ):  # nodes, and bodies in them, become copies
        _lift(graph, returns=graph is not model.graph)


def _lift(graph: onnx.GraphProto, returns: bool) -> None:
    """Lift the constants of ``graph``; one that it ``returns`` stays an output that a node makes."""
    taken = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    outputs = {value.name for value in graph.output} if returns else set()
    kept = []
    for node in graph.node:
        tensor = _tensor(node)
        if tensor is None or node.output[0] in taken:
            kept.append(node)
            continue
        name = node.output[0]
        tensor.name = name
        if name in outputs:
            tensor.name = fresh(f"{name}/constant", taken)
            kept.append(new_node(Op.Identity, [tensor.name], [name]))
        taken.add(tensor.name)
        graph.initializer.append(tensor)
        node.Clear()
    if len(kept) < len(graph.node) or outputs:
        replace_nodes(graph, kept)


def _tensor(node: onnx.NodeProto) -> TensorProto | None:
    """Return a copy of what a Constant node of ONNX makes, if it is numbers."""
    if op_of(node) != Op.Constant or len(node.output) != 1:
        return None
    if len(node.attribute) != 1:
        return None
    (item,) = node.attribute
    if item.name == "value" and item.HasField("t"):
        tensor = TensorProto()
        tensor.CopyFrom(item.t)
        return tensor
    dtype = _TYPES.get((item.name, item.type))  # of another type it is left to the checker
    if dtype is None:
        return None
    return numpy_helper.from_array(np.array(helper.get_attribute_value(item), dtype))
