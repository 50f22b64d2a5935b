"""What the zoo knows of a network before it is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from models.errors import ModelError

# Narrower networks have layers without channels, wider ones are too large for any machine.
_LEAST_WIDTH, _MOST_WIDTH = 1 / 16, 8

Biases = Callable[[onnx.ModelProto], Mapping[str, NDArray[np.float32]]]


@dataclass(frozen=True)
class ZooEntry:
    """One network: what it is, how to make its skeleton, and which resolutions work.

    Args:
        parameters: trainable numbers at width 1 and the default resolution.
        definition: returns the skeleton (weights declared, not drawn) for a resolution in pixels.
        resolution: the default, in pixels.
        multiple: a resolution must be divisible by it.
        scaled: as ``definition`` with a factor for all channels, for networks that have one.
        biases: returns, for a skeleton, the arrays that are given and not drawn, by name.
        calibration: see ``calibration_resolution``; four times ``multiple`` when None.
    """

    name: str
    description: str
    parameters: int
    definition: Callable[[int], onnx.ModelProto]
    resolution: int = 224
    multiple: int = 32
    scaled: Callable[[int, float], onnx.ModelProto] | None = None
    biases: Biases | None = None
    calibration: int | None = None

    @property
    def calibration_resolution(self) -> int:
        """Where weights are calibrated if they have the same shapes there: small, so that it is quick."""
        return self.calibration or 4 * self.multiple

    def checked_resolution(self, resolution: int | None) -> int:
        """Return ``resolution``, or the default for None.

        Raises:
            ModelError: the network's strides do not divide it.
        """
        size = self.resolution if resolution is None else resolution
        if size < self.multiple or size % self.multiple:
            raise ModelError(
                f"zoo: {self.name}: resolution {size} is not a multiple of {self.multiple}"
            )
        return size

    def skeleton(self, resolution: int, width: float = 1.0) -> onnx.ModelProto:
        """Return the network without weights.

        Raises:
            ModelError: it has no such width.
        """
        if width == 1:
            return self.definition(resolution)
        if self.scaled is None:
            raise ModelError(f"zoo: {self.name}: its width is fixed")
        if not _LEAST_WIDTH <= width <= _MOST_WIDTH:
            raise ModelError(
                f"zoo: {self.name}: width {width:g} is not from {_LEAST_WIDTH:g} to {_MOST_WIDTH:g}"
            )
        return self.scaled(resolution, width)
