"""Layers as nodes of ONNX, by kind."""

import math

from models.darknet.graph import DarknetValue, LayerGraph, activate
from models.darknet.layer_records import (
    ConnectedParameters,
    ConvolutionParameters,
    CropParameters,
    DarknetLayer,
    DepthMaxPoolParameters,
    MaxPoolParameters,
    ProductParameters,
    RegionParameters,
    ReorgParameters,
    RouteParameters,
    Shape,
    ShortcutParameters,
    SoftmaxParameters,
    UpsampleParameters,
    YoloParameters,
)

# What AlexeyAB's normalize_cpu adds to the variance.
EPSILON = 1e-5


def convolution(
    graph: LayerGraph, layer: DarknetLayer, p: ConvolutionParameters, x: DarknetValue
) -> str:
    """Conv, BatchNormalization as a node of its own, activation."""
    biases, *norm, weights = [graph.weight(array) for array in layer.arrays]
    conv = graph.node(
        "conv",
        "Conv",
        graph.spatial(x).name,
        weights,
        *(() if norm else (biases,)),
        kernel_shape=[p.size] * 2,
        strides=[p.stride[1], p.stride[0]],
        pads=[p.padding] * 4,
        dilations=[p.dilation] * 2,
        group=p.groups,
    )
    normed = _normalize(graph, conv, biases, norm) if norm else conv
    return activate(graph, normed, p.activation)


def _normalize(graph: LayerGraph, x: str, biases: str, arrays: list[str]) -> str:
    """Add batch normalisation with ``arrays`` scales, mean, variance."""
    scales, mean, variance = arrays
    inputs = (x, scales, biases, mean, variance)
    return graph.node("norm", "BatchNormalization", *inputs, epsilon=EPSILON)


def maxpool(graph: LayerGraph, p: MaxPoolParameters, x: DarknetValue) -> str:
    """Add a pool whose pads differ from side to side."""
    left, top, right, bottom = p.pads
    return graph.node(
        "maxpool",
        "MaxPool",
        graph.spatial(x).name,
        kernel_shape=[p.size] * 2,
        strides=[p.stride[1], p.stride[0]],
        pads=[top, left, bottom, right],
    )


