"""How bytes stand for numbers.

Numbers are unsigned bytes everywhere in C: of a signed one the highest bit is flipped, and so is that of
its zero point. Sums are 32-bit integers; results are rounded to the nearest, half to even, and saturate.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.node import UnsuitedError

FLIPS = {"uint8": 0, "int8": 128}


@dataclass(frozen=True)
class Scaled:
    """How bytes stand for numbers: ``scale`` times (byte - ``zero``); ``flip``: the bit of signed ones."""

    dtype: str
    scale: NDArray[np.float32]
    zero: int

    @property
    def flip(self) -> int:
        return FLIPS[self.dtype]

    @property
    def plain_zero(self) -> int:
        """The zero point as it is written."""
        return self.zero - self.flip

    @property
    def one(self) -> float:
        """The scale, where there is one for all."""
        return float(self.scale.reshape(-1)[0])


def scaled(scale: NDArray[Any], zeros: NDArray[Any]) -> Scaled:
    """Return what scales and zero points of bytes say."""
    zero, dtype = zeros.reshape(-1)[0], zeros.dtype.name
    if (zeros != zero).any():
        raise UnsuitedError("zero points that differ from channel to channel")
    return Scaled(dtype, scale, int(zero) + FLIPS[dtype])
