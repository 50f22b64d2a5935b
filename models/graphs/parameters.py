"""How many numbers of a network are trained."""

import math

import onnx
from onnx import TensorProto, helper

from models.graphs.nodes import all_graphs

# Inputs with floating-point constants that nobody trains: statistics, regions and scales.
_UNTRAINED = {
    "BatchNormalization": (3, 4),
    "Resize": (1, 2),
    "Upsample": (1,),
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "QGemm": (1, 4, 7),
    "DynamicQuantizeMatMul": (2,),
    "MatMulIntegerToFloat": (2, 3),
    "MatMulNBits": (2,),
}
# Inputs with weights as integers.
_QUANTISED = {
    "DequantizeLinear": (0,),
    "QLinearConv": (3, 8),
    "QLinearMatMul": (0, 3),
    "QGemm": (3, 6),
    "ConvInteger": (1,),
    "MatMulInteger": (0, 1),
    "DynamicQuantizeMatMul": (1,),
    "MatMulIntegerToFloat": (1,),
    "MatMulNBits": (1,),
}
_FLOATING = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def quantised_weights(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of ``node`` that are weights as integers, if they are constants."""
    positions = _QUANTISED.get(node.op_type, ())
    return [name for position, name in enumerate(node.input) if name and position in positions]


def count_parameters(model: onnx.ModelProto) -> int:
    """Count trainable numbers: floating-point and quantised weights, not statistics, scales and the like.

    Scalars are constants of formulas; those of bodies count as those of the main graph do. Weights need no
    data: skeletons are counted, too.
    """
    nodes = [node for graph in all_graphs(model.graph) for node in graph.node]
    untrained = {
        name
        for node in nodes
        for position, name in enumerate(node.input)
        if position in _UNTRAINED.get(node.op_type, ())
    }
    quantised = {name: node for node in nodes for name in quantised_weights(node)}
    total = 0
    for name, tensor in _tensors(model):
        if not tensor.dims or name in untrained:
            continue
        if tensor.data_type in _FLOATING:
            total += math.prod(tensor.dims)
        elif name in quantised:
            total += _quantised_count(quantised[name], tensor)
    return total


def _tensors(model: onnx.ModelProto) -> list[tuple[str, TensorProto]]:
    """Return initializers and the tensors of Constant nodes of all graphs, each with its name."""
    graphs = list(all_graphs(model.graph))
    found = [(tensor.name, tensor) for graph in graphs for tensor in graph.initializer]
    for node in (node for graph in graphs for node in graph.node if node.op_type == "Constant"):
        found += [(node.output[0], item.t) for item in node.attribute if item.HasField("t")]
    return found


def _quantised_count(node: onnx.NodeProto, tensor: TensorProto) -> int:
    """Return how many weights ``tensor`` has; a byte of ``MatMulNBits`` has several."""
    if node.op_type != "MatMulNBits":
        return math.prod(tensor.dims)
    sizes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return int(sizes["K"] * sizes["N"])


def is_quantised(node: onnx.NodeProto) -> bool:
    """Return whether ``node`` computes with quantised numbers."""
    return node.op_type in _QUANTISED
