"""Operators on elements: a function of each, or of two or more at the same place."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np

from models.network.activations import Activation, Arithmetic, Kind, Number
from models.network.node import NamedTensor, NodeReader, UnsuitedError
from models.network.records import OperatorRecord

_SQUARE = 2
_ARITHMETIC = get_args(Arithmetic)
_GELUS: Mapping[str, Kind] = {"none": "gelu", "tanh": "gelu_tanh"}
_UNBOUNDED = (-math.inf, math.inf)


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


def activation_of(
    record: OperatorRecord, inputs: Sequence[str], attributes: Mapping[str, Any], number: Number
) -> Activation | None:
    """Return the function of one number that a node is; None: it is none, or its parameters are not known.

    ``inputs``: their names. ``number``: of inputs that are constants.
    """
    if record.function == "clip":
        return _clip(inputs, attributes, number)
    return activation_with(record, attributes) if len(inputs) == 1 else None


def activation_with(record: OperatorRecord, attributes: Mapping[str, Any]) -> Activation | None:
    """Return the activation that ``record`` is with attributes; None: it is none, or one is no number."""
    if record.function is None or record.function in _ARITHMETIC:
        return None
    values = {name: attributes.get(name, default) for name, default in record.attributes.items()}
    if "approximate" in values:
        kind = _GELUS.get(values["approximate"])
        return None if kind is None else Activation(kind)
    if not all(isinstance(value, float | int) for value in values.values()):
        return None  # in an operator set that does not have the operator, it is unchecked
    return Activation(cast(Kind, record.function), *map(float, values.values()))


def _clip(
    inputs: Sequence[str], attributes: Mapping[str, Any], number: Number
) -> Activation | None:
    """Return Clip's bounds: attributes before operator set 11, inputs since, each of them optional."""
    bounds = [
        float(attributes.get(name, bound))
        for name, bound in zip(("min", "max"), _UNBOUNDED, strict=True)
    ]
    for position, name in enumerate(inputs[1:3]):
        if name:
            bound = number(name)
            if bound is None:
                return None
            bounds[position] = bound
    return Activation("clip", *bounds)


def clip_between(bounds: Sequence[float]) -> Activation:
    """Return a clip by its lower and its upper bound, as many of them as there are."""
    return Activation("clip", *(*bounds, *_UNBOUNDED[len(bounds) :])[:2])


def mapped(read: NodeReader) -> Map:
    """A function of each element."""
    node, x = read.node, read.floats(0)
    function = activation_of(read.record, node.inputs, node.attributes, read.known.number)
    if function is None:
        raise UnsuitedError("parameters that are not known")
    return Map(function=function, x=x, y=read.made(x))


def combined(read: NodeReader) -> Combine:
    """A function of two, or Max, Min, Sum of any number; a square is a product."""
    node, kind = read.node, cast(Arithmetic, read.record.function)
    if kind == "modulo" and not read.attribute("fmod"):
        # Of whole numbers, with the sign of the second.
        raise UnsuitedError("attributes that are not known")
    if kind == "power" and read.known.number(read.name(1)) == _SQUARE:
        x = read.floats(0)  # whatever the type of the exponent
        return Combine(kind="multiply", operands=(x, x), y=_whole(read, (x, read.value(1))))
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
