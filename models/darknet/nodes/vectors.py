"""Fully connected layers, softmax and detection layers as ONNX nodes."""

import math

from models.darknet.layers.layer import DarknetLayer
from models.darknet.layers.parameters import (
    ConnectedParameters,
    RegionParameters,
    SoftmaxParameters,
    YoloParameters,
)
from models.darknet.nodes.activations import activate
from models.darknet.nodes.graph import DarknetValue, LayerGraph
from models.darknet.nodes.spatial import normalize


def connected(
    graph: LayerGraph, layer: DarknetLayer, p: ConnectedParameters, x: DarknetValue
) -> str:
    """Gemm, BatchNormalization as a node of its own, activation."""
    biases, weights, *norm = [graph.weight(array) for array in layer.arrays]
    inputs = [graph.flat(x).name, weights, *([] if norm else [biases])]
    result = graph.node("gemm", "Gemm", *inputs, transB=1)
    normed = normalize(graph, result, biases, norm) if norm else result
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
