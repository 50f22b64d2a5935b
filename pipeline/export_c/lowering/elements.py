"""Operators on elements: functions of one, and sums, products and the like of two that are broadcast."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from models.network.activations import Activation, Arithmetic, Kind
from models.network.node import NamedTensor, UnsuitedError
from models.network.operators.movement import broadcast_strides
from models.network.operators.reading import Combine, Map, Reshape
from pipeline.export_c.lowering.builder import StepBuilder
from pipeline.export_c.lowering.movement import join_dimensions, reshape
from pipeline.export_c.lowering.steps import After, Function, StructConstant

_LARGEST = float(np.finfo(np.float32).max)

_KERNELS = Path(__file__).resolve().parents[1] / "kernels"
#: What functions in C are called where it is not the name of the kind, which something else has there.
_CALLED: Mapping[str, Kind | Arithmetic] = {
    "error_function": "erf",
    "exponential": "exp",
    "gelu_by_tangent": "gelu_tanh",
    "hyperbolic_tangent": "tanh",
    "multiply_each": "multiply",
    "quick_gelu": "silu",
}


def _functions(file: str, first: str) -> Mapping[str, str]:
    """Return the functions in ``file`` whose parameters begin with ``first``, by kind."""
    text = (_KERNELS / file).read_text("ascii")
    names = re.findall(rf"^static void (\w+)\({re.escape(first)},", text, re.MULTILINE)
    return {_CALLED.get(name, name): name for name in names}


#: Functions of one number and of two.
FUNCTIONS = _functions("functions.c", "float *y, size_t n")
_PAIRS = _functions("elements.c", "const float *x, size_t dx")


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


def apply(to: StepBuilder, operator: Map) -> None:
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


def combine(to: StepBuilder, operator: Combine) -> None:
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


def _pair(
    to: StepBuilder, operator: Combine, one: NamedTensor, other: NamedTensor, y: NamedTensor
) -> None:
    """Add the step of two operands, each broadcast to the shape of ``y``."""
    strides = [broadcast_strides(value.shape, y.shape) for value in (one, other)]
    joined, (first, second) = join_dimensions(y.shape, strides)
    whole = [value.name for value in (one, other) if value.shape == y.shape]
    to.step(
        y,
        "combine",
        *(to.operand(one), to.operand(other), to.make(y)),
        StructConstant("pairs", {"size": joined, "first": first, "second": second}),
        Function(_PAIRS[operator.kind], ()),
        in_place=[name for name in dict.fromkeys(whole) if name not in to.constants],
        pointwise=True,
        after=After(function=function_of(operator.activation)),
    )
