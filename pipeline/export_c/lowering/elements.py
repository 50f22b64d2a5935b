"""Operators on elements: functions of one, and sums, products and the like of two that are broadcast."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from models.network.activations import Activation, Arithmetic, Kind
from models.network.node import UnsuitedError, Value
from models.network.operators import Combine, Map, Reshape
from models.network.operators.movement import broadcast_strides
from pipeline.export_c.lowering.builder import Builder
from pipeline.export_c.lowering.movement import join_dimensions, reshape
from pipeline.export_c.lowering.steps import ADD, After, Function, Record

_LARGEST = float(np.finfo(np.float32).max)

#: The functions in C.
FUNCTIONS: Mapping[Kind, str] = {
    "absolute": "absolute",
    "clip": "clip",
    "elu": "elu",
    "erf": "error_function",
    "exp": "exponential",
    "gelu": "gelu",
    "gelu_tanh": "gelu_by_tangent",
    "hard_sigmoid": "hard_sigmoid",
    "hard_swish": "hard_swish",
    "leaky_relu": "leaky_relu",
    "negative": "negative",
    "reciprocal": "reciprocal",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "silu": "quick_gelu",
    "tanh": "hyperbolic_tangent",
}
_PAIRS: Mapping[Arithmetic, str] = {
    "add": ADD,
    "divide": "divide",
    "larger": "larger",
    "multiply": "multiply_each",
    "scale_negative": "scale_negative",
    "smaller": "smaller",
    "subtract": "subtract",
}


def function_of(activation: Activation | None) -> Function:
    """Return what C calls ``activation``, and the numbers that it takes; None: no function."""
    if activation is None:
        return Function()
    name = FUNCTIONS.get(activation.kind)
    if name is None:
        raise UnsuitedError(f"{activation.kind} has no function in C")
    numbers = activation.alpha, activation.beta
    if activation.kind == "clip":
        numbers = max(numbers[0], -_LARGEST), min(numbers[1], _LARGEST)
    return Function(name, numbers)


def apply(to: Builder, operator: Map) -> None:
    """Add a function of each element."""
    x, y = operator.x, operator.y
    to.step(
        y,
        "apply",
        *(to.operand(x), to.make(y), math.prod(x.shape)),
        in_place=(x.name,),
        pointwise=True,
        after=After(function=function_of(operator.function)),
    )


def combine(to: Builder, operator: Combine) -> None:
    """Add an operator of one operand, of two, or of several, pair by pair."""
    first, *others = operator.operands
    if operator.kind not in _PAIRS:
        raise UnsuitedError(f"{operator.kind} has no function in C, but for squares")
    if not others:
        reshape(to, Reshape(x=first, y=operator.y))
        return
    for number, other in enumerate(others, 1):
        if number == len(others):
            _pair(to, operator, first, other, operator.y)
        else:
            shape = np.broadcast_shapes(first.shape, other.shape)
            made = operator.y.shaped(shape, f"{operator.y.name}/{number}")
            _pair(to, replace(operator, activation=None), first, other, made)
            first = made


def _pair(to: Builder, operator: Combine, one: Value, other: Value, y: Value) -> None:
    """Add the step of two operands, each broadcast to the shape of ``y``."""
    strides = [broadcast_strides(value.shape, y.shape) for value in (one, other)]
    joined, (first, second) = join_dimensions(y.shape, strides)
    whole = [value.name for value in (one, other) if value.shape == y.shape]
    to.step(
        y,
        "combine",
        *(to.operand(one), to.operand(other), to.make(y)),
        Record("pairs", {"size": joined, "first": first, "second": second}),
        Function(_PAIRS[operator.kind], ()),
        in_place=[name for name in dict.fromkeys(whole) if name not in to.constants],
        pointwise=True,
        after=After(function=function_of(operator.activation)),
    )
