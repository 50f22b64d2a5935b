"""Weights that are integers in the source and that kernels read as floats.

Where weights alone are quantised, or activations have 16 bits or none, DequantizeLinear stands between a
weight and its operator, and no kernel of integers takes both. ONNX Runtime runs it in every sweep, into
memory as large as the layer, and the operator behind it has no blocked kernel, as its weights are no
constants. Here these weights become floats before the network is optimised for its target; how they lie in
the file is another question (models/compiler/writing/storing.py).

ONNX Runtime decides which: those that are left when it has made integers of all that it can. Weights
of 4 bits become weights of 8 bits before that: for the same numbers it has more kernels.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.graphs.file import bring_inside, tensor_in
from models.graphs.nodes import attributes, replace_nodes
from models.network.catalogue import traits_of
from models.network.names import Op, op_of
from models.runtime.sessions import open_session, session_options

_WHOLE = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4)
_WIDER: Mapping[int, type[np.integer[Any]]] = {
    TensorProto.INT4: np.int8,
    TensorProto.UINT4: np.uint8,
}
_LEAST, _MOST = -128, 127
#: What in ONNX Runtime takes such floats, between quantised activations, for weights to be quantised.
QUANTISES_WEIGHTS = "WeightBiasQuantization"


def find_integers(model: onnx.ModelProto, folder: Path) -> bool:
    """Return whether DequantizeLinear reads constants of ``model``; those of 4 bits have 8 afterwards."""
    constants = {tensor.name for tensor in model.graph.initializer}
    has_integers = any(_of_constants(node, constants) for node in model.graph.node)
    if has_integers:
        _widen(model, folder)
    return has_integers


def make_floats(model: onnx.ModelProto, folder: Path) -> dict[str, str]:
    """Compute in ``model``, whose files lie in ``folder``, what DequantizeLinear makes of constants.

    Returns these constants, but 32-bit ones (biases), each with why 8-bit integers and a scale for each
    channel cannot say the same; "": they can.

    Raises:
        SessionError: ONNX Runtime refuses one.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    reasons: dict[str, str] = {}
    kept = []
    with (folder / "dequantised.data").open("wb") as file:
        for node in model.graph.node:
            if not _of_constants(node, tensors):
                kept.append(node)
                continue
            operands = [_inside(tensors[name], folder) for name in node.input if name]
            numbers = _dequantised(model, node, operands)
            if operands[0].data_type != TensorProto.INT32:
                reasons[node.input[0]] = _why_not_whole(node, operands)
            model.graph.initializer.append(tensor_in(file, node.output[0], numbers))
    replace_nodes(model.graph, kept)
    return reasons


def _widen(model: onnx.ModelProto, folder: Path) -> None:
    """Let constants of 4 bits that DequantizeLinear reads have 8 bits, unless blocks have scales."""
    whole, blocked = set[str](), set[str]()
    for node in model.graph.node:
        if traits_of(op_of(node)).of is Op.DequantizeLinear:
            names = blocked if attributes(node).get("block_size", 0) else whole
            names.update((node.input[0], *node.input[2:]))
    with (folder / "widened.data").open("wb") as file:
        for tensor in model.graph.initializer:
            kind = _WIDER.get(tensor.data_type)
            if kind is not None and tensor.name in whole - blocked:
                numbers = numpy_helper.to_array(_inside(tensor, folder)).astype(kind)
                tensor.CopyFrom(tensor_in(file, tensor.name, numbers))


def _of_constants(node: onnx.NodeProto, constants: Mapping[str, Any] | set[str]) -> bool:
    is_conversion = traits_of(op_of(node)).of is Op.DequantizeLinear
    return is_conversion and all(name in constants for name in node.input if name)


def _inside(tensor: TensorProto, folder: Path) -> TensorProto:
    """Return a copy of ``tensor`` with its data."""
    copy = TensorProto()
    copy.CopyFrom(tensor)
    bring_inside(copy, folder)
    return copy


def _dequantised(
    model: onnx.ModelProto, node: onnx.NodeProto, operands: list[TensorProto]
) -> NDArray[Any]:
    """Let ONNX Runtime compute ``node``: whatever types and blocks it has, it has those bits."""
    result = helper.make_tensor_value_info(node.output[0], operands[1].data_type, None)
    alone = helper.make_model(
        helper.make_graph([node], "g", [], [result], operands),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
    session = open_session(alone.SerializeToString(), session_options(optimise=False))
    (numbers,) = session.run(None, {})
    return np.asarray(numbers)


def _why_not_whole(node: onnx.NodeProto, operands: list[TensorProto]) -> str:
    """Return why int8 times a scale for each output channel is not what ``node`` makes."""
    weight, scale, *zero_point = operands
    if weight.data_type not in _WHOLE:
        return f"they are {TensorProto.DataType.Name(weight.data_type).lower()}"
    if attributes(node).get("block_size", 0) or len(scale.dims) > 1:
        return "they have a scale for each block"
    if scale.data_type != TensorProto.FLOAT:
        return f"their scales are {TensorProto.DataType.Name(scale.data_type).lower()}"
    whole = numpy_helper.to_array(weight).astype(np.int32)
    if zero_point and math.prod(zero_point[0].dims) > 0:
        whole = whole - _along(numpy_helper.to_array(zero_point[0]), node, whole.ndim)
    least, most = int(whole.min(initial=0)), int(whole.max(initial=0))
    if least < _LEAST or most > _MOST:
        return f"less their zero point they go from {least} to {most}"
    return ""


def _along(vector: NDArray[Any], node: onnx.NodeProto, rank: int) -> NDArray[Any]:
    """Return ``vector``, one number or one for each index of the node's axis, to be subtracted."""
    vector = vector.astype(np.int32)
    if vector.size == 1:
        return vector.reshape(())
    axis = attributes(node).get("axis", 1) % rank
    return vector.reshape([-1 if place == axis else 1 for place in range(rank)])
