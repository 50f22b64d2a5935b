"""Layers that read several others: route, shortcut, products. From a section to nodes, by kind."""

from dataclasses import dataclass
from typing import Literal

from models.darknet.graph import DarknetValue, LayerGraph, Shape, WeightArray, activate
from models.darknet.image_layers import activation
from models.darknet.layers import DarknetLayer, Operation, SectionScope, times


@dataclass(frozen=True)
class RouteOperation(Operation):
    """Concatenates, of each input, part ``group`` of ``groups`` along the channels."""

    groups: int
    group: int

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        images = [graph.spatial(x, f"image{number}").name for number, x in enumerate(inputs)]
        return graph.node("route", "Concat", *images, axis=1)

    def value(
        self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]
    ) -> DarknetValue:
        """Return the concatenation; one whole input is itself."""
        parts = [self._part(graph, x, number) for number, x in enumerate(inputs)]
        return parts[0] if len(parts) == 1 else super().value(graph, layer, parts)

    def _part(self, graph: LayerGraph, x: DarknetValue, number: int) -> DarknetValue:
        if self.groups == 1:
            return x
        channels, height, width = x.shape
        size = channels // self.groups
        image = graph.spatial(x, f"group{number}.image")
        bounds = self.group * size, (self.group + 1) * size
        return DarknetValue(
            _channels(graph, image.name, f"group{number}", *bounds), (size, height, width)
        )


def _channels(graph: LayerGraph, x: str, role: str, start: int, end: int) -> str:
    """Return the channels [start, end) of ``x``."""
    return graph.node(
        role,
        "Slice",
        x,
        graph.integers(f"{role}.starts", start),
        graph.integers(f"{role}.ends", end),
        graph.integers(f"{role}.axes", 1),
    )


def route(scope: SectionScope) -> DarknetLayer:
    """Return a [route]: the channels of its layers, one after the other."""
    groups = scope.options.integer("groups", 1)
    group = scope.options.integer("group_id", 0, least=0, most=groups - 1)
    return _of_groups(scope, groups, group)


def route_lhalf(scope: SectionScope) -> DarknetLayer:
    """Return a [route_lhalf] of forks (WongKinYiu's): the first half of the channels of each layer."""
    return _of_groups(scope, 2, 0)


def _of_groups(scope: SectionScope, groups: int, group: int) -> DarknetLayer:
    """Return the layer that joins part ``group`` of ``groups`` of the section's layers."""
    options = scope.options
    inputs = tuple(scope.source("layers", number) for number in options.integers("layers"))
    _, height, width = scope.shape(inputs[0])
    total = 0
    for index in inputs:
        channels, *size = scope.shape(index)
        if size != [height, width]:
            options.fail(
                f"layer {inputs[0]} gives {times(scope.shape(inputs[0]))}, layer {index}"
                f" {times(scope.shape(index))}: widths or heights differ",
                "layers",
            )
        if channels % groups:
            option = "groups" if options.has("groups") else "layers"
            options.fail(f"groups={groups} do not divide the {channels} channels", option)
        total += channels // groups
    return scope.layer((total, height, width), RouteOperation(groups, group), inputs=inputs)


@dataclass(frozen=True)
class ShortcutOperation(Operation):
    """Adds layers to the previous one; ``strides[i]`` samples input i + 1.

    Of other channels than the previous layer's the common ones are added.
    """

    strides: tuple[int, ...]
    activation: str

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        images = [graph.spatial(x, f"image{number}") for number, x in enumerate(inputs)]
        fitted = [
            _fitted(graph, x, layer.shape, stride, f"from{number}")
            for number, (x, stride) in enumerate(zip(images[1:], self.strides, strict=True), 1)
        ]
        return activate(graph, _sum(graph, [images[0].name, *fitted]), self.activation)


def _sum(graph: LayerGraph, names: list[str]) -> str:
    total = names[0]
    for number, name in enumerate(names[1:]):
        total = graph.node(f"add{number}" if number else "add", "Add", total, name)
    return total


def _fitted(graph: LayerGraph, x: DarknetValue, shape: Shape, stride: int, role: str) -> str:
    """Return every ``stride``-th pixel of ``x`` with as many channels as ``shape``, 0 in missing ones."""
    name, (channels, height, width) = x.name, x.shape
    if stride > 1:
        name = graph.node(
            f"{role}.sampled",
            "Slice",
            name,
            graph.integers(f"{role}.starts", 0, 0),
            graph.integers(f"{role}.ends", height, width),
            graph.integers(f"{role}.axes", 2, 3),
            graph.integers(f"{role}.steps", stride, stride),
        )
    if channels > shape[0]:
        return _channels(graph, name, f"{role}.first", 0, shape[0])
    if channels < shape[0]:
        pads = graph.integers(f"{role}.pads", 0, 0, 0, 0, 0, shape[0] - channels, 0, 0)
        return graph.node(f"{role}.padded", "Pad", name, pads)
    return name


# Of AlexeyAB's normalised weights: the least that relu gives, and what is added to their sum.
_LEAST_WEIGHT = 1e-3
_SUM_EPSILON = 1e-4


