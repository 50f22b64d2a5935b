"""Activations of quantised networks, made such that ONNX Runtime has fast kernels for them.

ONNX Runtime's fast kernels for x86 take unsigned activations. Signed ones, as TFLite and TensorRT have
them, it makes unsigned only where a value has one reader, and computes the rest as floats; its kernels for
signed ones take ten times as long. So each value between QuantizeLinear and DequantizeLinear becomes
unsigned here, and what comes as signed integers or leaves so is converted.

Before that zero points that are left out are written, and scales as kernels take them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference

from models.graphs.nodes import attributes, copied, new_node, with_attributes
from models.graphs.rewriting import Rewriter
from models.network.catalogue import traits_of
from models.network.names import MICROSOFT, Op, op_of

# Activations that only limit, behind the rounding instead of before it.
#
# Rounding to steps keeps an order, so a number that is limited and then rounded is its rounded self
# between the rounded limits. ONNX Runtime leaves Relu and Clip out where the integers have no others;
# elsewhere, as with symmetric scales, they keep the operator before them from becoming one of integers.
# An integer that was rounded before the limits needs no float: rounded in the same way it stays as it is,
# else each integer becomes another one.

_TYPES: Mapping[int, type[np.integer[Any]]] = {
    onnx.TensorProto.INT8: np.int8,
    onnx.TensorProto.UINT8: np.uint8,
}
# From here on Clip takes 8-bit integers.
_OPSET = 12
# A scale and a zero point.
_SCALE_AND_ZERO = 2


class LimitIntegers(Rewriter):
    """Lets QuantizeLinear read what an operator computes, and limits what it makes of that."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        if MICROSOFT not in self.versions:
            model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return ``node``, and behind it the limits before it; no node reads the first limits then."""
        limiting = self.makers.get(node.input[0]) if _quantises(node) else None
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
            if not _computes_bytes(maker) or self.uses[source] != 1:
                return None
            before = [copied(node, [source, *node.input[1:]], [unlimited])]
        elif not before:
            unlimited = maker.input[0]
        ends = [
            self.constant(f"{name}/{side}", bound)
            for side, bound in zip(("least", "most"), rounded, strict=True)
        ]
        return [*before, new_node(Op.Clip, [unlimited, *ends], [name], f"{name}/limits")]

    def _again(
        self, maker: onnx.NodeProto, node: onnx.NodeProto, result: str
    ) -> list[onnx.NodeProto] | None:
        """Return what makes ``result`` of the integers that ``maker`` reads, as both nodes do.

        Nothing: ``node`` makes the same integers again. None: they are no 8-bit integers with one scale.
        A concatenation of one part looks each of them up.
        """
        if not _dequantises(maker):
            return None
        given, made = self._scaling(maker), self._scaling(node)
        if given is None or made is None or given[2] != made[2]:
            return None
        if given == made:
            return []
        operands = [*node.input[1:3], *maker.input[:3]]
        return [new_node(Op.QLinearConcat, operands, [result], result, axis=0)]

    def _scaling(self, node: onnx.NodeProto) -> tuple[float, int, int] | None:
        """Return scale and zero point of ``node``, and their type; None: not one of 8-bit integers."""
        given = [self.tensors[name] for name in node.input[1:] if name in self.tensors]
        if len(given) != _SCALE_AND_ZERO or any(tensor.dims for tensor in given):
            return None
        if given[0].data_type != onnx.TensorProto.FLOAT or given[1].data_type not in _TYPES:
            return None
        scale, zero = (numpy_helper.to_array(tensor).item() for tensor in given)
        return scale, zero, given[1].data_type

    def _bounds(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """Return between what ``node`` limits, if it does only that."""
        if op_of(node) == Op.Relu:
            return 0.0, np.inf
        if op_of(node) != Op.Clip:
            return None
        bounds = [-np.inf, np.inf]
        for place, name in enumerate(node.input[1:]):
            if name:
                bound = self.numbers(name)
                if bound is None:
                    return None
                bounds[place] = float(bound.ravel()[0])
        return bounds[0], bounds[1]


def _quantises(node: onnx.NodeProto) -> bool:
    return traits_of(op_of(node)).of is Op.QuantizeLinear


def _dequantises(node: onnx.NodeProto) -> bool:
    return traits_of(op_of(node)).of is Op.DequantizeLinear


def _computes_bytes(node: onnx.NodeProto) -> bool:
    """Return whether ``node`` computes numbers, and bytes between DequantizeLinear and QuantizeLinear."""
    traits = traits_of(op_of(node))
    return traits.elements == "computed" and traits.quantisable == "yes"


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


# Signed activations as unsigned ones: the same numbers, 128 steps up, with a zero point 128 higher.

_UP = 128
# A value, its scale and its zero point.
_OPERANDS = 3
_WHOLE = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)


@dataclass
class _Values:
    """8-bit values with the same elements, moved, and the nodes that make numbers of them."""

    names: list[str]
    readers: list[onnx.NodeProto] = field(default_factory=list)


def _moves(node: onnx.NodeProto) -> bool:
    """Return whether ``node`` makes elements of its first input and no others: with steps as these have."""
    traits = traits_of(op_of(node))
    return traits.permutes or traits.computes(Op.MaxPool)


class MakeUnsigned(Rewriter):
    """Lets no QuantizeLinear make signed 8-bit integers for other nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self._signed = {port.name for port in model.graph.input if _is_signed(port)}

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if _quantises(node) and self._makes_signed(node):
            return [node, *self._raised(node)]
        if _dequantises(node) and node.input[0] in self._signed:
            return [node, *self._again(node)]
        return None

    def _makes_signed(self, node: onnx.NodeProto) -> bool:
        if node.input[0] in self.tensors or not self._is_plain(node):
            return False
        return bool(self.tensors[node.input[2]].data_type == TensorProto.INT8)

    def _raised(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Let ``node`` make unsigned integers; yield what makes signed ones again for callers."""
        values = self._moved(node.output[0])
        if values is None:
            return
        given = node.output[0]
        if given in self.outputs:
            if values.readers:  # its readers and the caller need one each
                return
            yield from self._lowered(node, given)
        self.retyped.update(values.names)
        for one in (node, *values.readers):
            one.input[2] = self._raised_zero_point(one)

    def _moved(self, name: str) -> _Values | None:
        """Return the value ``name`` and those that it is moved to; None: another node reads one of them."""
        values = _Values([name])
        for value in values.names:
            for reader in self.readers[value]:
                if reader.input[0] != value or (_moves(reader) and len(reader.output) > 1):
                    return None
                if _moves(reader):
                    values.names.append(reader.output[0])
                elif _dequantises(reader) and self._is_plain(reader):
                    values.readers.append(reader)
                else:
                    return None
            if value in self.outputs and value != name:
                return None
        return values

    def _is_plain(self, node: onnx.NodeProto) -> bool:
        """Return whether scales and zero points are constants, and not of blocks."""
        held = len(node.input) == _OPERANDS and self.numbers(node.input[2]) is not None
        return held and node.input[1] in self.tensors and not attributes(node).get("block_size", 0)

    def _lowered(self, node: onnx.NodeProto, given: str) -> Iterator[onnx.NodeProto]:
        """Let ``node`` make another value; yield nodes that make the signed ``given`` of it."""
        raised, number = self.fresh(f"{given}/unsigned"), self.fresh(f"{given}/number")
        zero_point = self._raised_zero_point(node)
        last = copied(node, [number, *node.input[1:]], name=self.fresh(f"{given}/signed"))
        node.output[0] = raised
        yield new_node(Op.DequantizeLinear, [raised, node.input[1], zero_point], [number], number)
        yield last

    def _again(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield nodes that quantise what ``node`` makes of a signed input of the model, unsigned."""
        if not self._is_plain(node) or node.output[0] in self.outputs:
            return
        number, made = node.output[0], self.fresh(f"{node.output[0]}/signed")
        raised = self.fresh(f"{number}/unsigned")
        zero_point = self._raised_zero_point(node)
        node.output[0] = made
        self.retyped.add(number)
        yield new_node(Op.QuantizeLinear, [made, node.input[1], zero_point], [raised], raised)
        name = self.fresh(f"{number}/again")
        yield new_node(Op.DequantizeLinear, [raised, node.input[1], zero_point], [number], name)

    def _raised_zero_point(self, node: onnx.NodeProto) -> str:
        raised = numpy_helper.to_array(self.tensors[node.input[2]]).astype(np.int16) + _UP
        return self.constant(f"{node.output[0]}/zero_point", raised.astype(np.uint8))


def _is_signed(port: onnx.ValueInfoProto) -> bool:
    return port.type.tensor_type.elem_type == TensorProto.INT8


def _is_passed(node: onnx.NodeProto) -> bool:
    """Return whether ONNX Runtime moves DequantizeLinear and QuantizeLinear over ``node``, up to a pool."""
    return _moves(node) or op_of(node) == Op.Slice


class WriteScalars(Rewriter):
    """Writes scales and zero points around average pools as scalars, where they are vectors of one element.

    They are the same, but ONNX Runtime makes a pool of integers whatever they are, and refuses it then.
    Sums and products it leaves in floats where they are vectors; so they stay as they are.
    """

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if not self._is_around_pool(node) or attributes(node).get("block_size", 0):
            return None
        inputs = [node.input[0], *map(self._scalar, node.input[1:])]
        return None if inputs == [*node.input] else [copied(node, inputs)]

    def _scalar(self, name: str) -> str:
        """Return the constant ``name`` without its axis of one element, or what has other axes as it is."""
        array = self.numbers(name)
        if array is None or array.shape != (1,):
            return name
        return self.constant(f"{name}/scalar", array.reshape(()))

    def _is_around_pool(self, node: onnx.NodeProto) -> bool:
        if _dequantises(node):
            return self._leads_to_pool(node.output[0])
        before = self.makers.get(node.input[0]) if _quantises(node) else None
        while before is not None and _is_passed(before):
            before = self.makers.get(before.input[0])
        return before is not None and op_of(before) == Op.AveragePool

    def _leads_to_pool(self, name: str) -> bool:
        names = [name]
        for current in names:
            for reader in self.readers[current]:
                if op_of(reader) == Op.AveragePool:
                    return True
                names += reader.output[:1] if _is_passed(reader) else []
        return False


class WriteZeroPoints(Rewriter):
    """Gives operators on integers the zero points that they leave out: 0, of the type of the integers.

    Without them ONNX Runtime makes fewer operators of integers. And it moves DequantizeLinear over what
    moves elements, and quantises in between with its scale and zero point: where that is left out, to
    unsigned bytes, of whatever type the bytes are.
    """

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        given = node.input
        places = [
            place
            for place in traits_of(op_of(node)).scales(len(given))
            if any(name in self.tensors for name in given[place : place + 1])
            and not any(given[place + 1 : place + 2])
        ]
        data = given[0] if _dequantises(node) else node.output[0]
        kind = self._kinds.get(data, 0) if places else 0
        if kind not in _WHOLE:
            return None
        inputs, dtype = [*given], helper.tensor_dtype_to_np_dtype(kind)
        for place in places:
            zeros = np.zeros(tuple(self.tensors[given[place]].dims), dtype)
            inputs[place + 1 : place + 2] = [self.constant(f"{node.output[0]}/zero", zeros)]
        return [copied(node, inputs)]

    @cached_property
    def _kinds(self) -> Mapping[str, int]:
        """Element types by name; ONNX Runtime's operators on bytes make what they are given."""
        graph = shape_inference.infer_shapes(self.model).graph
        kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            kinds[value.name] = value.type.tensor_type.elem_type
        for node in graph.node:
            data = node.input[2:3] if op_of(node) == Op.QLinearConcat else node.input[:1]
            for name in node.output:
                kinds[name] = kinds.get(name) or sum(kinds.get(source, 0) for source in data)
        return kinds


class LeaveTypesToZeroPoints(Rewriter):
    """Lets no QuantizeLinear say a type that its zero point says.

    ONNX Runtime writes both, and when it makes signed bytes unsigned it changes the zero point alone.
    """

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        twice = attributes(node).get("output_dtype", 0) and any(node.input[2:])
        is_written = _quantises(node) and twice
        return [with_attributes(node, output_dtype=None)] if is_written else None
