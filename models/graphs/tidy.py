"""Spellings that ONNX Runtime takes and the ONNX standard does not: made standard before they are checked.

A model without them is left as it is. And two things that are spelled in one way from here on: Constant
nodes are initializers, one form of weight to count, map and stream; versions newer than ONNX Runtime
supports are lowered where nothing in the model is newer, since onnx marks what it writes with its newest
versions.
"""

from collections.abc import Iterable, MutableSequence

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

from models.graphs.nodes import all_graphs, fresh, made, reads, replace_nodes, stable_order

Nodes = MutableSequence[onnx.NodeProto]
#: The newest of ONNX Runtime 1.31, which refuses others by their number alone.
NEWEST_IR, NEWEST_OPSET = 13, 26
# IR version 14 added two element types, which ONNX Runtime refuses by name, and nothing else.
_KNOWN_IR = 14
_TYPES = {
    ("value_float", AttributeProto.FLOAT): np.float32,
    ("value_floats", AttributeProto.FLOATS): np.float32,
    ("value_int", AttributeProto.INT): np.int64,
    ("value_ints", AttributeProto.INTS): np.int64,
}


def tidy(model: onnx.ModelProto) -> None:
    """Name the graph, sort its nodes, spell operator sets one way."""
    _spell_domains(model)
    for graph in all_graphs(model.graph):
        graph.name = graph.name or "graph"
        _keep_first(graph)
        _sort(graph.node)


def _spell_domains(model: onnx.ModelProto) -> None:
    """Call ONNX's own operators "", not "ai.onnx"."""
    nodes = [node for graph in all_graphs(model.graph) for node in graph.node]
    for function in model.functions:
        nodes.extend(function.node)
    for node in nodes:
        if node.domain == "ai.onnx":
            node.domain = ""
    owners: list[onnx.ModelProto | onnx.FunctionProto] = [model, *model.functions]
    for owner in owners:
        by_domain: dict[str, onnx.OperatorSetIdProto] = {}
        for item in owner.opset_import:
            item.domain = "" if item.domain == "ai.onnx" else item.domain
            by_domain.setdefault(item.domain, item)
        kept = list(by_domain.values())
        if len(kept) < len(owner.opset_import):
            del owner.opset_import[:]
            owner.opset_import.extend(kept)


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


def lower_versions(model: onnx.ModelProto) -> None:
    """Lower IR version and operator set of ``model``, if every operator means the same in both."""
    if NEWEST_IR < model.ir_version <= _KNOWN_IR:
        model.ir_version = NEWEST_IR
    nodes = [node for graph in all_graphs(model.graph) for node in graph.node]
    _lower_opset(model.opset_import, nodes)
    for function in model.functions:
        _lower_opset(function.opset_import, function.node)


def _lower_opset(
    imports: Iterable[onnx.OperatorSetIdProto], nodes: Iterable[onnx.NodeProto]
) -> None:
    for item in imports:
        if item.domain == "" and NEWEST_OPSET < item.version <= defs.onnx_opset_version():
            own = (node.op_type for node in nodes if node.domain == "")
            if all(_is_old(operator, item.version) for operator in own):
                item.version = NEWEST_OPSET


def _is_old(operator: str, version: int) -> bool:
    try:
        return bool(defs.get_schema(operator, version).since_version <= NEWEST_OPSET)
    except defs.SchemaError:
        return False


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
            kept.append(helper.make_node("Identity", [tensor.name], [name]))
        taken.add(tensor.name)
        graph.initializer.append(tensor)
        node.Clear()
    if len(kept) < len(graph.node) or outputs:
        replace_nodes(graph, kept)


def _tensor(node: onnx.NodeProto) -> TensorProto | None:
    """Return a copy of what a Constant node of ONNX makes, if it is numbers."""
    if node.op_type != "Constant" or node.domain or len(node.output) != 1:
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
