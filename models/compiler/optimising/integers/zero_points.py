"""Zero points that are left out, written where they are not those of unsigned bytes.

ONNX Runtime moves DequantizeLinear over what moves elements, and quantises in between with its scale and
zero point: where that is left out, to unsigned bytes, of whatever type the bytes are. From operator set 21
on it says the type in an attribute.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto, helper, shape_inference

from models.graphs.nodes import copied
from models.graphs.rewriting import Rewriter

_ZERO = 2
_TYPE_IS_SAID = 21
_KINDS = (TensorProto.INT8, TensorProto.INT16, TensorProto.UINT16)


class WriteZeroPoints(Rewriter):
    """Gives DequantizeLinear the zero points that they leave out."""

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if node.op_type != "DequantizeLinear" or any(node.input[_ZERO:]):
            return None
        scale = self.tensors.get(node.input[1])
        kind = self._kinds.get(node.input[0])
        if scale is None or kind not in _KINDS or self.versions.get("", 0) >= _TYPE_IS_SAID:
            return None
        zeros = np.zeros(tuple(scale.dims), helper.tensor_dtype_to_np_dtype(kind))
        name = self.constant(f"{node.output[0]}/zero", zeros)
        return [copied(node, [*node.input[:_ZERO], name])]

    @cached_property
    def _kinds(self) -> Mapping[str, int]:
        """Element types by name; ONNX Runtime's operators on bytes make what they are given."""
        graph = shape_inference.infer_shapes(self.model).graph
        kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            kinds[value.name] = value.type.tensor_type.elem_type
        for node in graph.node:
            data = node.input[2:3] if node.op_type == "QLinearConcat" else node.input[:1]
            for name in node.output:
                kinds[name] = kinds.get(name) or sum(kinds.get(each, 0) for each in data)
        return kinds
