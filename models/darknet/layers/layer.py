"""What a network is: layers in the order of the cfg, each with its shape, parameters and arrays.

Shapes of values are (channels, height, width); index -1 is the image.
"""

import math
from dataclasses import dataclass

from models.darknet.cfg.section import Section
from models.darknet.layers.parameters import Parameters

Shape = tuple[int, int, int]

IMAGE = -1


@dataclass(frozen=True)
class WeightArray:
    """Float32 numbers that are together in a .weights file, with their shape in ONNX."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class DarknetLayer:
    """``inputs``: all layers that it reads. ``arrays``: in the order of a .weights file."""

    index: int
    section: Section
    kind: str
    inputs: tuple[int, ...]
    shape: Shape
    parameters: Parameters
    arrays: tuple[WeightArray, ...] = ()

    @property
    def weight_bytes(self) -> int:
        return 4 * sum(array.size for array in self.arrays)


@dataclass(frozen=True)
class DarknetNetwork:
    """``outputs``: all detection layers, or else the last layer that is not [cost]."""

    net: Section
    width: int
    height: int
    channels: int
    layers: tuple[DarknetLayer, ...]
    outputs: tuple[int, ...]

    @property
    def sections(self) -> tuple[Section, ...]:
        """What the network was built from, with the resolution that it has."""
        return (self.net, *(layer.section for layer in self.layers))

    def shape(self, index: int) -> Shape:
        """Return the shape of what layer ``index`` gives."""
        if index == IMAGE:
            return self.channels, self.height, self.width
        return self.layers[index].shape
