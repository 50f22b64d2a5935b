"""Zero points that are left out, written where they are not those of unsigned bytes.

ONNX Runtime moves DequantizeLinear over what moves elements, and quantises in between with its scale and
zero point: where that is left out, to unsigned bytes, of whatever type the bytes are. From operator set 21
on it says the type in an attribute.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

_ZERO = 2
_TYPE_IS_SAID = 21
_STANDARD = ("", "ai.onnx")
_KINDS = (TensorProto.INT8, TensorProto.INT16, TensorProto.UINT16)


def write_zero_points(model: onnx.ModelProto) -> None:
    """Give DequantizeLinear of ``model`` the zero points that they leave out."""
    graph = model.graph
    says_type = any(
        item.version >= _TYPE_IS_SAID for item in model.opset_import if item.domain in _STANDARD
    )
    nodes = [
        node
        for node in graph.node
        if node.op_type == "DequantizeLinear" and not any(node.input[_ZERO:]) and not says_type
    ]
    kinds = _kinds(model) if nodes else {}
    scales = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in nodes:
        kind = kinds.get(node.input[0])
        if kind not in _KINDS or node.input[1] not in scales:
            continue
        name = f"{node.output[0]}/zero"
        zeros = np.zeros(scales[node.input[1]], helper.tensor_dtype_to_np_dtype(kind))
        graph.initializer.append(numpy_helper.from_array(zeros, name))
        node.input[:] = [*node.input[:_ZERO], name]


def _kinds(model: onnx.ModelProto) -> Mapping[str, int]:
    """Return element types by name; ONNX Runtime's operators on bytes make what they are given."""
    graph = shape_inference.infer_shapes(model).graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kinds[value.name] = value.type.tensor_type.elem_type
    for node in graph.node:
        data = node.input[2:3] if node.op_type == "QLinearConcat" else node.input[:1]
        for name in node.output:
            kinds[name] = kinds.get(name) or sum(kinds.get(each, 0) for each in data)
    return kinds
