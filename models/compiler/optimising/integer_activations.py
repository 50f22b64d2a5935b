"""Activations of quantised networks, made such that ONNX Runtime has fast kernels for them.

ONNX Runtime's fast kernels for x86 take unsigned activations. Signed ones, as TFLite and TensorRT have
them, it makes unsigned only where a value has one reader, and computes the rest as floats; its kernels for
signed ones take ten times as long. So each value between QuantizeLinear and DequantizeLinear becomes
unsigned here, and what comes as signed integers or leaves so is converted.

Before that zero points that are left out are written, and scales as kernels take them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.compiler.optimising.by_onnx import element_types
from models.graphs.graph import Graph
from models.graphs.rewriter import Rewriter
from models.network.catalogue import traits_of
from models.network.names import MICROSOFT, Op
from models.network.node import Node

# Activations that only limit, behind the rounding instead of before it.
#
# Rounding to steps keeps an order, so a number that is limited and then rounded is its rounded self
# between the rounded limits. ONNX Runtime leaves Relu and Clip out where the integers have no others;
# elsewhere, as with symmetric scales, they keep the operator before them from becoming one of integers.
# An integer that was rounded before the limits needs no float: rounded in the same way it stays as it is,
# else each integer becomes another one.

# From here on Clip takes 8-bit integers.
_OPSET = 12
# A scale and a zero point.
_SCALE_AND_ZERO = 2
# Their numbers, and the type of the integers.
_Scaling = tuple[float, int, np.dtype[Any]]


class LimitIntegers(Rewriter):
    """Lets QuantizeLinear read what an operator computes, and limits what it makes of that."""

    def __init__(self, graph: Graph) -> None:
        opsets = {**graph.opsets, MICROSOFT: graph.opsets.get(MICROSOFT, 1)}
        super().__init__(replace(graph, opsets=opsets))

    def replaced(self, node: Node) -> list[Node] | None:
        """Return ``node``, and behind it the limits before it; no node reads the first limits then."""
        limiting = self.makers.get(node.inputs[0]) if _quantises(node) else None
        if limiting is None or self.uses[node.inputs[0]] != 1 or self.opsets.get("", 0) < _OPSET:
            return None
        again = self._again(limiting, node, node.output)
        if again is not None:
            return again or None
        bounds, scaling = self._bounds(limiting), _scaling(self.constants, node)
        maker = None if bounds is None else self.makers.get(limiting.inputs[0])
        if bounds is None or maker is None or scaling is None:
            return None
        rounded, source, name = _rounded(scaling, bounds), limiting.inputs[0], node.output
        if rounded is None:  # all that there are
            return self._again(maker, node, name) or None
        unlimited = f"{name}/unlimited"
        before = self._again(maker, node, unlimited)
        if before is None:
            if not _computes_bytes(maker) or self.uses[source] != 1:
                return None
            before = [node.replaced([source, *node.inputs[1:]], [unlimited])]
        elif not before:
            unlimited = maker.inputs[0]
        ends = [
            self.constant(f"{name}/{side}", bound)
            for side, bound in zip(("least", "most"), rounded, strict=True)
        ]
        return [*before, self.node(Op.Clip, [unlimited, *ends], [name], f"{name}/limits")]

    def _again(self, maker: Node, node: Node, result: str) -> list[Node] | None:
        """Return what makes ``result`` of the integers that ``maker`` reads, as both nodes do.

        Nothing: ``node`` makes the same integers again. None: they are no 8-bit integers with one scale.
        A concatenation of one part looks each of them up.
        """
        if not _dequantises(maker):
            return None
        first, second = (_scaling(self.constants, item) for item in (maker, node))
        if first is None or second is None or first[2] != second[2]:
            return None
        if first == second:
            return []
        operands = [*node.inputs[1:3], *maker.inputs[:3]]
        return [self.node(Op.QLinearConcat, operands, [result], result, axis=0)]

    def _bounds(self, node: Node) -> tuple[float, float] | None:
        """Return between what ``node`` limits, if it does only that."""
        if node.operator == Op.Relu:
            return 0.0, np.inf
        if node.operator != Op.Clip:
            return None
        bounds = [-np.inf, np.inf]
        for place, name in enumerate(node.inputs[1:]):
            if name:
                bound = self.numbers(name)
                if bound is None:
                    return None
                bounds[place] = float(bound.ravel()[0])
        return bounds[0], bounds[1]


def _scaling(constants: Mapping[str, NDArray[Any]], node: Node) -> _Scaling | None:
    """Return scale and zero point of ``node``, and their type; None: not one of 8-bit integers."""
    given = [constants[name] for name in node.inputs[1:] if name in constants]
    if len(given) != _SCALE_AND_ZERO or any(array.ndim for array in given):
        return None
    scale, zero = given
    if scale.dtype != np.float32 or zero.dtype not in (np.int8, np.uint8):
        return None
    return scale.item(), zero.item(), zero.dtype


def _quantises(node: Node) -> bool:
    return traits_of(node.operator).of is Op.QuantizeLinear


def _dequantises(node: Node) -> bool:
    return traits_of(node.operator).of is Op.DequantizeLinear


def _computes_bytes(node: Node) -> bool:
    """Return whether ``node`` computes numbers, and bytes between DequantizeLinear and QuantizeLinear."""
    traits = traits_of(node.operator)
    return traits.elements == "computed" and traits.quantisable == "yes"


def _rounded(
    scaling: _Scaling, bounds: tuple[float, float]
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return ``bounds`` as integers; None: they are no limits."""
    scale, zero, kind = scaling
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
_WHOLE = ("int8", "uint8", "int16", "uint16")


