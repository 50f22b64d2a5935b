"""Weights of layers that are no numbers: whatever is computed from them is none either."""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.graphs.file import reference
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
            numbers = _numbers(tensor)
            wrong = sum(
                int((~np.isfinite(numbers[first : first + _BLOCK])).sum())
                for first in range(0, len(numbers), _BLOCK)
            )
            if wrong:
                found.append(
                    f"weights {tensor.name!r}: {wrong} of {len(numbers)} are NaN or infinite"
                )
    return found


def _numbers(tensor: TensorProto) -> NDArray[np.floating]:
    """Return what ``tensor`` holds, floats in one dimension; large ones are mapped."""
    held = reference(tensor)
    if held is None:
        return numpy_helper.to_array(tensor).reshape(-1)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    count = held.length // dtype.itemsize
    return np.memmap(held.path, dtype, "r", held.offset, (count,)) if count else np.zeros(0, dtype)
