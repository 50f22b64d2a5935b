"""Layers that see their input as one vector, read several others, or detect. From a section to nodes."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from models.darknet.graph import DarknetValue, LayerGraph, Shape, activate
from models.darknet.image_layers import activation
from models.darknet.layers import (
    DarknetLayer,
    Operation,
    SectionScope,
    norm_arrays,
    normalize,
    times,
)
from models.detection.recipe import DetectionHead


@dataclass(frozen=True)
class ConnectedOperation(Operation):
    """A matrix times the flattened input."""

    activation: str
    flat: ClassVar[bool] = True

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        biases, weights, *norm = [graph.weight(array) for array in layer.arrays]
        operands = [graph.flat(inputs[0]).name, weights, *([] if norm else [biases])]
        result = graph.node("gemm", "Gemm", *operands, transB=1)
        return activate(graph, normalize(graph, result, biases, norm), self.activation)


def connected(scope: SectionScope) -> DarknetLayer:
    """Return a [connected]; its array of weights is before those of batch normalisation."""
    options = scope.options
    outputs = options.integer("output", 1)
    arrays = {"biases": (outputs,), "weights": (outputs, math.prod(scope.input))}
    arrays |= norm_arrays(options, outputs)
    return scope.layer((outputs, 1, 1), ConnectedOperation(activation(options, "logistic")), arrays)


class SoftmaxOperation(Operation):
    """Over all numbers of the flattened input."""

    flat = True

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        return graph.node("softmax", "Softmax", graph.flat(inputs[0]).name, axis=1)


def softmax(scope: SectionScope) -> DarknetLayer:
    """Return a [softmax]."""
    return scope.layer((math.prod(scope.input), 1, 1), SoftmaxOperation())


class NothingOperation(Operation):
    """Dropout and cost, which only training has."""

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        return inputs[0].name

    def value(
        self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]
    ) -> DarknetValue:
        return inputs[0]


def identity(scope: SectionScope) -> DarknetLayer:
    """Return a layer that inference leaves out."""
    return scope.layer(scope.input, NothingOperation())


# Layers that read several others: route, shortcut, products.


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
    options = scope.options
    inputs = tuple(scope.source("layers", number) for number in options.integers("layers"))
    groups = options.integer("groups", 1)
    group = options.integer("group_id", 0, least=0, most=groups - 1)
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
            options.fail(f"groups={groups} do not divide the {channels} channels", "groups")
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
        total = images[0].name
        fitted = [
            _fitted(graph, x, layer.shape, stride, f"from{number}")
            for number, (x, stride) in enumerate(zip(images[1:], self.strides, strict=True), 1)
        ]
        for number, name in enumerate(fitted):
            total = graph.node(f"add{number}" if number else "add", "Add", total, name)
        return activate(graph, total, self.activation)


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


def shortcut(scope: SectionScope) -> DarknetLayer:
    """Return a [shortcut]; one source may differ in shape as `ShortcutOperation` says, several may not."""
    options = scope.options
    sources = tuple(scope.source("from", number) for number in options.integers("from"))
    for index in sources:
        if len(sources) > 1 and scope.shape(index) != scope.input:
            _refuse(scope, index, "added")
    operation = ShortcutOperation(
        tuple(_stride(scope, index) for index in sources), activation(options)
    )
    return scope.layer(scope.input, operation, inputs=(scope.index - 1, *sources))


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
    """Elementwise product of two inputs, of which the first has one pixel."""

    activation: str

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        scales, x = (graph.spatial(value, f"image{number}") for number, value in enumerate(inputs))
        return activate(graph, graph.node("mul", "Mul", x.name, scales.name), self.activation)


def scale_channels(scope: SectionScope) -> DarknetLayer:
    """Return a [scale_channels]: the previous layer scales each channel of layer ``from``."""
    options = scope.options
    source = scope.source("from", options.integer("from", least=-scope.index - 1))
    channels, height, width = scope.shape(source)
    if scope.input != (channels, 1, 1):
        options.fail(
            f"layer {source} gives {times((channels, height, width))}, which the previous layer's"
            f" {times(scope.input)} cannot scale",
            "from",
        )
    operation = ProductOperation(activation(options))
    return scope.layer((channels, height, width), operation, inputs=(scope.index - 1, source))


# Detection layers: what they need from the layer before them, and their anchors.

_NMS = ("default", "greedynms", "diounms", "cornersnms")


@dataclass(frozen=True)
class HeadOperation(Operation):
    """``anchors``: (width, height) of a yolo layer in pixels of the network's input, else in cells."""

    anchors: tuple[tuple[float, float], ...]
    classes: int

    @abstractmethod
    def head(self, output: str) -> DetectionHead:
        """Return what the recipe says of ``output``, which it makes."""


