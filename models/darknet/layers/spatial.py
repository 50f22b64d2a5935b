"""Layers that see an image as one: convolution, pooling, sampling."""

from models.darknet.cfg.options import SectionOptions
from models.darknet.layers.layer import DarknetLayer, Shape
from models.darknet.layers.parameters import (
    AvgPoolParameters,
    ConvolutionParameters,
    CropParameters,
    DepthMaxPoolParameters,
    MaxPoolParameters,
    ReorgParameters,
    UpsampleParameters,
)
from models.darknet.layers.scope import SectionScope

ACTIVATIONS = (
    *("linear", "leaky", "relu", "logistic", "mish", "swish", "tanh", "elu", "selu", "gelu"),
    *(
        "relu6",
        "ramp",
        "hardtan",
        "loggy",
        "relie",
        "hard_mish",
        "plse",
        "stair",
        "lhtan",
        "revleaky",
    ),
)

# Kernels, strides and pads beyond this are no network's; it keeps sums of them small.
_LARGEST_STEP = 1 << 16


def activation(options: SectionOptions, default: str = "linear") -> str:
    """Return the name of the section's activation."""
    return options.choice("activation", default, ACTIVATIONS)


def norm_arrays(channels: int) -> dict[str, tuple[int, ...]]:
    """Return what batch normalisation adds to a layer's biases."""
    return dict.fromkeys(("scales", "mean", "variance"), (channels,))


def _strides(options: SectionOptions) -> tuple[int, int]:
    stride = options.integer("stride", 1, most=_LARGEST_STEP)
    x = options.integer("stride_x", stride, most=_LARGEST_STEP)
    return x, options.integer("stride_y", stride, most=_LARGEST_STEP)


def _padding(options: SectionOptions, default: int) -> int:
    return options.integer("padding", default, least=0, most=_LARGEST_STEP)


def _check_shrunk(scope: SectionScope, what: str, shape: Shape) -> None:
    if min(shape) < 1:
        scope.options.fail(f"its input of {times(scope.input)} is too small for {what}")


def times(shape: Shape) -> str:
    """Return a shape as text, width first as Darknet prints it."""
    channels, height, width = shape
    return f"{width}x{height}x{channels}"


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
    normalize = options.flag("batch_normalize")
    arrays = {"biases": (filters,), **(norm_arrays(filters) if normalize else {})}
    return scope.layer(
        shape,
        ConvolutionParameters(
            filters,
            size,
            stride,
            padding * dilation,
            dilation,
            groups,
            normalize,
            activation(options, "logistic"),
        ),
        {**arrays, "weights": (filters, channels // groups, size, size)},
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
    return scope.layer((channels, out_y, out_x), MaxPoolParameters(size, stride, pads))


def _pooled(length: int, size: int, stride: int, padding: int) -> tuple[int, int, int]:
    """Return the length of the output and the pads before and behind the input."""
    out = (length + padding - size) // stride + 1
    before = padding // 2
    return out, before, max((out - 1) * stride + size - length - before, 0)


def _depth_maxpool(scope: SectionScope) -> DarknetLayer:
    channels, height, width = scope.input
    out = scope.options.integer("out_channels", 1)
    if channels % out:
        scope.options.fail(
            f"out_channels={out} do not divide the {channels} channels of its input", "out_channels"
        )
    return scope.layer((out, height, width), DepthMaxPoolParameters(out))


def avgpool(scope: SectionScope) -> DarknetLayer:
    """Return an [avgpool], which leaves one pixel."""
    return scope.layer((scope.input[0], 1, 1), AvgPoolParameters())


def upsample(scope: SectionScope) -> DarknetLayer:
    """Return an [upsample]."""
    channels, height, width = scope.input
    stride = scope.options.integer("stride", 2, most=_LARGEST_STEP)
    shape = (channels, height * stride, width * stride)
    return scope.layer(shape, UpsampleParameters(stride, scope.options.number("scale", 1.0)))


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
    return scope.layer(
        (channels * stride**2, height // stride, width // stride), ReorgParameters(stride)
    )


def crop(scope: SectionScope) -> DarknetLayer:
    """Return a [crop] as inference does it: the centre."""
    options = scope.options
    channels, height, width = scope.input
    out_x, out_y = options.integer("crop_width", 1), options.integer("crop_height", 1)
    if out_x > width or out_y > height:
        options.fail(f"{out_x}x{out_y} cannot be cut from its input of {times(scope.input)}")
    left, top = (width - out_x) // 2, (height - out_y) // 2
    return scope.layer(
        (channels, out_y, out_x), CropParameters(left, top, not options.flag("noadjust"))
    )
