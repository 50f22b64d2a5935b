"""Layers that see an image as one: convolution, pooling, sampling. From a section to nodes, by kind."""

from dataclasses import dataclass

from models.darknet.cfg import SectionOptions
from models.darknet.graph import (
    ACTIVATIONS,
    DarknetValue,
    LayerGraph,
    Shape,
    WeightArray,
    activate,
)
from models.darknet.layers import (
    DarknetLayer,
    Operation,
    SectionScope,
    norm_arrays,
    normalize,
    times,
)

# Kernels, strides and pads beyond this are no network's; it keeps sums of them small.
_LARGEST_STEP = 1 << 16


def activation(options: SectionOptions, default: str = "linear") -> str:
    """Return the name of the section's activation."""
    return options.choice("activation", default, ACTIVATIONS)


def _strides(options: SectionOptions) -> tuple[int, int]:
    stride = options.integer("stride", 1, most=_LARGEST_STEP)
    x = options.integer("stride_x", stride, most=_LARGEST_STEP)
    return x, options.integer("stride_y", stride, most=_LARGEST_STEP)


def _padding(options: SectionOptions, default: int) -> int:
    return options.integer("padding", default, least=0, most=_LARGEST_STEP)


def _check_shrunk(scope: SectionScope, what: str, shape: Shape) -> None:
    if min(shape) < 1:
        scope.options.fail(f"its input of {times(scope.input)} is too small for {what}")


@dataclass(frozen=True)
class ConvolutionOperation(Operation):
    """``padding`` on all sides, times dilation; ``groups`` divide input and output channels.

    ``shared``: the arrays of another layer, which it computes with; empty: it has its own.
    """

    size: int
    stride: tuple[int, int]  # x, y
    padding: int
    dilation: int
    groups: int
    activation: str
    shared: tuple[WeightArray, ...] = ()

    @property
    def shrinks(self) -> float:
        return max(self.stride)

    def arrays_of(self, layer: DarknetLayer) -> tuple[WeightArray, ...]:
        """Return what ``layer`` computes with: biases, those of batch normalisation, weights."""
        return self.shared or layer.arrays

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        x = graph.spatial(inputs[0]).name
        names = [
            array.name if self.shared else graph.weight(array) for array in self.arrays_of(layer)
        ]
        biases, *norm, weights = names
        conv = graph.node(
            "conv",
            "Conv",
            x,
            weights,
            *(() if norm else (biases,)),
            kernel_shape=[self.size] * 2,
            strides=[self.stride[1], self.stride[0]],
            pads=[self.padding] * 4,
            dilations=[self.dilation] * 2,
            group=self.groups,
        )
        return activate(graph, normalize(graph, conv, biases, norm), self.activation)


