"""Operators that only rename or reorder axes."""

import math

import numpy as np

from tests.oracle.base import Array, Call, Operator


def _reshape(call: Call) -> list[Array]:
    """Reshape: 0 keeps a length (unless allowzero), -1 takes what is left."""
    x = call.input(0)
    lengths = call.integers(1, "shape")
    if lengths is None:
        raise ValueError("no shape")
    if not call.attribute("allowzero", 0):
        lengths = [length or x.shape[axis] for axis, length in enumerate(lengths)]
    return [x.reshape(lengths)]


def _flatten(call: Call) -> list[Array]:
    x = call.input(0)
    axis = call.attribute("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return [x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))]


def _squeeze(call: Call) -> list[Array]:
    axes = call.integers(1, "axes")
    return [np.squeeze(call.input(0), None if axes is None else tuple(axes))]


def _unsqueeze(call: Call) -> list[Array]:
    axes = call.integers(1, "axes")
    if axes is None:
        raise ValueError("no axes")
    return [np.expand_dims(call.input(0), tuple(axes))]


def _transpose(call: Call) -> list[Array]:
    return [np.transpose(call.input(0), call.attribute("perm"))]


OPERATORS: dict[str, Operator] = {
    "Identity": lambda call: [call.input(0)],
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
}
