"""Convolutions by constant weights: what regions ask of one, and change in it.

The struct and the call that it becomes are written in lowering/convolution.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.operators.reading import Convolution
from models.network.windows import Window, Windows
from pipeline.export_c.network.scales import Scaled


@dataclass(frozen=True, slots=True)
class ElementStrides:
    """How many elements it is from one row, one pixel and one channel to the next."""

    line: int
    pixel: int
    channel: int


def layout_of(size: tuple[int, ...], channels: int, *, last: bool = False) -> ElementStrides:
    """Return how ``size`` rows and columns lie, with channels last or in front."""
    rows, columns = size
    return (
        ElementStrides(columns * channels, channels, 1)
        if last
        else ElementStrides(columns, 1, rows * columns)
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class LoweredLayer:
    """``operator``, whose shapes have channels in front, and what its kernel is given.

    ``weight`` has a row for each filter. ``x``, ``y``: how that lies which it reads and makes.
    ``in_part``: only those rows are there that a band needs. ``scales``: of bytes, those of ``x``, weights
    and ``y``; None: they are floats.
    """

    operator: Convolution
    weight: NDArray[Any]
    bias: NDArray[Any] | None
    x: ElementStrides
    y: ElementStrides
    in_part: bool = False
    scales: tuple[Scaled, Scaled, Scaled] | None = None

    @property
    def kernel(self) -> str:
        return "convolve" if self.scales is None else "convolve_bytes"

    @property
    def plane(self) -> Windows:
        return self.operator.windows.on_a_plane

    @property
    def rows(self) -> Window:
        return self.plane.axes[0]

    @property
    def channels(self) -> int:
        return self.operator.x.shape[1]

    @property
    def factors(self) -> NDArray[np.float32] | None:
        """Of bytes: what the sums of each filter are multiplied by."""
        if self.scales is None:
            return None
        given, weight, made = self.scales
        # In this order, as ONNX Runtime does: each operation rounds.
        factor = np.float32(given.one) * weight.scale.reshape(-1) / np.float32(made.one)
        return np.ascontiguousarray(np.broadcast_to(factor, len(self.weight)), np.float32)
