"""Weights of layers that are no numbers: whatever is computed from them is none either."""

import numpy as np
import onnx
from onnx import TensorProto

from models.graphs.file import numbers_of
from models.network.operators import LAYERS

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
# Weights are mapped: a few MiB at a time, so that none of them are held.
_BLOCK = 1 << 20


def infinite_weights(model: onnx.ModelProto) -> list[str]:
    """Return which weights of layers of ``model``, from ``read_onnx``, have NaN or infinities, in words."""
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
