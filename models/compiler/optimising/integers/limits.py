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

from models.graphs.nodes import copied
from models.graphs.rewriting import Rewriter

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


class LimitIntegers(Rewriter):
    """Lets QuantizeLinear read what an operator computes, and limits what it makes of that."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        if _DOMAIN not in self.versions:
            model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return ``node``, and behind it the limits before it; who had these is read by nobody then."""
        limiting = self.makers.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
        if limiting is None or self.uses[node.input[0]] != 1 or self.versions.get("", 0) < _OPSET:
            return None
        again = self._again(limiting, node, node.output[0])
        if again is not None:
            return again or None
        bounds, source = self._bounds(limiting), limiting.input[0]
        maker, scaling = self.makers.get(source), self._scaling(node)
        if bounds is None or maker is None or scaling is None:
            return None
        rounded, name = _rounded(scaling, bounds), node.output[0]
        if rounded is None:  # all that there are
            return self._again(maker, node, name) or None
        unlimited = f"{name}/unlimited"
        before = self._again(maker, node, unlimited)
        if before is None:
            if maker.op_type not in _COMPUTING or self.uses[source] != 1:
                return None
            before = [copied(node, [source, *node.input[1:]], [unlimited])]
        elif not before:
            unlimited = maker.input[0]
        ends = [
            self.constant(f"{name}/{side}", bound)
            for side, bound in zip(("least", "most"), rounded, strict=True)
        ]
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
        given = [self.tensors[name] for name in node.input[1:] if name in self.tensors]
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
            if name:
                bound = self.numbers(name)
                if bound is None:
                    return None
                found[place] = float(bound.ravel()[0])
        return found[0], found[1]


def _rounded(
    scaling: tuple[float, int, int], bounds: tuple[float, float]
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return ``bounds`` as integers; None: they are no limits."""
    scale, zero, number = scaling
    kind = _TYPES[number]
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    steps = np.rint(np.array(bounds, np.float32) / np.float32(scale))
    ends = np.clip(steps + zero, least, most)
    if tuple(ends) == (least, most):
        return None
    return np.array(ends[0], kind), np.array(ends[1], kind)
