"""The blocked layout (NCHWc): converted at each operator's edge, computed by the plain operators."""

from collections.abc import Callable

import numpy as np

from tests.oracle.activation import activate
from tests.oracle.base import Array, Call, Operator
from tests.oracle.convolution import convolve
from tests.oracle.pooling import average_pool, max_pool
from tests.oracle.reduction import global_average, global_max

# The layout in blocks of channels (NCHWc) that processors compute convolutions in.
#
# A blocked tensor has the shape [N, C, ...] with C a multiple of the block b, but its bytes are those of
# [N, C / b, ..., b].


def plain(x: Array, block: int) -> Array:
    """Return the plain tensor [N, C, ...] whose blocked form ``x`` is.

    Raises:
        ValueError: C is not a multiple of ``block``.
    """
    batch, channels, *size = x.shape
    blocks = x.reshape(batch, channels // block, *size, block)
    return np.moveaxis(blocks, -1, 2).reshape(x.shape)


def plain_weight(weight: Array, block: int) -> Array:
    """Return the plain weight [O, I, ...] of a blocked one.

    Its bytes are those of [O / b, I / b, ..., b of I, b of O], or, with less than a block of input
    channels (a first layer, one channel a group), of [O / b, I, ..., b of O].
    """
    rows, depth, *kernel = weight.shape
    if depth < block:
        split = weight.reshape(rows // block, depth, *kernel, block)
        return np.moveaxis(split, -1, 1).reshape(weight.shape)
    split = weight.reshape(rows // block, depth // block, *kernel, block, block)
    return np.moveaxis(split, (-1, -2), (1, 3)).reshape(weight.shape)


def blocked(x: Array, block: int) -> Array:
    """Return the blocked form of ``x`` [N, C, ...]: the inverse of ``plain``, the same shape."""
    batch, channels, *size = x.shape
    blocks = x.reshape(batch, channels // block, block, *size)
    return np.moveaxis(blocks, 2, -1).reshape(x.shape)


def _conv(call: Call) -> list[Array]:
    """Conv with inputs X, W, B, Sum: the activation is that of the convolution plus Sum."""
    x, block = call.input(0), call.block
    group = call.attribute("group", 1)
    # An input of less than a block of channels, such as an image, is read as it is.
    if group > 1 or x.shape[1] >= block:
        x = plain(x, block)
    weight = plain_weight(call.input(1), block)
    result = convolve(call, x, weight, call.optional(2), group)
    addend = call.optional(3)
    if addend is not None:
        result += plain(addend, block)
    parameters = call.attribute("activation_params", ())
    result = activate(result, call.attribute("activation"), parameters)
    return [blocked(result.astype(x.dtype), block)]


def _between(function: Callable[[Call, Array], Array]) -> Operator:
    """Return the operator that computes ``function`` of a plain tensor on a blocked one."""

    def run(call: Call) -> list[Array]:
        return [blocked(function(call, plain(call.input(0), call.block)), call.block)]

    return run


def _reorder_input(call: Call) -> list[Array]:
    """ReorderInput: plain to blocked; channels that fill the last block are zero."""
    x = call.input(0)
    if call.attribute("channels_last", 0):
        x = np.moveaxis(x, -1, 1)
    missing = -x.shape[1] % call.block
    x = np.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))
    return [blocked(x, call.block)]


def _reorder_output(call: Call) -> list[Array]:
    """ReorderOutput: blocked to plain, the first ``channels`` channels."""
    x = plain(call.input(0), call.block)[:, : call.attribute("channels")]
    return [np.moveaxis(x, 1, -1) if call.attribute("channels_last", 0) else x]


def _upsample(call: Call, x: Array) -> Array:
    """Upsample, mode nearest: each element as often as ``scales`` says."""
    for axis, scale in enumerate(call.attribute("scales")):
        x = np.repeat(x, scale, axis)
    return x


OPERATORS: dict[str, Operator] = {
    "Conv": _conv,
    "MaxPool": _between(max_pool),
    "AveragePool": _between(average_pool),
    "GlobalMaxPool": _between(lambda _, x: global_max(x)),
    "GlobalAveragePool": _between(lambda _, x: global_average(x)),
    "ReorderInput": _reorder_input,
    "ReorderOutput": _reorder_output,
    "Upsample": _between(_upsample),
}
