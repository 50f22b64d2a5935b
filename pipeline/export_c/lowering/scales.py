"""How bytes stand for numbers.

Numbers are unsigned bytes everywhere in C: of a signed one the highest bit is flipped, and so is that of
its zero point. Sums are 32-bit integers; results are rounded to the nearest, half to even, and saturate.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.lowering.node import Operation

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


def scaled(operation: Operation, position: int) -> Scaled:
    """Return what the inputs ``position`` (scale) and the next (zero point) say."""
    scale, zeros = operation.constant(position), operation.constant(position + 1).reshape(-1)
    dtype = zeros.dtype.name
    if dtype not in FLIPS or scale.dtype != np.float32:
        operation.refuse(f"{dtype} with scales of {scale.dtype}; int8 and uint8 can be exported")
    if (zeros != zeros[0]).any():
        operation.refuse("zero points that differ from channel to channel")
    return Scaled(dtype, scale, int(zeros[0]) + FLIPS[dtype])


def signed(weights: NDArray[Any]) -> NDArray[np.int8]:
    """Return bytes as signed ones: unsigned ones less 128, as their zero point must be."""
    if weights.dtype == np.int8:
        return weights
    return (weights.astype(np.int16) - 128).astype(np.int8)
