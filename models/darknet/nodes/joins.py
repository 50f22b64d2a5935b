"""Layers that read several others as ONNX nodes."""

from models.darknet.layers.layer import DarknetLayer, Shape
from models.darknet.layers.parameters import ProductParameters, RouteParameters, ShortcutParameters
from models.darknet.nodes.activations import activate
from models.darknet.nodes.graph import DarknetValue, LayerGraph

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
