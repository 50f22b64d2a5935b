"""What a convolution on channels-last tensors multiplies its weights with, as rows of a matrix."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """``pixels``: which pixel of the input each row of each window is, int32 [pixels out * kernel].

    The pixel behind the last one stands for what lies outside of the image. ``sides``: rows and columns
    of the kernel. ``outside``: whether any window reaches there. ``plain``: each window is its pixel.
    """

    pixels: NDArray[np.int32]
    sides: tuple[int, int]
    outside: bool

    @property
    def plain(self) -> bool:
        return np.array_equal(self.pixels, np.arange(len(self.pixels)))


def windows_of(given: Mapping[str, Any], before: Shape, kernel: Shape, after: Shape) -> Windows:
    """Return the windows of a convolution from ``before`` to ``after``, both [n, rows, columns, channels].

    ``given``: its attributes as ONNX names them. ``kernel``: [rows, columns].
    """
    strides = given.get("strides", (1, 1))
    dilations = given.get("dilations", (1, 1))
    images, inside = before[0], before[1:3]
    axes = []
    for axis in range(2):
        first = _begin(given, axis, before[1 + axis], kernel[axis], after[1 + axis])
        steps = np.arange(after[1 + axis])[:, None] * strides[axis]
        axes.append(steps + np.arange(kernel[axis]) * dilations[axis] - first)
    rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
    held = (rows >= 0) & (rows < inside[0]) & (columns >= 0) & (columns < inside[1])
    size = inside[0] * inside[1]
    outside = images * size
    image = np.arange(images)[:, None, None, None, None] * size
    pixels = np.where(held, image + rows * inside[1] + columns, outside)
    return Windows(pixels.reshape(-1).astype(np.int32), (kernel[0], kernel[1]), bool((~held).any()))


def _begin(given: Mapping[str, Any], axis: int, before: int, kernel: int, after: int) -> int:
    """Return how many pixels lie before the first of an axis."""
    padding = given.get("auto_pad", "NOTSET")
    if padding in ("NOTSET", "VALID"):
        pads = given.get("pads")
        return int(pads[axis]) if pads and padding == "NOTSET" else 0
    stride = given.get("strides", (1, 1))[axis]
    reach = (kernel - 1) * given.get("dilations", (1, 1))[axis] + 1
    total = max((after - 1) * stride + reach - before, 0)
    return int(total // 2 if padding == "SAME_UPPER" else total - total // 2)
