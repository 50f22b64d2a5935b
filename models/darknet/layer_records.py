"""What a network is: layers in the order of the cfg, each with its shape, parameters and arrays.

Shapes of values are (channels, height, width); index -1 is the image.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from models.darknet.cfg import Section, SectionOptions

# What decides the computation of a layer, one record for each kind of section.


@dataclass(frozen=True)
class ConvolutionParameters:
    """``padding`` on all sides, times dilation; ``groups`` divide input and output channels."""

    size: int
    stride: tuple[int, int]  # x, y
    padding: int
    dilation: int
    groups: int
    activation: str


@dataclass(frozen=True)
class MaxPoolParameters:
    """``pads``: left, top, right, bottom; what is outside the input is never the maximum."""

    size: int
    stride: tuple[int, int]  # x, y
    pads: tuple[int, int, int, int]


@dataclass(frozen=True)
class DepthMaxPoolParameters:
    """Output channel k is the maximum of the channels k, k + ``channels``, k + 2 ``channels``..."""

    channels: int


@dataclass(frozen=True)
class AvgPoolParameters:
    """The mean of each channel."""


@dataclass(frozen=True)
class UpsampleParameters:
    """Each pixel becomes ``stride`` x ``stride`` equal ones, times ``scale``."""

    stride: int
    scale: float


@dataclass(frozen=True)
class ReorgParameters:
    """Darknet's own order of space to depth (``reorg_cpu``); see `models.darknet.layer_nodes`."""

    stride: int


@dataclass(frozen=True)
class CropParameters:
    """The centre of the image; ``adjust``: values from 0..1 to -1..1."""

    left: int
    top: int
    adjust: bool


@dataclass(frozen=True)
class RouteParameters:
    """Concatenates, of each input, part ``group`` of ``groups`` along the channels."""

    groups: int
    group: int


@dataclass(frozen=True)
class ShortcutParameters:
    """Adds layers to the previous one; ``strides[i]`` samples input i + 1.

    ``weights``: one for each input (per_feature), or for each of its channels too (per_channel).
    """

    strides: tuple[int, ...]
    weights: Literal["none", "per_feature", "per_channel"]
    normalization: Literal["none", "relu", "softmax"]
    activation: str


@dataclass(frozen=True)
class ProductParameters:
    """Elementwise product of two inputs, of which one may have one channel or one pixel."""

    activation: str


@dataclass(frozen=True)
class ConnectedParameters:
    """A matrix times the flattened input."""

    outputs: int
    activation: str


@dataclass(frozen=True)
class SoftmaxParameters:
    """Over each of ``groups`` equal parts of the flattened input."""

    groups: int
    temperature: float


@dataclass(frozen=True)
class IdentityParameters:
    """Dropout and cost, which only training has."""


@dataclass(frozen=True)
class YoloParameters:
    """``anchors`` are those of the mask, (width, height) in pixels of the network's input."""

    anchors: tuple[tuple[float, float], ...]
    classes: int
    scale_x_y: float
    new_coords: bool
    nms: Literal["greedy", "diou"]
    beta: float


@dataclass(frozen=True)
class RegionParameters:
    """``anchors`` are (width, height) in cells."""

    anchors: tuple[tuple[float, float], ...]
    classes: int
    softmax: bool


Parameters = (
    ConvolutionParameters
    | MaxPoolParameters
    | DepthMaxPoolParameters
    | AvgPoolParameters
    | UpsampleParameters
    | ReorgParameters
    | CropParameters
    | RouteParameters
    | ShortcutParameters
    | ProductParameters
    | ConnectedParameters
    | SoftmaxParameters
    | IdentityParameters
    | YoloParameters
    | RegionParameters
)

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


# A section while it becomes a layer: its options and the layers before it.


@dataclass(frozen=True)
class SectionScope:
    """A section and what comes before it: all that a layer is built from."""

    options: SectionOptions
    image: Shape
    before: Sequence[DarknetLayer]

    @property
    def index(self) -> int:
        return len(self.before)

    @property
    def input(self) -> Shape:
        """Shape of the previous layer's output."""
        return self.shape(self.index - 1)

    def shape(self, index: int) -> Shape:
        return self.image if index == IMAGE else self.before[index].shape

    def source(self, option: str, number: int) -> int:
        """Return the layer that ``number`` means: counted from here if negative.

        Raises:
            DarknetError: it is not a layer before this one.
        """
        index = number if number >= 0 else self.index + number
        if not 0 <= index < self.index:
            self.options.fail(f"{option}: {number} is no layer before this one", option)
        return index

    def layer(
        self,
        shape: Shape,
        parameters: Parameters,
        arrays: dict[str, tuple[int, ...]] | None = None,
        inputs: tuple[int, ...] | None = None,
    ) -> DarknetLayer:
        """Return the layer of this section; it reads the previous one unless ``inputs`` are given."""
        return DarknetLayer(
            self.index,
            self.options.section,
            self.options.kind,
            (self.index - 1,) if inputs is None else inputs,
            shape,
            parameters,
            tuple(
                WeightArray(f"layer{self.index}.{role}", dims)
                for role, dims in (arrays or {}).items()
            ),
        )
