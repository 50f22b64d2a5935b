"""The layout in blocks of channels (NCHWc) that processors compute convolutions in.

A blocked tensor has the shape [N, C, ...] with C a multiple of the block b, but its bytes are those of
[N, C / b, ..., b].
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def plain(x: NDArray[Any], block: int) -> NDArray[Any]:
    """Return the plain tensor [N, C, ...] whose blocked form ``x`` is.

    Raises:
        ValueError: C is not a multiple of ``block``.
    """
    batch, channels, *size = x.shape
    blocks = x.reshape(batch, channels // block, *size, block)
    return np.moveaxis(blocks, -1, 2).reshape(x.shape)


def blocked(x: NDArray[Any], block: int) -> NDArray[Any]:
    """Return the blocked form of ``x`` [N, C, ...]: the inverse of ``plain``, the same shape."""
    batch, channels, *size = x.shape
    blocks = x.reshape(batch, channels // block, block, *size)
    return np.moveaxis(blocks, 2, -1).reshape(x.shape)


def plain_weight(weight: NDArray[Any], block: int) -> NDArray[Any]:
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
