"""Layers that read several others: route, shortcut, and products."""

from typing import Literal

from models.darknet.layers.layer import DarknetLayer, Shape
from models.darknet.layers.parameters import ProductParameters, RouteParameters, ShortcutParameters
from models.darknet.layers.scope import SectionScope
from models.darknet.layers.spatial import activation, times


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
    return scope.layer((total, height, width), RouteParameters(groups, group), inputs=inputs)


def shortcut(scope: SectionScope) -> DarknetLayer:
    """Return a [shortcut]; see `models.darknet.layers.layer.Shortcut` for what may differ in shape."""
    options = scope.options
    sources = tuple(scope.source("from", number) for number in options.integers("from"))
    weights = _weights(scope)
    normalization = _normalization(scope, weights)
    several = len(sources) > 1 or weights != "none"
    for index in sources:
        if several and scope.shape(index) != scope.input:
            _refuse(scope, index)
    strides = tuple(_stride(scope, index) for index in sources)
    one = (len(sources) + 1,)
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "none": {},
        "per_feature": {"weights": one},
        "per_channel": {"weights": (*one, scope.input[0])},
    }
    return scope.layer(
        scope.input,
        ShortcutParameters(strides, weights, normalization, activation(options)),
        shapes[weights],
        (scope.index - 1, *sources),
    )


def _weights(scope: SectionScope) -> Literal["none", "per_feature", "per_channel"]:
    kinds = ("none", "per_feature", "per_layer", "per_channel")
    match scope.options.choice("weights_type", "none", kinds):
        case "none":
            return "none"
        case "per_channel":
            return "per_channel"
        case _:
            return "per_feature"


def _normalization(scope: SectionScope, weights: str) -> Literal["none", "relu", "softmax"]:
    kinds = ("none", "relu", "avg_relu", "softmax")
    match scope.options.choice("weights_normalization", "none", kinds):
        case "softmax" if weights != "none":
            return "softmax"
        case "relu" | "avg_relu" if weights != "none":
            return "relu"
        case _:
            return "none"


def _stride(scope: SectionScope, index: int) -> int:
    """Return at which distance pixels of layer ``index`` are added (pjreddie's shortcut_cpu)."""
    _, height, width = scope.input
    _, source_height, source_width = scope.shape(index)
    stride = source_width // width
    if (source_width, source_height) != (width * stride, height * stride):
        _refuse(scope, index)
    return stride


def _refuse(scope: SectionScope, index: int) -> None:
    scope.options.fail(
        f"layer {index} gives {times(scope.shape(index))}, the previous layer"
        f" {times(scope.input)}: they cannot be added",
        "from",
    )


def scale_channels(scope: SectionScope) -> DarknetLayer:
    """The previous layer scales layer ``from``: each channel, or with scale_wh each pixel."""
    options = scope.options
    source = scope.source("from", options.integer("from", least=-scope.index - 1))
    channels, height, width = scope.shape(source)
    scales: Shape = (1, height, width) if options.flag("scale_wh") else (channels, 1, 1)
    if scope.input != scales:
        options.fail(
            f"layer {source} gives {times((channels, height, width))}, which the previous layer's"
            f" {times(scope.input)} cannot scale",
            "from",
        )
    inputs = (scope.index - 1, source)
    return scope.layer(
        (channels, height, width), ProductParameters(activation(options)), inputs=inputs
    )


def sam(scope: SectionScope) -> DarknetLayer:
    """Return a [sam]: the product of the previous layer and another of its shape."""
    options = scope.options
    source = scope.source("from", options.integer("from", least=-scope.index - 1))
    if scope.shape(source) != scope.input:
        options.fail(
            f"layer {source} gives {times(scope.shape(source))}, the previous layer"
            f" {times(scope.input)}: they cannot be multiplied",
            "from",
        )
    inputs = (scope.index - 1, source)
    return scope.layer(scope.input, ProductParameters(activation(options)), inputs=inputs)
