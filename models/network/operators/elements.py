"""Operators on elements: a function of each, or of two or more at the same place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from models.network.activations import (
    OPERATORS,
    PAIRS,
    SPELLINGS,
    Activation,
    Arithmetic,
    activation_of,
    arithmetic_of,
)
from models.network.node import NamedTensor, NodeReader, UnsuitedError

# Before this operator set the shape of the second operand said nothing about where it belongs.
_BROADCASTS = 7
_SQUARE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """``function`` of each element of ``x``."""

    function: Activation
    x: NamedTensor
    y: NamedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """``operands``, one or more, joined from the left, each broadcast to the shape of ``y``.

    ``activation``: of what comes out.
    """

    kind: Arithmetic
    operands: tuple[NamedTensor, ...]
    y: NamedTensor
    activation: Activation | None = None


def mapped(read: NodeReader) -> Map:
    """A function of each element."""
    node, x = read.node, read.floats(0)
    function = activation_of(node.operator, node.inputs, node.attributes, read.known.number)
    if function is None:
        raise UnsuitedError("parameters that are not known")
    return Map(function=function, x=x, y=read.made(x))


def combined(read: NodeReader) -> Combine:
    """A function of two, or Max, Min, Sum of any number; a square is a product."""
    node = read.node
    kind = arithmetic_of(node.operator, node.attributes)
    if kind is None:
        raise UnsuitedError("attributes that are not known")
    if kind == "power" and read.known.number(read.name(1)) == _SQUARE:
        x = read.floats(0)  # whatever the type of the exponent
        return Combine(kind="multiply", operands=(x, x), y=_whole(read, (x, read.value(1))))
    if node.opset < _BROADCASTS and read.attribute("broadcast"):
        raise UnsuitedError(f"broadcasting of opset {node.opset}")
    operands = tuple(read.floats(position) for position in range(len(node.inputs)))
    return Combine(kind=kind, operands=operands, y=_whole(read, operands))


def _whole(read: NodeReader, operands: Sequence[NamedTensor]) -> NamedTensor:
    """Return the output, of the shape of all ``operands`` together."""
    try:
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    except ValueError:
        shapes = " and ".join(str(list(operand.shape)) for operand in operands)
        raise UnsuitedError(f"shapes {shapes}") from None
    return read.made(operands[0], shape)


READERS: dict[str, Callable[[NodeReader], Map | Combine]] = {
    **dict.fromkeys(OPERATORS, mapped),
    **dict.fromkeys(PAIRS, combined),
}

#: Operators that make each element of elements at the same place, without their domains.
POINTWISE = frozenset(name.rpartition(".")[2] for name in READERS)
#: Those whose bits depend on how many elements there are.
UNEVEN = frozenset(name for name, spelling in SPELLINGS.items() if spelling.uneven)
#: Those of bytes with scales.
OF_BYTES = frozenset(("QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid"))
#: Those whose kernels read an element, compute, and write it: safe on the same memory. Of integers, too.
IN_PLACE = frozenset(
    (
        *("Add", "Clip", "Div", "HardSigmoid", "LeakyRelu", "Mul", "Neg", "Relu", "Sigmoid", "Sub"),
        "Tanh",
        *(*OF_BYTES, "QLinearConcat"),
    )
)
