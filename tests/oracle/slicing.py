"""Operators that take tensors apart, join them, or surround them."""

import itertools

import numpy as np

from tests.oracle.base import Array, Call, Operator


def _concat(call: Call) -> list[Array]:
    parts = [call.input(position) for position in range(len(call.inputs))]
    return [np.concatenate(parts, call.attribute("axis", 1))]


def _split(call: Call) -> list[Array]:
    """Split: into given lengths, or into equal ones of which the last may be shorter."""
    x = call.input(0)
    axis = call.attribute("axis", 0)
    lengths = call.integers(1, "split")
    if lengths is None:
        count = call.attribute("num_outputs", call.outputs)
        lengths = [-(-x.shape[axis] // count)] * (count - 1)
    elif sum(lengths) != x.shape[axis]:
        raise ValueError(f"lengths {lengths} of an axis of {x.shape[axis]}")
    else:
        lengths = lengths[:-1]
    return np.split(x, list(itertools.accumulate(lengths)), axis)


def _slice(call: Call) -> list[Array]:
    """Slice: bounds beyond the input are cut to it, negative ones count from its end."""
    x = call.input(0)
    starts, ends = call.integers(1, "starts"), call.integers(2, "ends")
    if starts is None or ends is None:
        raise ValueError("no bounds")
    axes = call.integers(3, "axes") or range(len(starts))
    steps = call.integers(4, "steps") or [1] * len(starts)
    cut = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # To Python -1 is the last element; to ONNX an end this low means "up to the first one".
        past_first = step < 0 and end < -x.shape[axis]
        cut[axis] = slice(start, None if past_first else end, step)
    return [x[tuple(cut)]]


def _pad(call: Call) -> list[Array]:
    """Pad with a constant; negative pads cut elements off."""
    x = call.input(0)
    pads = call.integers(1, "pads")
    if pads is None:
        raise ValueError("no pads")
    axes = call.integers(3, "axes") or range(x.ndim)
    around = [(0, 0)] * x.ndim
    for axis, begin, end in zip(axes, pads, pads[len(pads) // 2 :], strict=False):
        around[axis] = (begin, end)
    value = call.optional(2)
    constant = call.attribute("value", 0.0) if value is None else value.item()
    cut = tuple(
        slice(max(-begin, 0), length - max(-end, 0))
        for length, (begin, end) in zip(x.shape, around, strict=True)
    )
    grown = [(max(begin, 0), max(end, 0)) for begin, end in around]
    return [np.pad(x[cut], grown, constant_values=constant)]


OPERATORS: dict[str, Operator] = {
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
}
