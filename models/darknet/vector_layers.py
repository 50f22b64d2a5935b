"""Layers that see their input as one vector, or detect. From a section to nodes, by kind."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from models.darknet.graph import DarknetValue, LayerGraph, activate
from models.darknet.image_layers import activation
from models.darknet.layers import (
    DarknetLayer,
    Operation,
    SectionScope,
    norm_arrays,
    normalize,
)
from models.detection.heads import DetectionHead


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


@dataclass(frozen=True)
class SoftmaxOperation(Operation):
    """Over each of ``groups`` equal parts of the flattened input, divided by ``temperature``."""

    groups: int
    temperature: float
    flat: ClassVar[bool] = True

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        name, count = graph.flat(inputs[0]).name, layer.shape[0]
        if self.temperature != 1:
            divisor = graph.scalar("temperature", self.temperature)
            name = graph.node("tempered", "Div", name, divisor)
        if self.groups == 1:
            return graph.node("softmax", "Softmax", name, axis=1)
        rows = graph.integers("groups.shape", self.groups, count // self.groups)
        grouped = graph.node("groups", "Reshape", name, rows)
        parts = graph.node("softmax", "Softmax", grouped, axis=1)
        shape = graph.integers("softmax.shape", 1, count)
        return graph.node("softmax.flat", "Reshape", parts, shape)


def softmax(scope: SectionScope) -> DarknetLayer:
    """Return a [softmax] over all numbers of its input."""
    count = math.prod(scope.input)
    groups = scope.options.integer("groups", 1)
    if count % groups:
        scope.options.fail(f"groups={groups} do not divide the {count} numbers of its input")
    operation = SoftmaxOperation(groups, scope.options.number("temperature", 1.0))
    return scope.layer((count, 1, 1), operation)


@dataclass(frozen=True)
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
    listed = options.integers("mask") if options.has("mask") else None
    mask = tuple(range(options.integer("num", 1))) if listed is None else listed
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
    anchors = _anchors(scope)[: scope.options.integer("num", 1)]
    classes = _classes(scope, len(anchors))
    return scope.layer(
        scope.input, RegionOperation(anchors, classes, scope.options.flag("softmax"))
    )


def _anchors(scope: SectionScope) -> tuple[tuple[float, float], ...]:
    """Return all anchors that are listed; masks name those beyond ``num``, too (cspx-p7-mish.cfg).

    Darknet then reads past the end of its array; those who trained such networks in PyTorch had all.
    """
    options = scope.options
    numbers, num = options.numbers("anchors"), options.integer("num", 1)
    if len(numbers) < 2 * num or len(numbers) % 2:
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
