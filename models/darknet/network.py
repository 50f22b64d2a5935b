"""From sections to layers with shapes, and what Darknet counts of them: without a single weight.

Invariant: every layer reads the image or layers before it, shapes are positive, and no tensor or array
is larger than `MAX_ELEMENTS`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from models.darknet import image_layers, joining_layers, vector_layers
from models.darknet.cfg import DarknetError, Section, SectionOptions
from models.darknet.graph import Shape
from models.darknet.image_layers import ConvolutionOperation
from models.darknet.layers import DarknetLayer, DarknetNetwork, SectionScope, times
from models.packs.records.ports import SourceSizes

# 1 GiB of float32; all weights together: 4 GiB.
MAX_ELEMENTS = 1 << 28
MAX_WEIGHTS = 1 << 30

_BUILDERS: dict[str, Callable[[SectionScope], DarknetLayer]] = {
    "convolutional": image_layers.convolutional,
    "maxpool": image_layers.maxpool,
    "avgpool": image_layers.avgpool,
    "upsample": image_layers.upsample,
    "reorg": image_layers.reorg,
    "crop": image_layers.crop,
    "route": joining_layers.route,
    "route_lhalf": joining_layers.route_lhalf,
    "shortcut": joining_layers.shortcut,
    "scale_channels": joining_layers.scale_channels,
    "sam": joining_layers.sam,
    "connected": vector_layers.connected,
    "softmax": vector_layers.softmax,
    "dropout": vector_layers.identity,
    "cost": vector_layers.identity,
    "yolo": vector_layers.yolo,
    "region": vector_layers.region,
}


def build_network(
    sections: Sequence[Section], where: str = "network", resolution: int | None = None
) -> DarknetNetwork:
    """Return the layers that ``sections`` (the first one is [net]) describe.

    Args:
        sections: of a cfg file or made by a definition.
        where: what errors start with, such as the name of the file.
        resolution: width and height of the image in pixels instead of those in [net].

    Raises:
        DarknetError: what a section says is unknown, impossible or not supported.
    """
    if not sections or SectionOptions(sections[0], where, -1).kind != "net":
        raise DarknetError(f"{where}: does not start with a section [net]")
    if resolution is not None:
        sections = _at_resolution(sections, where, resolution)
    net, image = _image(SectionOptions(sections[0], where, -1))
    layers: list[DarknetLayer] = []
    for index, section in enumerate(sections[1:]):
        options = SectionOptions(section, where, index)
        if options.kind == "net":
            options.fail("there is a section [net] already")
        options.check_names()
        layers.append(_BUILDERS[options.kind](SectionScope(options, image, layers)))
        _check_sizes(options, layers[-1])
    _check_all(where, layers)
    channels, height, width = image
    return DarknetNetwork(net, width, height, channels, tuple(layers), _outputs(layers))


def _at_resolution(sections: Sequence[Section], where: str, resolution: int) -> list[Section]:
    """Return ``sections`` for square images; a crop keeps its part of the image, as in Darknet."""
    net = SectionOptions(sections[0], where, -1)
    sides = {"width": net.integer("width"), "height": net.integer("height")}
    changed = [_with(sections[0], {side: str(resolution) for side in sides})]
    for index, section in enumerate(sections[1:]):
        options = SectionOptions(section, where, index)
        crop = {f"crop_{side}": old for side, old in sides.items() if options.kind == "crop"}
        scaled = {key: options.integer(key, 1) * resolution // old for key, old in crop.items()}
        changed.append(_with(section, {key: str(max(side, 1)) for key, side in scaled.items()}))
    return changed


def _with(section: Section, options: dict[str, str]) -> Section:
    return replace(section, options={**section.options, **options}) if options else section


def _image(options: SectionOptions) -> tuple[Section, Shape]:
    options.check_names()
    width, height, channels = (options.integer(side) for side in ("width", "height", "channels"))
    if width * height * channels > MAX_ELEMENTS:
        options.fail(f"an image of {width}x{height}x{channels} is larger than any network's")
    return options.section, (channels, height, width)


def _check_sizes(options: SectionOptions, layer: DarknetLayer) -> None:
    if math.prod(layer.shape) > MAX_ELEMENTS:
        options.fail(f"its output of {times(layer.shape)} is larger than any network's")
    for array in layer.arrays:
        if array.size > MAX_ELEMENTS:
            options.fail(f"{array.name} {list(array.shape)} is larger than any network's")


def _check_all(where: str, layers: list[DarknetLayer]) -> None:
    if not any(layer.kind not in ("cost", "dropout") for layer in layers):
        raise DarknetError(f"{where}: no layers in it")
    numbers = sum(array.size for layer in layers for array in layer.arrays)
    if numbers > MAX_WEIGHTS:
        raise DarknetError(f"{where}: {numbers} weights are more than any network has")


def _outputs(layers: list[DarknetLayer]) -> tuple[int, ...]:
    detections = tuple(x.index for x in layers if x.kind in ("yolo", "region"))
    return detections or (max(x.index for x in layers if x.kind != "cost"),)


# What Darknet counts: layers, bytes of weights, and the memory of each layer.


def source_sizes(network: DarknetNetwork) -> SourceSizes:
    """Return the counts: a layer is a section after [net]; arrays of batch normalisation are weights."""
    sizes = [layer.weight_bytes for layer in network.layers]
    return SourceSizes(
        tool="darknet",
        layers=len(sizes),
        weight_bytes=sum(sizes),
        largest_layer_bytes=max(sizes),
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
    if not isinstance(layer.operation, ConvolutionOperation):
        return 0
    _, height, width = layer.shape
    _, channels, size, _ = layer.operation.arrays_of(layer)[-1].shape
    return 4 * (width * height * size**2 * channels // layer.operation.stride[0])
