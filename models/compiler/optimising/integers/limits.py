"""Activations that only limit, behind the rounding instead of before it.

Rounding to steps keeps an order, so a number that is limited and then rounded is its rounded self between
the rounded limits. ONNX Runtime leaves Relu and Clip out where the integers have no others; elsewhere, as
with symmetric scales, they keep the operator before them from becoming one of integers. What was rounded
in the same way before they limit it is no float at all.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from models.graphs.nodes import live, reads, replace_nodes

_COMPUTING = frozenset(("Add", "Conv", "Gemm", "MatMul"))
_TYPES: Mapping[int, type[np.integer[Any]]] = {
    onnx.TensorProto.INT8: np.int8,
    onnx.TensorProto.UINT8: np.uint8,
}
# From here on Clip takes 8-bit integers.
_OPSET = 12
# A scale and a zero point.
_OPERANDS = 2


def limit_integers(model: onnx.ModelProto) -> None:
    """Let QuantizeLinear read what an operator computes, and limit what it makes of that."""
    version = max((item.version for item in model.opset_import if item.domain == ""), default=0)
    if version < _OPSET:
        return
    limits = _Limits(model.graph)
    replace_nodes(model, [new for node in model.graph.node for new in limits.behind(node)])
    replace_nodes(model, live(model))  # without those that limited before


class _Limits:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._uses: dict[str, int] = {value.name: 1 for value in graph.output}
        for node in graph.node:
            for name in reads(node):
                self._uses[name] = self._uses.get(name, 0) + 1

    def behind(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return ``node``, and behind it the limits before it; who had these is read by nobody then."""
        limiting = self._makers.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
        if limiting is None or self._uses[node.input[0]] != 1:
            return [node]
        bounds, source = self._bounds(limiting), limiting.input[0]
        maker = self._makers.get(source)
        if bounds is None or maker is None:
            return [node]
        given = self._integers(maker, node)
        if given is None and (maker.op_type not in _COMPUTING or self._uses[source] != 1):
            return [node]
        rounded = self._rounded(node, bounds)
        if rounded is None:
            return [node]
        name = node.output[0]
        first = onnx.NodeProto()
        first.CopyFrom(node)
        first.input[0], first.output[0] = source, f"{name}/unlimited"
        ends = []
        for side, bound in zip(("least", "most"), rounded, strict=True):
            self._graph.initializer.append(numpy_helper.from_array(bound, f"{name}/{side}"))
            ends.append(f"{name}/{side}")
        unlimited = first.output[0] if given is None else given
        limited = helper.make_node("Clip", [unlimited, *ends], [name], f"{name}/limits")
        return [first, limited] if given is None else [limited]

    def _integers(self, maker: onnx.NodeProto, node: onnx.NodeProto) -> str | None:
        """Return the integers that ``node`` makes again of what ``maker`` makes of them; None: others."""
        if maker.op_type != "DequantizeLinear":
            return None
        scalings = [
            [self._tensors[name] for name in each.input[1:] if name in self._tensors]
            for each in (maker, node)
        ]
        if any(len(each) != _OPERANDS or each[0].dims or each[1].dims for each in scalings):
            return None
        same = all(
            one.data_type == other.data_type
            and numpy_helper.to_array(one) == numpy_helper.to_array(other)
            for one, other in zip(*scalings, strict=True)
        )
        return maker.input[0] if same else None

    def _bounds(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """Return between what ``node`` limits, if it does only that."""
        if node.op_type == "Relu":
            return 0.0, np.inf
        if node.op_type != "Clip":
            return None
        found = [-np.inf, np.inf]
        for place, name in enumerate(node.input[1:]):
            if name and name not in self._tensors:
                return None
            if name:
                found[place] = float(numpy_helper.to_array(self._tensors[name]).ravel()[0])
        return found[0], found[1]

    def _rounded(
        self, node: onnx.NodeProto, bounds: tuple[float, float]
    ) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return ``bounds`` as integers; None: they are no limits, or ``node`` does not say which."""
        given = [self._tensors[name] for name in node.input[1:] if name in self._tensors]
        if len(given) != _OPERANDS or any(tensor.dims for tensor in given):
            return None
        scale, zero_point = given
        kind = _TYPES.get(zero_point.data_type)
        if kind is None or scale.data_type != onnx.TensorProto.FLOAT:
            return None
        step, zero = numpy_helper.to_array(scale), int(numpy_helper.to_array(zero_point))
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        ends = np.clip(np.rint(np.array(bounds, np.float32) / step) + zero, least, most)
        if tuple(ends) == (least, most):
            return None
        return np.array(ends[0], kind), np.array(ends[1], kind)
