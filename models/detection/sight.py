"""What a head sees before scores are compared, a block of its output at a time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: A head is decoded in blocks of about so many numbers, however low the threshold is.
BLOCK_NUMBERS = 1 << 14


@dataclass(frozen=True)
class Sight:
    """Boxes and scores of all classes, float32 [n, classes]; what the network gives may be nonsense.

    Boxes are float64 [n, 4]: centre x, y, width, height, relative to the network's input.
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float32]
