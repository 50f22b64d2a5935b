"""Operators that scale numbers by other numbers: batch norm, response norm, softmax."""

import math

import numpy as np

from tests.oracle.base import Array, Call, Operator, wide

# Before this opset Softmax saw its input as a matrix, cut in two at its axis.
_SOFTMAX_OF_ONE_AXIS = 13


def _batch_norm(call: Call) -> list[Array]:
    """BatchNormalization with given statistics: inputs X [N, C, ...], then four vectors [C]."""
    x = call.input(0)
    scale, bias, mean, variance = (
        wide(call.input(position)).reshape(-1, *[1] * (x.ndim - 2)) for position in range(1, 5)
    )
    deviation = np.sqrt(variance + call.attribute("epsilon", 1e-5))
    return [((wide(x) - mean) / deviation * scale + bias).astype(x.dtype)]


def _response_norm(call: Call) -> list[Array]:
    """LRN: each channel over a power of the squares of ``size`` channels around it."""
    x = wide(call.input(0))
    size, channels = call.attribute("size"), x.shape[1]
    before = (size - 1) // 2
    pads = [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2)
    squares = np.pad(x * x, pads)
    total = sum(squares[:, start : start + channels] for start in range(size))
    base = call.attribute("bias", 1.0) + call.attribute("alpha", 1e-4) / size * total
    return [(x / base ** call.attribute("beta", 0.75)).astype(call.input(0).dtype)]


def _softmax(call: Call) -> list[Array]:
    x = call.input(0)
    if call.opset >= _SOFTMAX_OF_ONE_AXIS:
        return [softmax(wide(x), call.attribute("axis", -1)).astype(x.dtype)]
    axis = call.attribute("axis", 1) % x.ndim
    rows = wide(x).reshape(math.prod(x.shape[:axis]), -1)
    return [softmax(rows, 1).reshape(x.shape).astype(x.dtype)]


def softmax(x: Array, axis: int) -> Array:
    """Return positive numbers whose sum along ``axis`` is 1, of the shape of ``x``."""
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


OPERATORS: dict[str, Operator] = {
    "BatchNormalization": _batch_norm,
    "LRN": _response_norm,
    "Softmax": _softmax,
}
