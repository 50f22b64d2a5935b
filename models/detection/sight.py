"""What a head sees before scores are compared, a block of its output at a time."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", np.float32, np.float64)

#: A head is decoded in blocks of about so many numbers, however low the threshold is.
BLOCK_NUMBERS = 1 << 14


@dataclass(frozen=True)
class Sight:
    """Boxes and scores of all classes, float32 [n, classes]; what the network gives may be nonsense.

    Boxes are float64 [n, 4]: centre x, y, width, height, relative to the network's input.
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float32]


def logistic(values: NDArray[Real]) -> NDArray[Real]:
    """Return 1 / (1 + exp(-x)) of each value."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-values)))


def softmax(values: NDArray[Real]) -> NDArray[Real]:
    """Return the shares of each row that ``values`` are logarithms of."""
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))
