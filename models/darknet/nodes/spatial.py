"""Convolutions, pooling and sampling as ONNX nodes."""

from models.darknet.layers.layer import DarknetLayer
from models.darknet.layers.parameters import (
    ConvolutionParameters,
    CropParameters,
    DepthMaxPoolParameters,
    MaxPoolParameters,
    ReorgParameters,
    UpsampleParameters,
)
from models.darknet.nodes.activations import activate
from models.darknet.nodes.graph import DarknetValue, LayerGraph

# What AlexeyAB's normalize_cpu adds to the variance.
EPSILON = 1e-5


def convolution(
    graph: LayerGraph, layer: DarknetLayer, p: ConvolutionParameters, x: DarknetValue
) -> str:
    """Conv, BatchNormalization as a node of its own, activation."""
    arrays = [graph.weight(array) for array in layer.arrays]
    biases, weights = arrays[0], arrays[-1]
    conv = graph.node(
        "conv",
        "Conv",
        graph.spatial(x).name,
        weights,
        *(() if p.batch_normalize else (biases,)),
        kernel_shape=[p.size] * 2,
        strides=[p.stride[1], p.stride[0]],
        pads=[p.padding] * 4,
        dilations=[p.dilation] * 2,
        group=p.groups,
    )
    normed = normalize(graph, conv, biases, arrays[1:4]) if p.batch_normalize else conv
    return activate(graph, normed, p.activation)


def normalize(graph: LayerGraph, x: str, biases: str, arrays: list[str]) -> str:
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
