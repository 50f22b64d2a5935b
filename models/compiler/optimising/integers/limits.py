"""Activations that only limit, behind the rounding instead of before it.

Rounding to steps keeps an order, so a number that is limited and then rounded is its rounded self between
the rounded limits. ONNX Runtime leaves Relu and Clip out where the integers have no others; elsewhere, as
with symmetric scales, they keep the operator before them from becoming one of integers. What was rounded
before they limit it is no float at all: rounded in the same way it stays as it is, else each integer
becomes another one.
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
_DOMAIN = "com.microsoft"
# A scale and a zero point.
_OPERANDS = 2


def limit_integers(model: onnx.ModelProto) -> None:
    """Let QuantizeLinear read what an operator computes, and limit what it makes of that."""
    version = max((item.version for item in model.opset_import if item.domain == ""), default=0)
    if version < _OPSET:
        return
    if not any(item.domain == _DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
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
        again = self._again(limiting, node, node.output[0])
        if again is not None:
            return again or [node]
        bounds, source = self._bounds(limiting), limiting.input[0]
        maker = self._makers.get(source)
        if bounds is None or maker is None:
            return [node]
        rounded, name = self._rounded(node, bounds), node.output[0]
        if rounded is None:  # all that there are
            return self._again(maker, node, name) or [node]
        unlimited = f"{name}/unlimited"
        before = self._again(maker, node, unlimited)
        if before is None:
            if maker.op_type not in _COMPUTING or self._uses[source] != 1:
                return [node]
            first = onnx.NodeProto()
            first.CopyFrom(node)
            first.input[0], first.output[0] = source, unlimited
            before = [first]
        elif not before:
            unlimited = maker.input[0]
        ends = []
        for side, bound in zip(("least", "most"), rounded, strict=True):
            self._graph.initializer.append(numpy_helper.from_array(bound, f"{name}/{side}"))
            ends.append(f"{name}/{side}")
        return [*before, helper.make_node("Clip", [unlimited, *ends], [name], f"{name}/limits")]

    def _again(
        self, maker: onnx.NodeProto, node: onnx.NodeProto, result: str
    ) -> list[onnx.NodeProto] | None:
        """Return what makes ``result`` of the integers that ``maker`` reads, as both nodes do.

        Nothing: ``node`` makes the same integers again. None: they are no 8-bit integers with one scale.
        A concatenation of one part looks each of them up.
        """
        if maker.op_type != "DequantizeLinear":
            return None
        given, made = self._scaling(maker), self._scaling(node)
        if given is None or made is None or given[2] != made[2]:
            return None
        if given == made:
            return []
        operands = [*node.input[1:3], *maker.input[:3]]
        return [
            helper.make_node("QLinearConcat", operands, [result], result, domain=_DOMAIN, axis=0)
        ]

    def _scaling(self, node: onnx.NodeProto) -> tuple[float, int, int] | None:
        """Return scale and zero point of ``node``, and their type; None: not one of 8-bit integers."""
        given = [self._tensors[name] for name in node.input[1:] if name in self._tensors]
        if len(given) != _OPERANDS or any(tensor.dims for tensor in given):
            return None
        if given[0].data_type != onnx.TensorProto.FLOAT or given[1].data_type not in _TYPES:
            return None
        scale, zero = (numpy_helper.to_array(tensor).item() for tensor in given)
        return scale, zero, given[1].data_type

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