@dataclass
class _Values:
    """8-bit values with the same elements, moved, and the nodes that make numbers of them."""

    names: list[str]
    readers: list[Node] = field(default_factory=list)


def _moves(node: Node) -> bool:
    """Return whether ``node`` makes elements of its first input and no others: with steps as these have."""
    traits = traits_of(node.operator)
    return traits.permutes or traits.computes(Op.MaxPool)


class MakeUnsigned(Rewriter):
    """Lets no QuantizeLinear make signed 8-bit integers for other nodes."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        values = graph.values
        self._signed = {n for n in graph.inputs if n in values and values[n].dtype == "int8"}
        # By what reads unsigned integers instead of signed ones, its zero point.
        self._zero_points: dict[Node, str] = {}

    def replaced(self, node: Node) -> list[Node] | None:
        if _quantises(node) and self._makes_signed(node):
            raised = self._raised(node)
            return raised if raised == [node] else self._in_floats(raised)
        if _dequantises(node) and node.inputs[0] in self._signed:
            return self._again(node)
        if node in self._zero_points:
            return [node.replaced([*node.inputs[:2], self._zero_points[node]])]
        return None

    def _in_floats(self, nodes: list[Node]) -> list[Node]:
        """Return ``nodes``, of which the first quantises; a softmax before it stays one of floats.

        Of one between unsigned integers ONNX Runtime makes one of integers, which is no faster and off by a
        step here and there. It is not negative, so its absolute value is the same.
        """
        quantising, *others = nodes
        producer = self.makers.get(quantising.inputs[0])
        if producer is None or producer.operator != Op.Softmax:
            return nodes
        same = self.fresh(f"{producer.output}/same")
        return [
            self.node(Op.Abs, [producer.output], [same], same),
            quantising.replaced([same, *quantising.inputs[1:]]),
            *others,
        ]

    def _makes_signed(self, node: Node) -> bool:
        if node.inputs[0] in self.constants or not self._is_plain(node):
            return False
        return bool(self.constants[node.inputs[2]].dtype == np.int8)

    def _raised(self, node: Node) -> list[Node]:
        """Return ``node`` with unsigned results, and what makes signed ones again for callers."""
        values = self._moved(node.output)
        is_output = node.output in self.outputs
        # If it is an output, its readers and the caller need one each.
        if values is None or (is_output and values.readers):
            return [node]
        if is_output:
            return self._lowered(node)
        self.retyped.update(values.names)
        zero_point = self._raised_zero_point(node)
        self._zero_points |= {reader: self._raised_zero_point(reader) for reader in values.readers}
        return [node.replaced([*node.inputs[:2], zero_point])]

    def _moved(self, name: str) -> _Values | None:
        """Return the value ``name`` and those that it is moved to; None: another node reads one of them."""
        values = _Values([name])
        for value in values.names:
            for reader in self.readers[value]:
                if reader.inputs[0] != value or (_moves(reader) and len(reader.outputs) > 1):
                    return None
                if _moves(reader):
                    values.names.append(reader.output)
                elif _dequantises(reader) and self._is_plain(reader):
                    values.readers.append(reader)
                else:
                    return None
            if value in self.outputs and value != name:
                return None
        return values

    def _is_plain(self, node: Node) -> bool:
        """Return whether scales and zero points are constants, and not of blocks."""
        held = len(node.inputs) == _OPERANDS and self.numbers(node.inputs[2]) is not None
        return (
            held and node.inputs[1] in self.constants and not node.attributes.get("block_size", 0)
        )

    def _lowered(self, node: Node) -> list[Node]:
        """Return ``node`` with another result, and nodes that make the signed one of that."""
        given, scale = node.output, node.inputs[1]
        raised, number = self.fresh(f"{given}/unsigned"), self.fresh(f"{given}/number")
        zero_point = self._raised_zero_point(node)
        last = node.replaced([number, *node.inputs[1:]], name=self.fresh(f"{given}/signed"))
        first = node.replaced(outputs=[raised])
        return [
            first.replaced([*node.inputs[:2], self._raised_zero_point(first)]),
            self.node(Op.DequantizeLinear, [raised, scale, zero_point], [number], number),
            last,
        ]

    def _again(self, node: Node) -> list[Node]:
        """Return ``node``, and nodes that quantise what it makes of a signed input, unsigned."""
        if not self._is_plain(node) or node.output in self.outputs:
            return [node]
        number, scale = node.output, node.inputs[1]
        signed, raised = self.fresh(f"{number}/signed"), self.fresh(f"{number}/unsigned")
        zero_point = self._raised_zero_point(node)
        name = self.fresh(f"{number}/again")
        return [
            node.replaced(outputs=[signed]),
            self.node(Op.QuantizeLinear, [signed, scale, zero_point], [raised], raised),
            self.node(Op.DequantizeLinear, [raised, scale, zero_point], [number], name),
        ]

    def _raised_zero_point(self, node: Node) -> str:
        raised = self.constants[node.inputs[2]].astype(np.int16) + _UP
        return self.constant(f"{node.output}/zero_point", raised.astype(np.uint8))


def _is_passed(node: Node) -> bool:
    """Return whether ONNX Runtime moves DequantizeLinear and QuantizeLinear over ``node``, up to a pool."""
    return _moves(node) or node.operator == Op.Slice


class WriteScalars(Rewriter):
    """Writes scales and zero points around average pools as scalars, where they are vectors of one element.

    They are the same, but ONNX Runtime makes a pool of integers whatever they are, and refuses it then.
    Sums and products it leaves in floats where they are vectors; so they stay as they are.
    """

    def replaced(self, node: Node) -> list[Node] | None:
        if not self._is_around_pool(node) or node.attributes.get("block_size", 0):
            return None
        inputs = (node.inputs[0], *map(self._scalar, node.inputs[1:]))
        return None if inputs == node.inputs else [node.replaced(inputs)]

    def _scalar(self, name: str) -> str:
        """Return the constant ``name`` without its axis of one element, or what has other axes as it is."""
        array = self.constants.get(name)
        if array is None or array.shape != (1,):
            return name
        return self.constant(f"{name}/scalar", array.reshape(()))

    def _is_around_pool(self, node: Node) -> bool:
        if _dequantises(node):
            return self._leads_to_pool(node.output)
        before = self.makers.get(node.inputs[0]) if _quantises(node) else None
        while before is not None and _is_passed(before):
            before = self.makers.get(before.inputs[0])
        return before is not None and before.operator == Op.AveragePool

    def _leads_to_pool(self, name: str) -> bool:
        names = [name]
        for current in names:
            for reader in self.readers[current]:
                if reader.operator == Op.AveragePool:
                    return True
                names += reader.outputs[:1] if _is_passed(reader) else []
        return False


class WriteZeroPoints(Rewriter):
    """Gives operators on integers the zero points that they leave out: 0, of the type of the integers.

    Without them ONNX Runtime makes fewer operators of integers. And it moves DequantizeLinear over what
    moves elements, and quantises in between with its scale and zero point: where that is left out, to
    unsigned bytes, of whatever type the bytes are.
    """

    def replaced(self, node: Node) -> list[Node] | None:
        inputs = [*node.inputs]
        places = [
            place
            for place in traits_of(node.operator).scales(len(inputs))
            if inputs[place] in self.constants and not any(inputs[place + 1 : place + 2])
        ]
        data = inputs[0] if _dequantises(node) else next(iter(node.outputs), "")
        dtype = self._dtypes.get(data, "") if places else ""
        if dtype not in _WHOLE:
            return None
        for place in places:
            zeros = np.zeros(self.constants[inputs[place]].shape, dtype)
            inputs[place + 1 : place + 2] = [self.constant(f"{node.output}/zero", zeros)]
        return [node.replaced(inputs)]

    @cached_property
    def _dtypes(self) -> Mapping[str, str]:
        """Element types by name; ONNX Runtime's operators on bytes make what they are given."""
        dtypes = {name: array.dtype.name for name, array in self.constants.items()}
        dtypes |= element_types(self.graph)
        for node in self.graph.nodes:
            data = node.inputs[2:3] if node.operator == Op.QLinearConcat else node.inputs[:1]
            for name in node.made:
                dtypes[name] = dtypes.get(name) or dtypes.get(next(iter(data), ""), "")
        return dtypes


