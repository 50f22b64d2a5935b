"""Blocks of YOLOv5, YOLOv8 and YOLO11, under the names that their authors gave them."""

import math
from collections.abc import Callable

from models.zoo.builder import SkeletonBuilder, ZooTensor

_EPSILON = 1e-3
Block = Callable[[ZooTensor], ZooTensor]


class Net(SkeletonBuilder):
    """A network whose channels and repeats come from a table and are scaled."""

    def __init__(self, name: str, resolution: int, width: float, depth: float) -> None:
        super().__init__(name, resolution)
        self._width = width
        self._depth = depth

    def wide(self, channels: int) -> int:
        """Return the scaled number of ``channels``, a multiple of 8."""
        return math.ceil(channels * self._width / 8) * 8

    def deep(self, repeats: int) -> int:
        """Return the scaled number of ``repeats``."""
        return max(round(repeats * self._depth), 1)

    def unit(
        self,
        x: ZooTensor,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        pad: int | None = None,
        groups: int = 1,
        active: bool = True,
    ) -> ZooTensor:
        """Convolution, batch norm and SiLU: what the tables call Conv."""
        pads = None if pad is None else (pad, pad, pad, pad)
        y = self.norm(self.conv(x, channels, kernel, stride, groups=groups, pads=pads), _EPSILON)
        return self.silu(y) if active else y

    def bottleneck(
        self, x: ZooTensor, channels: int, hidden: int, first: int, add: bool = True
    ) -> ZooTensor:
        """Two convolutions, of ``first`` and 3 pixels, around a shortcut."""
        y = self.unit(self.unit(x, hidden, first), channels, 3)
        return self.add(x, y) if add else y

    def c3(
        self, x: ZooTensor, channels: int, repeats: int, first: int = 1, add: bool = True
    ) -> ZooTensor:
        """Half of the channels through bottlenecks, the other half beside them."""
        half = channels // 2
        y = self.unit(x, half)
        for _ in range(repeats):
            y = self.bottleneck(y, half, half, first, add)
        return self.unit(self.concat(y, self.unit(x, half)), channels)

    def c2f(self, x: ZooTensor, channels: int, half: int, blocks: list[Block]) -> ZooTensor:
        """Two halves; each of ``blocks`` adds another to what is joined."""
        parts = self.split(self.unit(x, 2 * half), (half, half))
        for block in blocks:
            parts.append(block(parts[-1]))
        return self.unit(self.concat(*parts), channels)

    def sppf(self, x: ZooTensor, channels: int) -> ZooTensor:
        """Maxima over 5, 9 and 13 pixels, joined."""
        parts = [self.unit(x, x.channels // 2)]
        for _ in range(3):
            parts.append(self.max_pool(parts[-1], 5, 1, pad=2))
        return self.unit(self.concat(*parts), channels)
