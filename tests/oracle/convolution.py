"""Conv, and Conv with a sum and an activation fused into it."""

import math

import numpy as np

from tests.oracle.activation import activate
from tests.oracle.base import Array, Call, Operator
from tests.oracle.window import window


def convolve(call: Call, x: Array, weight: Array, bias: Array | None, group: int) -> Array:
    """Return the convolution, float64 [N, O, ...].

    Args:
        call: gives strides, dilations and pads.
        x: [N, C, ...].
        weight: [O, C / group, ...].
        bias: [O], or None.
        group: into how many parts the channels fall; parts see nothing of each other.

    Raises:
        ValueError: the shapes do not fit each other.
    """
    batch, channels = x.shape[:2]
    rows, depth, *kernel = weight.shape
    if channels != depth * group or rows % group:
        raise ValueError(f"weight {list(weight.shape)} in {group} groups, input {list(x.shape)}")
    frame = window(call, kernel, x.shape[2:])
    pixels = math.prod(frame.result)
    grouped = weight.astype(np.float64).reshape(group, rows // group, depth, *kernel)
    matrices = np.moveaxis(grouped, (0, 1, 2), (-3, -2, -1))  # [*kernel, group, rows, depth]
    total = np.zeros((batch, group, rows // group, pixels), np.float64)
    # One product of matrices for each place in the kernel needs no unrolled copy of the input.
    for place, part in frame.places(frame.padded(x.astype(np.float64), 0)):
        total += matrices[place] @ part.reshape(batch, group, depth, pixels)
    result: Array = total.reshape(batch, rows, *frame.result)
    if bias is not None:
        result += bias.reshape(-1, *[1] * len(kernel))
    return result


def _conv(call: Call) -> list[Array]:
    """Conv and FusedConv: a fourth input is added before the activation."""
    x = call.input(0)
    group = call.attribute("group", 1)
    result = convolve(call, x, call.input(1), call.optional(2), group)
    addend = call.optional(3)
    if addend is not None:
        result += addend
    parameters = call.attribute("activation_params", ())
    return [activate(result, call.attribute("activation"), parameters).astype(x.dtype)]


OPERATORS: dict[str, Operator] = {"Conv": _conv}
FUSED_OPERATORS: dict[str, Operator] = {"FusedConv": _conv}
