"""From a section to its layer, by kind: what sees an image, a vector, other layers, and what detects."""

import math
from typing import Literal

from models.darknet.cfg import SectionOptions
from models.darknet.layer_records import (
    AvgPoolParameters,
    ConnectedParameters,
    ConvolutionParameters,
    CropParameters,
    DarknetLayer,
    DepthMaxPoolParameters,
    IdentityParameters,
    MaxPoolParameters,
    ProductParameters,
    RegionParameters,
    ReorgParameters,
    RouteParameters,
    SectionScope,
    Shape,
    ShortcutParameters,
    SoftmaxParameters,
    UpsampleParameters,
    YoloParameters,
)

# Layers that see an image as one: convolution, pooling, sampling.

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


def _norm_arrays(channels: int) -> dict[str, tuple[int, ...]]:
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
    arrays = {"biases": (filters,), **(_norm_arrays(filters) if normalize else {})}
    return scope.layer(
        shape,
        ConvolutionParameters(
            size, stride, padding * dilation, dilation, groups, activation(options, "logistic")
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


# Layers that see their input as one vector, and those that leave it as it is.


def connected(scope: SectionScope) -> DarknetLayer:
    """Return a [connected]; its array of weights is before those of batch normalisation."""
    options = scope.options
    outputs = options.integer("output", 1)
    normalize = options.flag("batch_normalize")
    parameters = ConnectedParameters(outputs, activation(options, "logistic"))
    arrays = {"biases": (outputs,), "weights": (outputs, math.prod(scope.input))}
    arrays |= _norm_arrays(outputs) if normalize else {}
    return scope.layer((outputs, 1, 1), parameters, arrays)


def softmax(scope: SectionScope) -> DarknetLayer:
    """Return a [softmax] over all numbers of its input."""
    count = math.prod(scope.input)
    groups = scope.options.integer("groups", 1)
    if count % groups:
        scope.options.fail(f"groups={groups} do not divide the {count} numbers of its input")
    parameters = SoftmaxParameters(groups, scope.options.number("temperature", 1.0))
    return scope.layer((count, 1, 1), parameters)


def identity(scope: SectionScope) -> DarknetLayer:
    """Return a layer that inference leaves out."""
    return scope.layer(scope.input, IdentityParameters())


# Layers that read several others: route, shortcut, and products.


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
    """Return a [shortcut]; see `models.darknet.layer_records.Shortcut` for what may differ in shape."""
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


# Detection layers: what they need from the layer before them, and their anchors.

_NMS = ("default", "greedynms", "diounms", "cornersnms")


def yolo(scope: SectionScope) -> DarknetLayer:
    """Return a [yolo] layer."""
    options = scope.options
    anchors = _anchors(scope)
    mask = options.integers("mask") if options.has("mask") else tuple(range(len(anchors)))
    for number in mask:
        if not 0 <= number < len(anchors):
            options.fail(f"mask: there is no anchor {number} among {len(anchors)}", "mask")
    diou = options.choice("nms_kind", "default", _NMS) == "diounms"
    nms: Literal["greedy", "diou"] = "diou" if diou else "greedy"
    parameters = YoloParameters(
        tuple(anchors[number] for number in mask),
        _classes(scope, len(mask)),
        options.number("scale_x_y", 1.0),
        options.flag("new_coords"),
        nms,
        options.number("beta_nms", 0.6),
    )
    return scope.layer(scope.input, parameters)


def region(scope: SectionScope) -> DarknetLayer:
    """Return a [region] layer, whose boxes have four coordinates."""
    anchors = _anchors(scope)
    classes = _classes(scope, len(anchors))
    return scope.layer(
        scope.input, RegionParameters(anchors, classes, scope.options.flag("softmax"))
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
        if (
            isinstance(layer.parameters, YoloParameters | RegionParameters)
            and layer.parameters.classes != classes
        ):
            scope.options.fail(
                f"classes={classes}, but layer {layer.index} has {layer.parameters.classes}",
                "classes",
            )
    return classes
