"""How many numbers of a network are trained."""

import math

import onnx
from onnx import TensorProto

# Inputs with floating-point constants that nobody trains: statistics, regions and scales.
_UNTRAINED = {"BatchNormalization": (3, 4), "Resize": (1, 2), "Upsample": (1,)}
_FLOATING = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def count_parameters(model: onnx.ModelProto) -> int:
    """Count trainable numbers: floating-point weights except statistics of batch norms and the like.

    Scalars are constants of formulas. Weights need no data: skeletons are counted, too.
    """
    untrained = {
        name
        for node in model.graph.node
        for position, name in enumerate(node.input)
        if position in _UNTRAINED.get(node.op_type, ())
    }
    return sum(
        math.prod(tensor.dims)
        for tensor in model.graph.initializer
        if tensor.data_type in _FLOATING and tensor.dims and tensor.name not in untrained
    )