@dataclass(frozen=True)
class WeightedShortcutOperation(Operation):
    """Adds layers of one shape, each times its weight: a number, or one for each channel.

    ``normalization``: how weights become shares of 1.
    """

    normalization: Literal["none", "relu", "softmax"]
    activation: str

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        images = [graph.spatial(x, f"image{number}").name for number, x in enumerate(inputs)]
        weights = _split(graph, layer.arrays[0], self._shares(graph, layer.arrays[0]))
        weighted = [
            graph.node(f"weighted{number}", "Mul", image, weight)
            for number, (image, weight) in enumerate(zip(images, weights, strict=True))
        ]
        return activate(graph, _sum(graph, weighted), self.activation)

    def _shares(self, graph: LayerGraph, array: WeightArray) -> str:
        """Return the weights as they are used, in the shape of ``array``."""
        name = graph.weight(array)
        if self.normalization == "none":
            return name
        axis = graph.integers("weights.axis", 0)
        if self.normalization == "relu":
            least = graph.scalar("weights.least", _LEAST_WEIGHT)
            name = graph.node("weights.relu", "Max", name, least)
        else:
            largest = graph.node("weights.largest", "ReduceMax", name, axis, keepdims=1)
            name = graph.node(
                "weights.exp", "Exp", graph.node("weights.less", "Sub", name, largest)
            )
        total = graph.node("weights.total", "ReduceSum", name, axis, keepdims=1)
        sum_ = graph.node("weights.sum", "Add", total, graph.scalar("weights.eps", _SUM_EPSILON))
        return graph.node("weights.share", "Div", name, sum_)


def _split(graph: LayerGraph, array: WeightArray, shares: str) -> list[str]:
    """Return the weight of each input, [1, channels or 1, 1, 1]; ``shares`` has the shape of ``array``."""
    count, *channels = array.shape
    dims = graph.integers("weights.dims", count, *(channels or [1]), 1, 1)
    shaped = graph.node("weights.shaped", "Reshape", shares, dims)
    sizes = graph.integers("weights.sizes", *[1] * count)
    outputs = [f"weight{number}" for number in range(count)]
    return graph.nodes("weights.split", "Split", (shaped, sizes), outputs, axis=0)


# per_layer is another name of per_feature, and avg_relu one of relu.
_WEIGHTS = ("none", "per_feature", "per_layer", "per_channel")
_NORMALIZATIONS: dict[str, Literal["none", "relu", "softmax"]] = {
    "none": "none",
    "relu": "relu",
    "avg_relu": "relu",
    "softmax": "softmax",
}


def shortcut(scope: SectionScope) -> DarknetLayer:
    """Return a [shortcut]; one source may differ in shape as `ShortcutOperation` says, several may not."""
    options = scope.options
    sources = tuple(scope.source("from", number) for number in options.integers("from"))
    inputs = (scope.index - 1, *sources)
    weights = options.choice("weights_type", "none", _WEIGHTS)
    normalization = options.choice("weights_normalization", "none", tuple(_NORMALIZATIONS))
    for index in sources:
        if (len(sources) > 1 or weights != "none") and scope.shape(index) != scope.input:
            _refuse(scope, index, "added")
    if weights == "none":
        strides = tuple(_stride(scope, index) for index in sources)
        operation = ShortcutOperation(strides, activation(options))
        return scope.layer(scope.input, operation, inputs=inputs)
    channels = scope.input[:1] if weights == "per_channel" else ()
    weighted = WeightedShortcutOperation(_NORMALIZATIONS[normalization], activation(options))
    return scope.layer(scope.input, weighted, {"weights": (len(inputs), *channels)}, inputs)


def _stride(scope: SectionScope, index: int) -> int:
    """Return at which distance pixels of layer ``index`` are added (pjreddie's shortcut_cpu)."""
    _, height, width = scope.input
    _, source_height, source_width = scope.shape(index)
    stride = source_width // width
    if (source_width, source_height) != (width * stride, height * stride):
        _refuse(scope, index, "added")
    return stride


def _refuse(scope: SectionScope, index: int, what: str) -> None:
    scope.options.fail(
        f"layer {index} gives {times(scope.shape(index))}, the previous layer"
        f" {times(scope.input)}: they cannot be {what}",
        "from",
    )


@dataclass(frozen=True)
class ProductOperation(Operation):
    """Elementwise product of two inputs, of which the first may have one pixel or one channel."""

    activation: str

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        scales, x = (graph.spatial(value, f"image{number}") for number, value in enumerate(inputs))
        return activate(graph, graph.node("mul", "Mul", x.name, scales.name), self.activation)


def scale_channels(scope: SectionScope) -> DarknetLayer:
    """The previous layer scales layer ``from``: each channel, or with scale_wh each pixel."""
    options = scope.options
    source = _factor(scope)
    channels, height, width = scope.shape(source)
    scales: Shape = (1, height, width) if options.flag("scale_wh") else (channels, 1, 1)
    if scope.input != scales:
        options.fail(
            f"layer {source} gives {times((channels, height, width))}, which the previous layer's"
            f" {times(scope.input)} cannot scale",
            "from",
        )
    return _product(scope, source)


def sam(scope: SectionScope) -> DarknetLayer:
    """Return a [sam]: the product of the previous layer and another of its shape."""
    source = _factor(scope)
    if scope.shape(source) != scope.input:
        _refuse(scope, source, "multiplied")
    return _product(scope, source)


def _factor(scope: SectionScope) -> int:
    return scope.source("from", scope.options.integer("from", least=-scope.index - 1))


def _product(scope: SectionScope, source: int) -> DarknetLayer:
    operation = ProductOperation(activation(scope.options))
    return scope.layer(scope.shape(source), operation, inputs=(scope.index - 1, source))
