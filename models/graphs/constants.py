"""Constant nodes as initializers: one form of weight to count, map and stream.

In bodies, too: ONNX Runtime saves a Constant of a body inside a body twice, and then refuses what it saved.
"""

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from models.graphs.nodes import all_graphs

_TYPES = {
    ("value_float", AttributeProto.FLOAT): np.float32,
    ("value_floats", AttributeProto.FLOATS): np.float32,
    ("value_int", AttributeProto.INT): np.int64,
    ("value_ints", AttributeProto.INTS): np.int64,
}


def lift_constants(model: onnx.ModelProto) -> None:
    """Make the tensors of Constant nodes initializers of their graphs."""
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
            tensor.name = _free(f"{name}/constant", taken)
            kept.append(helper.make_node("Identity", [tensor.name], [name]))
        taken.add(tensor.name)
        graph.initializer.append(tensor)
        node.Clear()
    if len(kept) < len(graph.node) or outputs:
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


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
