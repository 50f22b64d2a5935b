"""What a convolution on channels-last tensors multiplies its weights with, as rows of a matrix."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.network.windows import Windows


@dataclass(frozen=True)
class WindowPixels:
    """``pixels``: which pixel of the input each row of each of ``windows`` is, int32 [pixels out * kernel].

    The pixel behind the last one stands for what lies outside of the image. ``outside``: whether any window
    reaches there. ``plain``: each window is its pixel.
    """

    windows: Windows
    pixels: NDArray[np.int32]
    outside: bool

    @property
    def plain(self) -> bool:
        return np.array_equal(self.pixels, np.arange(len(self.pixels)))


def pixels_of(windows: Windows, images: int) -> WindowPixels:
    """Return the pixels that ``windows`` of rows and columns have on so many images."""
    rows, columns = (
        axis.begin(np.arange(made))[:, None] + np.arange(axis.kernel) * axis.dilation
        for axis, made in zip(windows.axes, windows.result, strict=True)
    )
    rows, columns = rows[:, None, :, None], columns[None, :, None, :]
    height, width = windows.size
    held = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    size = height * width
    image = np.arange(images)[:, None, None, None, None] * size
    pixels = np.where(held, image + rows * width + columns, images * size)
    return WindowPixels(windows, pixels.reshape(-1).astype(np.int32), bool((~held).any()))
