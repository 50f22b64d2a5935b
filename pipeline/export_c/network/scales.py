"""How bytes stand for numbers.

Numbers are unsigned bytes everywhere in C: of a signed one the highest bit is flipped, and so is that of
its zero point. Sums are 32-bit integers; results are rounded to the nearest, half to even, and saturate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.node import NodeReader, UnsuitedError, Value

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

    def made(self, read: NodeReader, shape: Sequence[int]) -> Value:
        """Return the only output of a node, which is of such bytes."""
        return Value(name=read.output, dtype=self.dtype, shape=tuple(shape))


def scaled(read: NodeReader, position: int) -> Scaled:
    """Return what the inputs ``position`` (scale) and the next (zero point) say."""
    scale, zeros = read.constant(position), read.constant(position + 1).reshape(-1)
    dtype = zeros.dtype.name
    if dtype not in FLIPS or scale.dtype != np.float32:
        raise UnsuitedError(f"{dtype} with scales of {scale.dtype}; int8 and uint8 can be exported")
    if (zeros != zeros[0]).any():
        raise UnsuitedError("zero points that differ from channel to channel")
    return Scaled(dtype, scale, int(zeros[0]) + FLIPS[dtype])


def of_bytes(value: Value) -> Value:
    """Return ``value``, which must be bytes."""
    if value.dtype not in FLIPS:
        raise UnsuitedError(f"{value.dtype}; int8 and uint8 can be exported")
    return value


def signed(weights: NDArray[Any]) -> NDArray[np.int8]:
    """Return bytes as signed ones: unsigned ones less 128, as their zero point must be."""
    if weights.dtype == np.int8:
        return weights
    return (weights.astype(np.int16) - 128).astype(np.int8)
