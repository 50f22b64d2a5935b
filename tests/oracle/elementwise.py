"""Arithmetic on each element, with broadcasting, and changes of type."""

from collections.abc import Callable

import numpy as np
from onnx import helper

from tests.oracle.base import Array, Call, Operator, wide


def _unary(function: Callable[[Array], Array]) -> Operator:
    def run(call: Call) -> list[Array]:
        x = call.input(0)
        return [function(wide(x)).astype(x.dtype)]

    return run


def _folded(function: Callable[[Array, Array], Array]) -> Operator:
    """Return an operator that joins its inputs, two or more, from the left."""

    def run(call: Call) -> list[Array]:
        x = call.input(0)
        result = wide(x)
        for position in range(1, len(call.inputs)):
            result = function(result, wide(call.input(position)))
        return [result.astype(x.dtype)]

    return run


def _divide(x: Array, y: Array) -> Array:
    """Divide; whole numbers are rounded towards zero."""
    if x.dtype.kind == "f":
        return np.divide(x, y)
    quotient = np.floor_divide(x, y)
    return np.asarray(quotient + ((quotient < 0) & (quotient * y != x)))


def _modulo(call: Call) -> list[Array]:
    """Mod, with the sign of the first or of the second number."""
    return _folded(np.fmod if call.attribute("fmod", 0) else np.mod)(call)


def _cast(call: Call) -> list[Array]:
    """Cast: float to integer drops the fraction."""
    dtype = helper.tensor_dtype_to_np_dtype(call.attribute("to"))
    return [call.input(0).astype(dtype)]


OPERATORS: dict[str, Operator] = {
    "Neg": _unary(np.negative),
    "Exp": _unary(np.exp),
    "Sqrt": _unary(np.sqrt),
    "Add": _folded(np.add),
    "Sum": _folded(np.add),
    "Sub": _folded(np.subtract),
    "Mul": _folded(np.multiply),
    "Div": _folded(_divide),
    "Max": _folded(np.maximum),
    "Min": _folded(np.minimum),
    "Mod": _modulo,
    "Pow": _folded(np.power),
    "Cast": _cast,
}
