"""The weights of a network: how many numbers are trained, and which are no numbers."""

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.graphs.file import numbers_of
from models.graphs.nodes import all_graphs
from models.network.operators import LAYERS

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
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
# Weights are mapped: a few MiB at a time, so that none of them are held.
_BLOCK = 1 << 20


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


def infinite_weights(model: onnx.ModelProto) -> list[str]:
    """Return which weights of layers of ``model``, from ``read_onnx``, have NaN or infinities, in words.

    Whatever is computed from them is no number either.
    """
    found = []
    # Elsewhere infinities have a meaning, as in masks.
    layers = [node for node in model.graph.node if node.op_type in LAYERS]
    # Nobody has checked yet that a layer has weights.
    weights = {name for node in layers for name in node.input[1:2]}
    for tensor in model.graph.initializer:
        if tensor.name in weights and tensor.data_type in _FLOATS:
            numbers = numbers_of(tensor).reshape(-1)
            wrong = sum(
                int((~np.isfinite(numbers[first : first + _BLOCK])).sum())
                for first in range(0, len(numbers), _BLOCK)
            )
            if wrong:
                found.append(
                    f"weights {tensor.name!r}: {wrong} of {len(numbers)} are NaN or infinite"
                )
    return found