@dataclass(frozen=True)
class YoloOperation(HeadOperation):
    """What forward_yolo_layer gives: logistic of all but width and height, then x and y scaled."""

    scale_x_y: float
    new_coords: bool
    nms: Literal["greedy", "diou"]
    beta: float

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        x = graph.spatial(inputs[0])
        if self.new_coords:
            widths = {"xy": 2, "rest": 3 + self.classes}
            logistic: tuple[str, ...] = ()
        else:
            widths = {"xy": 2, "wh": 2, "rest": 1 + self.classes}
            logistic = ("xy", "rest")
        if self.new_coords and self.scale_x_y == 1:
            return x.name
        parts = _split(graph, x, widths, len(self.anchors))
        for role in logistic:
            parts[role] = _each(graph, role, "Sigmoid", parts[role])
        if self.scale_x_y != 1:
            parts["xy"] = _scaled(graph, self.scale_x_y, parts["xy"])
        return _joined(graph, "yolo", parts)

    def head(self, output: str) -> DetectionHead:
        return DetectionHead(
            output=output,
            kind="yolo",
            anchors=self.anchors,
            classes=self.classes,
            new_coords=self.new_coords,
            scale_x_y=self.scale_x_y,
        )


def _scaled(graph: LayerGraph, scale: float, parts: list[str]) -> list[str]:
    factor, shift = graph.scalar("scale", scale), graph.scalar("shift", -0.5 * (scale - 1))
    result = []
    for number, part in enumerate(parts):
        scaled = graph.node(f"xy{number}.scaled", "Mul", part, factor)
        result.append(graph.node(f"xy{number}.shifted", "Add", scaled, shift))
    return result


@dataclass(frozen=True)
class RegionOperation(HeadOperation):
    """What forward_region_layer gives: logistic of x, y and objectness, softmax over the classes."""

    softmax: bool

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        widths = {"xy": 2, "wh": 2, "object": 1, "classes": self.classes}
        parts = _split(graph, graph.spatial(inputs[0]), widths, len(self.anchors))
        for role in ("xy", "object"):
            parts[role] = _each(graph, role, "Sigmoid", parts[role])
        if self.softmax:
            parts["classes"] = _each(graph, "classes", "Softmax", parts["classes"], axis=1)
        return _joined(graph, "region", parts)

    def head(self, output: str) -> DetectionHead:
        return DetectionHead(
            output=output,
            kind="region",
            anchors=self.anchors,
            classes=self.classes,
            softmax=self.softmax,
        )


def _each(
    graph: LayerGraph, role: str, operator: str, parts: list[str], **attributes: int
) -> list[str]:
    return [
        graph.node(f"{role}{number}.{operator.lower()}", operator, part, **attributes)
        for number, part in enumerate(parts)
    ]


def _split(
    graph: LayerGraph, x: DarknetValue, widths: dict[str, int], anchors: int
) -> dict[str, list[str]]:
    """Return, for each role, the channels of each anchor."""
    sizes = graph.integers("split.sizes", *list(widths.values()) * anchors)
    outputs = [f"{role}{number}" for number in range(anchors) for role in widths]
    names = graph.nodes("split", "Split", (x.name, sizes), outputs, axis=1)
    return {role: names[position :: len(widths)] for position, role in enumerate(widths)}


def _joined(graph: LayerGraph, role: str, parts: dict[str, list[str]]) -> str:
    """Put the parts of the anchors together again: the reverse of ``_split``."""
    ordered = [part for anchor in zip(*parts.values(), strict=True) for part in anchor]
    return graph.node(role, "Concat", *ordered, axis=1)


def yolo(scope: SectionScope) -> DarknetLayer:
    """Return a [yolo] layer."""
    options = scope.options
    anchors = _anchors(scope)
    mask = options.integers("mask") if options.has("mask") else tuple(range(len(anchors)))
    for number in mask:
        if not 0 <= number < len(anchors):
            options.fail(f"mask: there is no anchor {number} among {len(anchors)}", "mask")
    diou = options.choice("nms_kind", "default", _NMS) == "diounms"
    operation = YoloOperation(
        tuple(anchors[number] for number in mask),
        _classes(scope, len(mask)),
        options.number("scale_x_y", 1.0),
        options.flag("new_coords"),
        "diou" if diou else "greedy",
        options.number("beta_nms", 0.6),
    )
    return scope.layer(scope.input, operation)


def region(scope: SectionScope) -> DarknetLayer:
    """Return a [region] layer, whose boxes have four coordinates."""
    anchors = _anchors(scope)
    classes = _classes(scope, len(anchors))
    return scope.layer(
        scope.input, RegionOperation(anchors, classes, scope.options.flag("softmax"))
    )


def _anchors(scope: SectionScope) -> tuple[tuple[float, float], ...]:
    options = scope.options
    numbers, num = options.numbers("anchors"), options.integer("num", 1)
    if len(numbers) != 2 * num:
        options.fail(f"num={num} anchors need {2 * num} numbers, not {len(numbers)}", "anchors")
    if min(numbers) <= 0:
        options.fail("anchors must be above 0", "anchors")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _classes(scope: SectionScope, anchors: int) -> int:
    """Return the classes, which must be those of other heads and fit the channels of the input."""
    classes = scope.options.integer("classes", 20)
    needed, channels = anchors * (5 + classes), scope.input[0]
    if channels != needed:
        scope.options.fail(
            f"{anchors} anchors of 5 + {classes} numbers need {needed} channels,"
            f" the previous layer has {channels}"
        )
    for layer in scope.before:
        if isinstance(layer.operation, HeadOperation) and layer.operation.classes != classes:
            scope.options.fail(
                f"classes={classes}, but layer {layer.index} has {layer.operation.classes}",
                "classes",
            )
    return classes
