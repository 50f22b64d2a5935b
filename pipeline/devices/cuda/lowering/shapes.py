"""Shapes and dtypes of everything in a piece."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

_MICROSOFT = "com.microsoft"
# Operators of ONNX with the same shapes, and how many of the inputs those read.
_TWINS = {
    "FusedConv": ("Conv", 3),
    "FusedGemm": ("Gemm", 3),
    "QuickGelu": ("Identity", 1),
    "Gelu": ("Identity", 1),
}
# What only the fused forms have.
_FUSED_PREFIX = "activation"


@dataclass(frozen=True)
class Value:
    """Shape and dtype."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return self.count * self.dtype.itemsize


def take_constants(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    """Return the initializers of ``graph``, among which its Constant nodes are from here on."""
    computed = []
    for node in graph.node:
        held = _held(node) if node.op_type == "Constant" and not node.domain else None
        if held is None:
            computed.append(onnx.NodeProto.FromString(node.SerializeToString()))
        else:
            graph.initializer.append(numpy_helper.from_array(held, node.output[0]))
    del graph.node[:]
    graph.node.extend(computed)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def _held(node: onnx.NodeProto) -> NDArray[Any] | None:
    """Return the numbers of a Constant; None where they are of a kind that no kernel reads."""
    for item in node.attribute:
        value = helper.get_attribute_value(item)
        if item.name == "value":
            return np.asarray(numpy_helper.to_array(value))
        if item.name in {"value_int", "value_ints"}:
            return np.array(value, np.int64)
        if item.name in {"value_float", "value_floats"}:
            return np.array(value, np.float32)
    return None


def infer(model: onnx.ModelProto, constants: Mapping[str, NDArray[Any]]) -> dict[str, Value]:
    """Return every value whose shape is static; ONNX infers it from the ports of the piece."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for node in probe.graph.node:
        if node.domain == _MICROSOFT and node.op_type in _TWINS:
            _to_twin(node)
    try:
        inferred = shape_inference.infer_shapes(probe, data_prop=True).graph
    except (RuntimeError, ValueError):
        inferred = model.graph
    found = {name: Value(array.shape, array.dtype) for name, array in constants.items()}
    # What the ports say goes first: ONNX rounds up the sizes of some pools where the operator does not.
    ports = (*model.graph.input, *model.graph.output)
    for port in (*ports, *inferred.value_info, *inferred.output):
        value = _value(port)
        if value is not None:
            found.setdefault(port.name, value)
    return found


def _to_twin(node: onnx.NodeProto) -> None:
    """Make ``node`` the operator of ONNX that has the same shapes."""
    operator, inputs = _TWINS[node.op_type]
    kept = [item for item in node.attribute if not item.name.startswith(_FUSED_PREFIX)]
    kept = [] if operator == "Identity" else kept
    twin = onnx.NodeProto(op_type=operator, input=node.input[:inputs], output=node.output)
    twin.attribute.extend(kept)
    node.CopyFrom(twin)


def _value(port: onnx.ValueInfoProto) -> Value | None:
    tensor = port.type.tensor_type
    if not tensor.HasField("shape") or not tensor.elem_type:
        return None
    if not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, ValueError):
        return None
    return Value(tuple(dim.dim_value for dim in tensor.shape.dim), dtype)