class LeaveTypesToZeroPoints(Rewriter):
    """Lets no QuantizeLinear say a type that its zero point says.

    ONNX Runtime writes both, and when it makes signed bytes unsigned it changes the zero point alone.
    """

    def replaced(self, node: Node) -> list[Node] | None:
        twice = node.attributes.get("output_dtype", 0) and any(node.inputs[2:])
        is_written = _quantises(node) and twice
        return [node.with_attributes(output_dtype=None)] if is_written else None


# Numbers of bytes that are only moved before they are the same bytes again.


class MoveBytes(Rewriter):
    """Moves bytes where the numbers that they stand for would be moved, and rounded to the same bytes.

    ONNX Runtime writes that where it moves the transposes of its kernels of integers past others: two more
    tensors of floats would have to be in memory at once, each four times as long.
    """

    def replaced(self, node: Node) -> list[Node] | None:
        mover = self.makers.get(node.inputs[0]) if _quantises(node) else None
        if mover is None or not traits_of(mover.operator).permutes:
            return None
        producer = self.makers.get(mover.inputs[0])
        scaling = _scaling(self.constants, node)
        if producer is None or not _dequantises(producer) or scaling is None:
            return None
        if scaling != _scaling(self.constants, producer):
            return None
        return [mover.replaced([producer.inputs[0], *mover.inputs[1:]], node.outputs, node.name)]
