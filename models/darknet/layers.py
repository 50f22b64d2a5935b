"""What a network is: layers in the order of the cfg, each with its shape, arrays and what it computes.

Shapes of values are (channels, height, width); index -1 is the image.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from models.darknet.cfg import Section, SectionOptions
from models.darknet.graph import DarknetValue, LayerGraph, Shape, WeightArray

IMAGE = -1


class Operation(ABC):
    """What layers of a kind compute: what a section decides, and the nodes of ONNX that do it.

    ``flat``: a layer makes a vector [1, n].
    """

    flat: ClassVar[bool] = False

    @property
    def shrinks(self) -> float:
        """By what factor an image is smaller behind it."""
        return 1

    @abstractmethod
    def nodes(self, graph: LayerGraph, layer: "DarknetLayer", inputs: list[DarknetValue]) -> str:
        """Add the nodes of ``layer``, which reads ``inputs``; return what makes the result."""

    def value(
        self, graph: LayerGraph, layer: "DarknetLayer", inputs: list[DarknetValue]
    ) -> DarknetValue:
        """Add the nodes of ``layer``; return what it makes."""
        return DarknetValue(self.nodes(graph, layer, inputs), layer.shape, self.flat)


@dataclass(frozen=True)
class DarknetLayer:
    """``inputs``: all layers that it reads. ``arrays``: in the order of a .weights file."""

    index: int
    section: Section
    kind: str
    inputs: tuple[int, ...]
    shape: Shape
    operation: Operation
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
        operation: Operation,
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
            operation,
            tuple(
                WeightArray(f"layer{self.index}.{role}", dims)
                for role, dims in (arrays or {}).items()
            ),
        )


def times(shape: Shape) -> str:
    """Return a shape as text, width first as Darknet prints it."""
    channels, height, width = shape
    return f"{width}x{height}x{channels}"


# What convolutions and fully connected layers share.

# What AlexeyAB's normalize_cpu adds to the variance.
EPSILON = 1e-5


def norm_arrays(options: SectionOptions, channels: int) -> dict[str, tuple[int, ...]]:
    """Return what batch normalisation adds to a layer's biases; nothing where it has none."""
    if not options.flag("batch_normalize"):
        return {}
    return dict.fromkeys(("scales", "mean", "variance"), (channels,))


def normalize(graph: LayerGraph, x: str, biases: str, arrays: Sequence[str]) -> str:
    """Add batch normalisation with ``arrays`` scales, mean, variance, as a node of its own; if any."""
    if not arrays:
        return x
    scales, mean, variance = arrays
    inputs = (x, scales, biases, mean, variance)
    return graph.node("norm", "BatchNormalization", *inputs, epsilon=EPSILON)
