"""MACs, multiplications with an addition each, of a layer by the direct algorithm: counted here alone.

A layer multiplies each of its weights once for each position of its result: a pixel of an image, a row of a
matrix. A pack says no more of layers than what they read and make; a node that is read says its own.
"""

import math
from collections.abc import Iterable, Sequence


def weight_count(shapes: Iterable[Sequence[int]]) -> int:
    """Return how many weights a layer has whose constants have ``shapes``: those of the largest one."""
    return max(map(math.prod, shapes), default=0)


def macs(weights: int, positions: int) -> int:
    """Return the MACs of a layer with so many ``weights`` whose result has so many ``positions``."""
    return weights * positions