def depth_maxpool(graph: LayerGraph, p: DepthMaxPoolParameters, x: DarknetValue) -> str:
    """Add the maximum over every `channels`-th channel."""
    channels, height, width = x.shape
    dims = (1, channels // p.channels, p.channels, height, width)
    parts = graph.node(
        "maxpool.parts", "Reshape", x.name, graph.integers("maxpool.parts.shape", *dims)
    )
    axis = graph.integers("maxpool.axis", 1)
    return graph.node("maxpool", "ReduceMax", parts, axis, keepdims=0)


def avgpool(graph: LayerGraph, x: DarknetValue) -> str:
    """Add the mean of each channel."""
    return graph.node("avgpool", "GlobalAveragePool", graph.spatial(x).name)


def upsample(graph: LayerGraph, p: UpsampleParameters, x: DarknetValue) -> str:
    """Resize; its factors are a node, since as an initializer they would be counted as weights."""
    factors = [1.0, 1.0, p.stride, p.stride]
    large = graph.node(
        "upsample",
        "Resize",
        graph.spatial(x).name,
        "",
        graph.node("upsample.factors", "Constant", value_floats=factors),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    if p.scale == 1:
        return large
    return graph.node("scaled", "Mul", large, graph.scalar("scale", p.scale))


def reorg(graph: LayerGraph, layer: DarknetLayer, p: ReorgParameters, x: DarknetValue) -> str:
    """Darknet's reorg_cpu with forward=0, which reads its input as if it had another shape.

    X is the input seen as (c / s^2, h * s, w * s). The flat output, seen as (c, h, w), has
    X[k % oc, j * s + off // s, i * s + off % s] at (k, j, i), where oc = c / s^2 and off = k // oc;
    the result is the flat output seen as (c * s^2, h / s, w / s).
    """
    channels, height, width = x.shape
    s = p.stride
    dims = (1, channels // s**2, height, s, width, s)
    seen = graph.node("reorg.seen", "Reshape", x.name, graph.integers("reorg.seen.shape", *dims))
    moved = graph.node("reorg.moved", "Transpose", seen, perm=[0, 3, 5, 1, 2, 4])
    return graph.node("reorg", "Reshape", moved, graph.integers("reorg.shape", 1, *layer.shape))


def crop(graph: LayerGraph, layer: DarknetLayer, p: CropParameters, x: DarknetValue) -> str:
    """Add a cut, and the crop layer's own scaling."""
    _, height, width = layer.shape
    part = graph.node(
        "crop",
        "Slice",
        graph.spatial(x).name,
        graph.integers("crop.starts", p.top, p.left),
        graph.integers("crop.ends", p.top + height, p.left + width),
        graph.integers("crop.axes", 2, 3),
    )
    if not p.adjust:
        return part
    double = graph.node("crop.double", "Mul", part, graph.scalar("crop.two", 2))
    return graph.node("crop.adjusted", "Sub", double, graph.scalar("crop.one", 1))


# Fully connected layers, softmax and detection layers as ONNX nodes.


def connected(
    graph: LayerGraph, layer: DarknetLayer, p: ConnectedParameters, x: DarknetValue
) -> str:
    """Gemm, BatchNormalization as a node of its own, activation."""
    biases, weights, *norm = [graph.weight(array) for array in layer.arrays]
    inputs = [graph.flat(x).name, weights, *([] if norm else [biases])]
    result = graph.node("gemm", "Gemm", *inputs, transB=1)
    normed = _normalize(graph, result, biases, norm) if norm else result
    return activate(graph, normed, p.activation)


def softmax(graph: LayerGraph, p: SoftmaxParameters, x: DarknetValue) -> str:
    """Add the softmax of each group of the flattened input."""
    name, count = graph.flat(x).name, math.prod(x.shape)
    if p.temperature != 1:
        name = graph.node("tempered", "Div", name, graph.scalar("temperature", p.temperature))
    if p.groups == 1:
        return graph.node("softmax", "Softmax", name, axis=1)
    rows = graph.integers("groups.shape", p.groups, count // p.groups)
    parts = graph.node("softmax", "Softmax", graph.node("groups", "Reshape", name, rows), axis=1)
    return graph.node("softmax.flat", "Reshape", parts, graph.integers("softmax.shape", 1, count))


def yolo(graph: LayerGraph, p: YoloParameters, x: DarknetValue) -> str:
    """What forward_yolo_layer gives: logistic of all but width and height, then x and y scaled."""
    if p.new_coords:
        widths = {"xy": 2, "rest": 3 + p.classes}
        logistic: tuple[str, ...] = ()
    else:
        widths = {"xy": 2, "wh": 2, "rest": 1 + p.classes}
        logistic = ("xy", "rest")
    if p.new_coords and p.scale_x_y == 1:
        return x.name
    parts = _split(graph, x, widths, len(p.anchors))
    for role in logistic:
        parts[role] = [
            graph.node(f"{role}{number}.sigmoid", "Sigmoid", part)
            for number, part in enumerate(parts[role])
        ]
    if p.scale_x_y != 1:
        parts["xy"] = _scaled(graph, p.scale_x_y, parts["xy"])
    return _joined(graph, "yolo", parts)


def _scaled(graph: LayerGraph, scale: float, parts: list[str]) -> list[str]:
    factor, shift = graph.scalar("scale", scale), graph.scalar("shift", -0.5 * (scale - 1))
    result = []
    for number, part in enumerate(parts):
        scaled = graph.node(f"xy{number}.scaled", "Mul", part, factor)
        result.append(graph.node(f"xy{number}.shifted", "Add", scaled, shift))
    return result


def region(graph: LayerGraph, p: RegionParameters, x: DarknetValue) -> str:
    """What forward_region_layer gives: logistic of x, y and objectness, softmax over the classes."""
    widths = {"xy": 2, "wh": 2, "object": 1, "classes": p.classes}
    parts = _split(graph, x, widths, len(p.anchors))
    for role in ("xy", "object"):
        parts[role] = [
            graph.node(f"{role}{number}.sigmoid", "Sigmoid", part)
            for number, part in enumerate(parts[role])
        ]
    if p.softmax:
        parts["classes"] = [
            graph.node(f"classes{number}.softmax", "Softmax", part, axis=1)
            for number, part in enumerate(parts["classes"])
        ]
    return _joined(graph, "region", parts)


def _split(
    graph: LayerGraph, x: DarknetValue, widths: dict[str, int], anchors: int
) -> dict[str, list[str]]:
    """Return, for each role, the channels of each anchor."""
    sizes = graph.integers("split.sizes", *list(widths.values()) * anchors)
    outputs = [f"{role}{number}" for number in range(anchors) for role in widths]
    names = graph.nodes("split", "Split", (graph.spatial(x).name, sizes), outputs, axis=1)
    return {role: names[position :: len(widths)] for position, role in enumerate(widths)}


def _joined(graph: LayerGraph, role: str, parts: dict[str, list[str]]) -> str:
    """Put the parts of the anchors together again: the reverse of ``_split``."""
    ordered = [part for anchor in zip(*parts.values(), strict=True) for part in anchor]
    return graph.node(role, "Concat", *ordered, axis=1)


# Layers that read several others as ONNX nodes.

# Of AlexeyAB's normalised weights: the least that relu gives, and what is added to their sum.
_LEAST_WEIGHT = 1e-3
_SUM_EPSILON = 1e-4


def route(graph: LayerGraph, p: RouteParameters, inputs: list[DarknetValue]) -> DarknetValue:
    """Return the concatenation; one whole input is itself."""
    parts = [_group(graph, p, x, number) for number, x in enumerate(inputs)]
    _, height, width = parts[0].shape
    if len(parts) == 1:
        return parts[0]
    images = [graph.spatial(x, f"image{number}") for number, x in enumerate(parts)]
    joined = graph.node("route", "Concat", *(x.name for x in images), axis=1)
    return DarknetValue(joined, (sum(x.shape[0] for x in parts), height, width))


def _group(graph: LayerGraph, p: RouteParameters, x: DarknetValue, number: int) -> DarknetValue:
    if p.groups == 1:
        return x
    channels, height, width = x.shape
    size = channels // p.groups
    image = graph.spatial(x, f"group{number}.image")
    part = _channels(graph, image.name, f"group{number}", p.group * size, (p.group + 1) * size)
    return DarknetValue(part, (size, height, width))


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


def shortcut(
    graph: LayerGraph, layer: DarknetLayer, p: ShortcutParameters, inputs: list[DarknetValue]
) -> str:
    """The sum of all inputs, sampled, cut to their common channels or weighted where that is said."""
    images = [graph.spatial(x, f"image{number}") for number, x in enumerate(inputs)]
    names = [x.name for x in images]
    if p.weights == "none":
        for number, (x, stride) in enumerate(zip(images[1:], p.strides, strict=True), 1):
            names[number] = _fitted(graph, x, layer.shape, stride, f"from{number}")
    else:
        names = [
            graph.node(f"weighted{number}", "Mul", name, weight)
            for number, (name, weight) in enumerate(
                zip(names, _weights(graph, layer, p, len(names)), strict=True)
            )
        ]
    total = names[0]
    for number, name in enumerate(names[1:]):
        total = graph.node(f"add{number}" if number else "add", "Add", total, name)
    return activate(graph, total, p.activation)


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


def _weights(
    graph: LayerGraph, layer: DarknetLayer, p: ShortcutParameters, count: int
) -> list[str]:
    """Return the weight of each input, [1, channels or 1, 1, 1], after normalisation."""
    name = graph.weight(layer.arrays[0])
    if p.normalization != "none":
        axis = graph.integers("weights.axis", 0)
        name = _positive(graph, p, name, axis)
        total = graph.node("weights.total", "ReduceSum", name, axis, keepdims=1)
        sum_ = graph.node("weights.sum", "Add", total, graph.scalar("weights.eps", _SUM_EPSILON))
        name = graph.node("weights.share", "Div", name, sum_)
    channels = layer.shape[0] if p.weights == "per_channel" else 1
    dims = graph.integers("weights.dims", count, channels, 1, 1)
    shaped = graph.node("weights.shaped", "Reshape", name, dims)
    sizes = graph.integers("weights.sizes", *[1] * count)
    outputs = [f"weight{number}" for number in range(count)]
    return graph.nodes("weights.split", "Split", (shaped, sizes), outputs, axis=0)


def _positive(graph: LayerGraph, p: ShortcutParameters, weights: str, axis: str) -> str:
    if p.normalization == "relu":
        least = graph.scalar("weights.least", _LEAST_WEIGHT)
        return graph.node("weights.relu", "Max", weights, least)
    largest = graph.node("weights.largest", "ReduceMax", weights, axis, keepdims=1)
    return graph.node("weights.exp", "Exp", graph.node("weights.less", "Sub", weights, largest))


def product(graph: LayerGraph, p: ProductParameters, inputs: list[DarknetValue]) -> str:
    """Add the product, broadcast where one input has a single channel or pixel."""
    scales, x = (graph.spatial(value, f"image{number}") for number, value in enumerate(inputs))
    return activate(graph, graph.node("mul", "Mul", x.name, scales.name), p.activation)
