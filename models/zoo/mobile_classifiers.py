"""Classifiers for small machines: MobileNets and EfficientNet."""

from dataclasses import dataclass

import onnx

from models.zoo.builder import IMAGENET, SIGNED, SkeletonBuilder, ZooTensor

# MobileNets: V1 (Howard et al. 2017) as Keras defines it, V2 (Sandler et al. 2018) as torchvision does.

# Channels and stride of V1's pairs of a depthwise and a pointwise convolution.
_V1 = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)

# V2's stages: expansion, channels, blocks, stride of the first block.
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v1(resolution: int, width: float = 1.0) -> onnx.ModelProto:
    """Return MobileNetV1 for 1000 classes; output "logits" [1, 1000] (Keras' softmax is left out).

    ``width`` multiplies all channels, rounded down. Where it halves an image Keras pads below
    and right only.
    """
    b = SkeletonBuilder("mobilenetv1", resolution, SIGNED)

    def conv(x: ZooTensor, channels: int, kernel: int, stride: int, groups: int = 1) -> ZooTensor:
        pads = (0, 0, 1, 1) if stride == 2 else None
        y = b.conv(x, channels, kernel, stride, groups=groups, pads=pads)
        return b.relu6(b.norm(y, 1e-3))

    x = conv(b.image, int(32 * width), 3, 2)
    for channels, stride in _V1:
        x = conv(x, x.channels, 3, stride, groups=x.channels)
        x = conv(x, int(channels * width), 1, 1)
    return b.model(b.flatten(b.conv(b.global_pool(x), 1000, 1, bias=True)))


def mobilenet_v2(resolution: int) -> onnx.ModelProto:
    """Return MobileNetV2 for 1000 classes; output "logits" [1, 1000]."""
    b = SkeletonBuilder("mobilenetv2", resolution, IMAGENET)

    def inverted_residual(x: ZooTensor, expansion: int, channels: int, stride: int) -> ZooTensor:
        wide, y = expansion * x.channels, x
        if expansion > 1:
            y = b.relu6(b.norm(b.conv(y, wide, 1)))
        y = b.relu6(b.norm(b.conv(y, wide, 3, stride, groups=wide)))
        y = b.norm(b.conv(y, channels, 1))
        return b.add(x, y) if stride == 1 and channels == x.channels else y

    x = b.relu6(b.norm(b.conv(b.image, 32, 3, 2)))
    for expansion, channels, blocks, first_stride in _V2:
        for index in range(blocks):
            x = inverted_residual(x, expansion, channels, 1 if index else first_stride)
    x = b.relu6(b.norm(b.conv(x, 1280, 1)))
    return b.model(b.linear(b.flatten(b.global_pool(x)), 1000))


# MobileNetV3-large (Howard et al. 2019) as torchvision defines it.


@dataclass(frozen=True)
class _Block:
    """An inverted residual block; ``weighed``: channels are, ``hard``: HardSwish instead of ReLU."""

    kernel: int
    wide: int
    channels: int
    weighed: bool
    hard: bool
    stride: int


_LARGE = (
    _Block(3, 16, 16, False, False, 1),
    _Block(3, 64, 24, False, False, 2),
    _Block(3, 72, 24, False, False, 1),
    _Block(5, 72, 40, True, False, 2),
    _Block(5, 120, 40, True, False, 1),
    _Block(5, 120, 40, True, False, 1),
    _Block(3, 240, 80, False, True, 2),
    _Block(3, 200, 80, False, True, 1),
    _Block(3, 184, 80, False, True, 1),
    _Block(3, 184, 80, False, True, 1),
    _Block(3, 480, 112, True, True, 1),
    _Block(3, 672, 112, True, True, 1),
    _Block(5, 672, 160, True, True, 2),
    _Block(5, 960, 160, True, True, 1),
    _Block(5, 960, 160, True, True, 1),
)
_EPSILON = 1e-3


def mobilenet_v3_large(resolution: int) -> onnx.ModelProto:
    """Return MobileNetV3-large for 1000 classes; output "logits" [1, 1000]."""
    b = SkeletonBuilder("mobilenetv3-large", resolution, IMAGENET)
    x = b.hard_swish(b.norm(b.conv(b.image, 16, 3, 2), _EPSILON))
    for block in _LARGE:
        x = _v3_block(b, x, block)
    x = b.hard_swish(b.norm(b.conv(x, 960, 1), _EPSILON))
    x = b.hard_swish(b.linear(b.flatten(b.global_pool(x)), 1280))
    return b.model(b.linear(x, 1000))


def _v3_block(b: SkeletonBuilder, x: ZooTensor, block: _Block) -> ZooTensor:
    act = b.hard_swish if block.hard else b.relu
    wide, y = block.wide, x
    if wide != x.channels:
        y = act(b.norm(b.conv(y, wide, 1), _EPSILON))
    y = b.norm(b.conv(y, wide, block.kernel, block.stride, groups=wide), _EPSILON)
    y = _v3_squeeze_excite(b, act(y)) if block.weighed else act(y)
    y = b.norm(b.conv(y, block.channels, 1), _EPSILON)
    return b.add(x, y) if block.stride == 1 and block.channels == x.channels else y


def _v3_squeeze_excite(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    """Weigh the channels of ``x`` by what all of the image says about them."""
    y = b.relu(b.conv(b.global_pool(x), _eighths(x.channels // 4), 1, bias=True))
    return b.mul(b.hard_sigmoid(b.conv(y, x.channels, 1, bias=True)), x)


def _eighths(channels: int) -> int:
    """Return the multiple of 8 nearest to ``channels``, and not below nine tenths of it."""
    nearest = max(8, (channels + 4) // 8 * 8)
    return nearest + 8 if 10 * nearest < 9 * channels else nearest


# EfficientNet-B0 (Tan and Le 2019) as torchvision defines it.

# Stages: expansion, kernel, stride of the first block, channels, blocks.
_B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def _efficientnet_squeeze_excite(b: SkeletonBuilder, x: ZooTensor, squeezed: int) -> ZooTensor:
    """Weigh the channels of ``x`` by what all of the image says about them."""
    y = b.silu(b.conv(b.global_pool(x), squeezed, 1, bias=True))
    return b.mul(x, b.sigmoid(b.conv(y, x.channels, 1, bias=True)))


def _efficientnet_block(
    b: SkeletonBuilder, x: ZooTensor, expansion: int, kernel: int, stride: int, channels: int
) -> ZooTensor:
    wide, y = expansion * x.channels, x
    if expansion > 1:
        y = b.silu(b.norm(b.conv(y, wide, 1)))
    y = b.silu(b.norm(b.conv(y, wide, kernel, stride, groups=wide)))
    y = b.norm(b.conv(_efficientnet_squeeze_excite(b, y, x.channels // 4), channels, 1))
    return b.add(x, y) if stride == 1 and channels == x.channels else y


def efficientnet_b0(resolution: int) -> onnx.ModelProto:
    """Return EfficientNet-B0 for 1000 classes; output "logits" [1, 1000]."""
    b = SkeletonBuilder("efficientnet-b0", resolution, IMAGENET)
    x = b.silu(b.norm(b.conv(b.image, 32, 3, 2)))
    for expansion, kernel, first_stride, channels, blocks in _B0:
        for index in range(blocks):
            x = _efficientnet_block(b, x, expansion, kernel, 1 if index else first_stride, channels)
    x = b.silu(b.norm(b.conv(x, 1280, 1)))
    return b.model(b.linear(b.flatten(b.global_pool(x)), 1000))
