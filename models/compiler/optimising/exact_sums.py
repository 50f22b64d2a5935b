"""Weights of integers such that ONNX Runtime adds up their products exactly, whatever the processor.

Without dot products its kernels for x86 multiply an unsigned byte by a signed one and add two products up
in 16 bits, which saturate where weights exceed 64; those for Arm do with weights of -128. Its kernels for
two unsigned bytes widen them first, so that their sums are exact everywhere. So weights beyond that become
unsigned here, 128 more with a zero point 128 higher: the same numbers. Behind signed bytes they stay: its
kernels for these widen, too.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.graphs.graph import Graph
from models.graphs.rewriter import Rewriter
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node

# A constant, or the type of another value; None: nothing is known of it.
_Tensor = NDArray[Any] | Array | None
_Lookup = Callable[[str], _Tensor]

_UP = np.uint8(128)
# Of what is no constant.
_LARGEST = 128


class ExactSums(Rewriter):
    """Makes weights unsigned where sums of those beyond ``largest`` overflow.

    ``folder``: where large ones are to lie. ``around``: the same for the graph of which this is a body.
    """

    def __init__(
        self, graph: Graph, largest: int, folder: Path, around: "ExactSums | None" = None
    ) -> None:
        super().__init__(graph, folder)
        self._largest = largest
        self._folder = folder
        self._around = around
        self._unsigned: dict[str, str] = {}

    def replaced(self, node: Node) -> list[Node] | None:
        if node.bodies:
            return self._with_bodies(node)
        if _largest_weight(node, self._tensor) <= self._largest:
            return None
        inputs, before = [*node.inputs], list[Node]()
        for matrix in _matrices(node):
            inputs += [""] * (matrix.zero + 1 - len(inputs))
            for index in matrix:
                name = inputs[index]
                inputs[index] = self._constant(name) or self._computed(name, before)
        return [*before, node.replaced(inputs)]

    def _with_bodies(self, node: Node) -> list[Node] | None:
        bodies = {name: body for name, body in node.attributes.items() if isinstance(body, Graph)}
        exact = {
            name: ExactSums(body, self._largest, self._folder, self).run()
            for name, body in bodies.items()
        }
        if all(exact[name] is body for name, body in bodies.items()):
            return None
        return [replace(node, attributes={**node.attributes, **exact})]

    def _tensor(self, name: str) -> _Tensor:
        around = self._around._tensor if self._around else _nothing
        return _lookup_in(self.graph, around)(name)

    def _constant(self, name: str) -> str:
        """Return the constant ``name``, "" for zero, as unsigned bytes; "": it is computed."""
        if name not in self._unsigned:
            signed = self.constants.get(name) if name else np.array(0, np.int8)
            if signed is None:
                return self._around._constant(name) if self._around else ""
            array = np.asarray(signed.view(np.uint8) ^ _UP)
            self._unsigned[name] = self.constant(f"{name or 'zero'}/unsigned", array)
        return self._unsigned[name]

    def _computed(self, name: str, before: list[Node]) -> str:
        """Return ``name`` as unsigned bytes, which nodes in ``before`` are to compute."""
        step = self.constant(f"{name}/step", np.array(1, np.float32))
        zeros = (np.array(0, np.int8), np.array(_UP))
        zero, up = (self.constant(f"{name}/{array.dtype}", array) for array in zeros)
        floats, result = self.fresh(f"{name}/floats"), self.fresh(f"{name}/unsigned")
        before += [
            self.node(Op.DequantizeLinear, [name, step, zero], [floats], floats),
            self.node(Op.QuantizeLinear, [floats, step, up], [result], result),
        ]
        if name in self.values:
            shape = self.values[name].shape
            self.values[floats] = Array(dtype="float32", shape=shape)
            self.values[result] = Array(dtype="uint8", shape=shape)
        return result


def largest_signed(nodes: Iterable[Node], graph: Graph) -> int:
    """Return the size of the largest signed weight that ``nodes`` multiply unsigned bytes by."""
    lookup = _lookup_in(graph, _nothing)
    return max((_largest_inside(node, lookup) for node in nodes), default=0)


def _largest_inside(node: Node, lookup: _Lookup) -> int:
    """Return ``_largest_weight`` of ``node`` and the nodes inside of it."""
    inner = (
        _largest_inside(inner_node, _lookup_in(body, lookup))
        for body in node.bodies
        if isinstance(body, Graph)
        for inner_node in body.nodes
    )
    return max(inner, default=_largest_weight(node, lookup))


# What a node multiplies.


class _Matrix(NamedTuple):
    """Which inputs of a node are the bytes that it multiplies by, and their zero point."""

    weight: int
    zero: int


def _matrices(node: Node) -> list[_Matrix]:
    record = traits_of(node.operator)
    if record.elements != "quantised":
        return []
    weights, zeros = (
        [
            index
            for index, operand in enumerate(record.operands)
            if operand.role == role and operand.axis is not None
        ]
        for role in ("weight", "zero_point")
    )
    return [_Matrix(*pair) for pair in zip(weights, zeros, strict=True)] if zeros else []


def _largest_weight(node: Node, lookup: _Lookup) -> int:
    """Return the size of the largest signed weight that ``node`` multiplies unsigned bytes by."""
    matrices = _matrices(node)
    if not matrices or _is_signed(node, 0, _zero_of_data(node, matrices), lookup):
        return 0
    return max(_size(node, matrix, lookup) for matrix in matrices)


def _zero_of_data(node: Node, matrices: list[_Matrix]) -> int:
    """Return which input is the zero point of the first one; what there is none of is beyond all."""
    record = traits_of(node.operator)
    of_weights = {matrix.zero for matrix in matrices}
    zeros = (
        index
        for index in record.positions(len(node.inputs), "zero_point")
        if index not in of_weights and not record.operands[index].of_result
    )
    return next(zeros, len(node.inputs))


def _size(node: Node, matrix: _Matrix, lookup: _Lookup) -> int:
    """Return the size of the largest weight of ``matrix``; 0: they are unsigned."""
    if not _is_signed(node, matrix.weight, matrix.zero, lookup):
        return 0
    weight = lookup(node.inputs[matrix.weight])
    if not isinstance(weight, np.ndarray):
        return _LARGEST
    return max(int(weight.max(initial=0)), -int(weight.min(initial=0)))


def _is_signed(node: Node, index: int, zero: int, lookup: _Lookup) -> bool:
    """Return whether input ``index``, whose zero point is input ``zero``, are signed bytes."""
    tensors = (
        lookup(name) for operand in (index, zero) for name in node.inputs[operand : operand + 1]
    )
    dtypes = (str(tensor.dtype) for tensor in tensors if tensor is not None)
    return next(dtypes, "") == "int8"


def _nothing(_name: str) -> _Tensor:
    return None


def _lookup_in(graph: Graph, around: _Lookup) -> _Lookup:
    """Return what looks up a name in ``graph``, then ``around`` it."""

    def lookup(name: str) -> _Tensor:
        local: _Tensor = graph.constants.get(name)
        if local is None:
            local = graph.values.get(name)
        return around(name) if local is None else local

    return lookup
