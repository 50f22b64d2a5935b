"""What decides the computation of a layer, one record for each kind of section."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ConvolutionParameters:
    """``padding`` on all sides, times dilation; ``groups`` divide input and output channels."""

    filters: int
    size: int
    stride: tuple[int, int]  # x, y
    padding: int
    dilation: int
    groups: int
    batch_normalize: bool
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
    """Darknet's own order of space to depth (``reorg_cpu``); see `models.darknet.nodes.spatial`."""

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
    batch_normalize: bool
    activation: str


@dataclass(frozen=True)
class SoftmaxParameters:
    """Over each of ``groups`` equal parts of the flattened input."""

    groups: int
    temperature: float


@dataclass(frozen=True)
class IdentityParameters:
    """Dropout and cost, which only training knows."""


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
