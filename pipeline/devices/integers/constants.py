"""Constants of a quantised piece in one block of memory, as long as the piece is bound."""

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 16
Tensors = Mapping[str, NDArray[Any]]


def constant_bytes(tensors: Tensors) -> int:
    """Return how many bytes ``tensors`` take in one block."""
    return sum(map(_aligned, tensors.values()))


def in_one_block(tensors: Tensors) -> tuple[dict[str, NDArray[Any]], NDArray[np.uint8]]:
    """Return copies of ``tensors``, and the block that they lie in.

    An array takes half a kilobyte beside its numbers, and a piece has sixteen with a few numbers each.
    """
    block = np.empty(constant_bytes(tensors), np.uint8)
    starts = accumulate(map(_aligned, tensors.values()), initial=0)
    placed = {}
    for (name, tensor), (start, _) in zip(tensors.items(), pairwise(starts), strict=True):
        place = block[start : start + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
        place[...] = tensor
        placed[name] = place
    return placed, block


def _aligned(tensor: NDArray[Any]) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
