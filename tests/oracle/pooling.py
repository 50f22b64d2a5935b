"""Pools with a window."""

import numpy as np

from tests.oracle.base import Array, Call, Operator
from tests.oracle.window import window


def max_pool(call: Call, x: Array) -> Array:
    """Return the largest number under each window, [N, C, ...], of ``x`` [N, C, ...]."""
    frame = window(call, call.attribute("kernel_shape"), x.shape[2:])
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    result = np.full((*x.shape[:2], *frame.result), lowest, x.dtype)
    for _, part in frame.places(frame.padded(x, lowest)):
        np.maximum(result, part, out=result)
    return result


def average_pool(call: Call, x: Array) -> Array:
    """Return the mean under each window, [N, C, ...], of ``x`` [N, C, ...].

    Padding counts as zeros with count_include_pad, else not at all; what lies past the padding
    (with ceil_mode) never counts.
    """
    frame = window(call, call.attribute("kernel_shape"), x.shape[2:])
    total = np.zeros((*x.shape[:2], *frame.result))
    for _, part in frame.places(frame.padded(x.astype(np.float64), 0)):
        total += part
    padding = 1.0 if call.attribute("count_include_pad", 0) else 0.0
    counted = frame.padded(np.ones((1, 1, *x.shape[2:])), padding, beyond=0.0)
    count = np.zeros((1, 1, *frame.result))
    for _, part in frame.places(counted):
        count += part
    return (total / count).astype(x.dtype)


OPERATORS: dict[str, Operator] = {
    "MaxPool": lambda call: [max_pool(call, call.input(0))],
    "AveragePool": lambda call: [average_pool(call, call.input(0))],
}