def convolutional(scope: SectionScope) -> DarknetLayer:
    """Return a [convolutional]; `pad` means half a kernel on each side, `padding` how much."""
    options = scope.options
    channels, height, width = scope.input
    filters = options.integer("filters", 1)
    size = options.integer("size", 1, most=_LARGEST_STEP)
    dilation = options.integer("dilation", 1, most=_LARGEST_STEP) if size > 1 else 1
    groups = options.integer("groups", 1)
    stride = _strides(options)
    for count, what in ((channels, "channels of its input"), (filters, "filters")):
        if count % groups:
            options.fail(f"groups={groups} do not divide the {count} {what}", "groups")
    padding = size // 2 if options.flag("pad") else _padding(options, 0)
    shape = (
        filters,
        (height + 2 * padding - size) // stride[1] + 1,
        (width + 2 * padding - size) // stride[0] + 1,
    )
    _check_shrunk(scope, f"a kernel of {size}", shape)
    if dilation > 1 and 2 * padding != size - 1:
        # Darknet's im2col then gives another number of pixels than the layer has.
        options.fail(f"dilation={dilation} needs a padding of half the kernel", "dilation")
    arrays = {
        "biases": (filters,),
        **norm_arrays(options, filters),
        "weights": (filters, channels // groups, size, size),
    }
    shared = _shared(scope, list(arrays.values()))
    function = activation(options, "logistic")
    operation = ConvolutionOperation(
        size, stride, padding * dilation, dilation, groups, function, shared
    )
    return scope.layer(shape, operation, {} if shared else arrays)


def _shared(scope: SectionScope, shapes: list[tuple[int, ...]]) -> tuple[WeightArray, ...]:
    """Return the arrays of the convolution that ``share_index`` names; none without that option."""
    options = scope.options
    if not options.has("share_index"):
        return ()
    other = scope.before[
        scope.source("share_index", options.integer("share_index", least=-scope.index - 1))
    ]
    if not isinstance(other.operation, ConvolutionOperation):
        options.fail(f"layer {other.index} is no convolution to share with", "share_index")
    arrays = other.operation.arrays_of(other)
    if [array.shape for array in arrays] != shapes:
        options.fail(
            f"layer {other.index} has other filters, sizes or groups, or another batch_normalize: "
            "it cannot be shared",
            "share_index",
        )
    return arrays


@dataclass(frozen=True)
class MaxPoolOperation(Operation):
    """``pads``: left, top, right, bottom; what is outside the input is never the maximum."""

    size: int
    stride: tuple[int, int]  # x, y
    pads: tuple[int, int, int, int]

    @property
    def shrinks(self) -> float:
        return max(self.stride)

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        left, top, right, bottom = self.pads
        return graph.node(
            "maxpool",
            "MaxPool",
            graph.spatial(inputs[0]).name,
            kernel_shape=[self.size] * 2,
            strides=[self.stride[1], self.stride[0]],
            pads=[top, left, bottom, right],
        )


def maxpool(scope: SectionScope) -> DarknetLayer:
    """Return a [maxpool], whose `padding` (size - 1 unless given) is that of both sides together."""
    options = scope.options
    if options.flag("maxpool_depth"):
        return _depth_maxpool(scope)
    channels, height, width = scope.input
    stride = _strides(options)
    size = options.integer("size", options.integer("stride", 1), most=_LARGEST_STEP)
    padding = _padding(options, size - 1)
    out_x, left, right = _pooled(width, size, stride[0], padding)
    out_y, top, bottom = _pooled(height, size, stride[1], padding)
    _check_shrunk(scope, f"windows of {size}", (channels, out_y, out_x))
    pads = (left, top, right, bottom)
    if max(pads) >= size:
        options.fail(f"padding={padding} makes windows of {size} that see no input", "padding")
    return scope.layer((channels, out_y, out_x), MaxPoolOperation(size, stride, pads))


def _pooled(length: int, size: int, stride: int, padding: int) -> tuple[int, int, int]:
    """Return the length of the output and the pads before and behind the input."""
    out = (length + padding - size) // stride + 1
    before = padding // 2
    return out, before, max((out - 1) * stride + size - length - before, 0)


@dataclass(frozen=True)
class DepthMaxPoolOperation(Operation):
    """Output channel k is the maximum of the channels k, k + ``channels``, k + 2 ``channels``..."""

    channels: int

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        x = graph.spatial(inputs[0])
        channels, height, width = x.shape
        dims = (1, channels // self.channels, self.channels, height, width)
        shape = graph.integers("maxpool.parts.shape", *dims)
        parts = graph.node("maxpool.parts", "Reshape", x.name, shape)
        axis = graph.integers("maxpool.axis", 1)
        return graph.node("maxpool", "ReduceMax", parts, axis, keepdims=0)


def _depth_maxpool(scope: SectionScope) -> DarknetLayer:
    channels, height, width = scope.input
    out = scope.options.integer("out_channels", 1)
    if channels % out:
        scope.options.fail(
            f"out_channels={out} do not divide the {channels} channels of its input", "out_channels"
        )
    return scope.layer((out, height, width), DepthMaxPoolOperation(out))


@dataclass(frozen=True)
class AvgPoolOperation(Operation):
    """The mean of each channel."""

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        return graph.node("avgpool", "GlobalAveragePool", graph.spatial(inputs[0]).name)


def avgpool(scope: SectionScope) -> DarknetLayer:
    """Return an [avgpool], which leaves one pixel."""
    return scope.layer((scope.input[0], 1, 1), AvgPoolOperation())


@dataclass(frozen=True)
class UpsampleOperation(Operation):
    """Each pixel becomes ``stride`` x ``stride`` equal ones, times ``scale``."""

    stride: int
    scale: float

    @property
    def shrinks(self) -> float:
        return 1 / self.stride

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        # The factors are a node: as an initializer they would be counted as weights.
        x = graph.spatial(inputs[0]).name
        factors = [1.0, 1.0, self.stride, self.stride]
        large = graph.node(
            "upsample",
            "Resize",
            x,
            "",
            graph.node("upsample.factors", "Constant", value_floats=factors),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        if self.scale == 1:
            return large
        return graph.node("scaled", "Mul", large, graph.scalar("scale", self.scale))


def upsample(scope: SectionScope) -> DarknetLayer:
    """Return an [upsample]."""
    channels, height, width = scope.input
    stride = scope.options.integer("stride", 2, most=_LARGEST_STEP)
    operation = UpsampleOperation(stride, scope.options.number("scale", 1.0))
    return scope.layer((channels, height * stride, width * stride), operation)


@dataclass(frozen=True)
class ReorgOperation(Operation):
    """Darknet's reorg_cpu with forward=0, which reads its input as if it had another shape.

    X is the input seen as (c / s^2, h * s, w * s). The flat output, seen as (c, h, w), has
    X[k % oc, j * s + off // s, i * s + off % s] at (k, j, i), where oc = c / s^2 and off = k // oc;
    the result is the flat output seen as (c * s^2, h / s, w / s).
    """

    stride: int

    @property
    def shrinks(self) -> float:
        return self.stride

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        x = graph.spatial(inputs[0])
        channels, height, width = x.shape
        s = self.stride
        dims = (1, channels // s**2, height, s, width, s)
        shape = graph.integers("reorg.seen.shape", *dims)
        seen = graph.node("reorg.seen", "Reshape", x.name, shape)
        moved = graph.node("reorg.moved", "Transpose", seen, perm=[0, 3, 5, 1, 2, 4])
        return graph.node("reorg", "Reshape", moved, graph.integers("reorg.shape", 1, *layer.shape))


def reorg(scope: SectionScope) -> DarknetLayer:
    """Return a [reorg], if its stride divides the input."""
    channels, height, width = scope.input
    stride = scope.options.integer("stride", 1, most=_LARGEST_STEP)
    if channels % stride**2 or height % stride or width % stride:
        scope.options.fail(
            f"stride={stride} does not divide its input of {times(scope.input)}"
            f" (the channels {stride**2} times)",
            "stride",
        )
    shape = (channels * stride**2, height // stride, width // stride)
    return scope.layer(shape, ReorgOperation(stride))


@dataclass(frozen=True)
class CropOperation(Operation):
    """The centre of the image; ``adjust``: values from 0..1 to -1..1."""

    left: int
    top: int
    adjust: bool

    def nodes(self, graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> str:
        _, height, width = layer.shape
        part = graph.node(
            "crop",
            "Slice",
            graph.spatial(inputs[0]).name,
            graph.integers("crop.starts", self.top, self.left),
            graph.integers("crop.ends", self.top + height, self.left + width),
            graph.integers("crop.axes", 2, 3),
        )
        if not self.adjust:
            return part
        double = graph.node("crop.double", "Mul", part, graph.scalar("crop.two", 2))
        return graph.node("crop.adjusted", "Sub", double, graph.scalar("crop.one", 1))


def crop(scope: SectionScope) -> DarknetLayer:
    """Return a [crop] as inference does it: the centre."""
    options = scope.options
    channels, height, width = scope.input
    out_x, out_y = options.integer("crop_width", 1), options.integer("crop_height", 1)
    if out_x > width or out_y > height:
        options.fail(f"{out_x}x{out_y} cannot be cut from its input of {times(scope.input)}")
    left, top = (width - out_x) // 2, (height - out_y) // 2
    return scope.layer(
        (channels, out_y, out_x), CropOperation(left, top, not options.flag("noadjust"))
    )
