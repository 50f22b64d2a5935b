"""What Darknet counts: layers, bytes of weights, and the memory of each layer."""

import math
from dataclasses import dataclass

from models.darknet.layers.layer import DarknetLayer, DarknetNetwork, Shape
from models.darknet.layers.parameters import ConvolutionParameters
from models.packs.records.ports import SourceSizes

_STATISTICS = (".mean", ".variance")


def source_sizes(network: DarknetNetwork) -> SourceSizes:
    """Return the counts: a layer is a section after [net]; arrays of batch normalisation are weights."""
    sizes = [layer.weight_bytes for layer in network.layers]
    return SourceSizes(
        tool="darknet",
        layers=len(sizes),
        weight_bytes=sum(sizes),
        largest_layer_bytes=max(sizes),
    )


def parameter_count(network: DarknetNetwork) -> int:
    """Return how many numbers training changes: all but the statistics of batch normalisation."""
    return sum(
        array.size
        for layer in network.layers
        for array in layer.arrays
        if not array.name.endswith(_STATISTICS)
    )


@dataclass(frozen=True)
class LayerSizes:
    """One layer; shapes are (channels, height, width), ``input_bytes`` are of all that it reads.

    ``weight_bytes`` are those of all arrays, ``filter_bytes`` without biases and batch normalisation.
    """

    index: int
    kind: str
    input: Shape
    output: Shape
    weight_bytes: int
    filter_bytes: int
    input_bytes: int
    output_bytes: int
    scratch_bytes: int

    @property
    def total_bytes(self) -> int:
        """What Table 2.1 counts: of the weights, only the filters."""
        return self.filter_bytes + self.input_bytes + self.output_bytes + self.scratch_bytes


def layer_sizes(network: DarknetNetwork) -> list[LayerSizes]:
    """Return the sizes of all layers, in bytes of float32.

    The rows are those of Table 2.1 in "Memory-Aware Fusing and Tiling of Neural Networks for Accelerated
    Edge Inference"; ``scratch_bytes`` is its Eq. 2.1: width x height of the output x filter length
    squared x channels / stride, of a convolution, for 1x1 filters too.
    """
    return [
        LayerSizes(
            layer.index,
            layer.kind,
            network.shape(layer.inputs[0]),
            layer.shape,
            layer.weight_bytes,
            4 * sum(array.size for array in layer.arrays if array.name.endswith(".weights")),
            4 * sum(math.prod(network.shape(index)) for index in layer.inputs),
            4 * math.prod(layer.shape),
            _scratch_bytes(layer),
        )
        for layer in network.layers
    ]


def _scratch_bytes(layer: DarknetLayer) -> int:
    if not isinstance(layer.parameters, ConvolutionParameters):
        return 0
    _, height, width = layer.shape
    _, channels, size, _ = layer.arrays[-1].shape
    return 4 * (width * height * size**2 * channels // layer.parameters.stride[0])
