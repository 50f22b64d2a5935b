"""Scales that a quantised network divides by."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from models.errors import OnnxError
from models.graphs.file import reference
from models.graphs.nodes import all_graphs, label

# Inputs with the scale of what an operator makes. Those of what it reads may be zero: all is zero then, as
# exporters write it of channels without weights.
_DIVISORS = {
    "QuantizeLinear": 1,
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), 6),
    "QGemm": 7,
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"), 3),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), 3),
}


def check_scales(model: onnx.ModelProto, path: Path) -> None:
    """Check that no constant scale makes what cannot be rounded to integers.

    Raises:
        OnnxError: one is zero, negative, or not finite; the message names the node.
    """
    for graph in all_graphs(model.graph):
        tensors = {tensor.name: tensor for tensor in graph.initializer if reference(tensor) is None}
        for node in graph.node:
            place = _DIVISORS.get(node.op_type)
            if place is None or len(node.input) <= place or node.input[place] not in tensors:
                continue
            scales = numpy_helper.to_array(tensors[node.input[place]]).astype(np.float64).ravel()
            wrong = scales[~((scales > 0) & np.isfinite(scales))]
            if len(wrong):
                raise OnnxError(
                    f"{path}: node {label(node)!r} ({node.op_type}): scale {node.input[place]!r} is "
                    f"{wrong[0]:g}; it must be above zero"
                )
