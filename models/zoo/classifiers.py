"""Classifiers as their usual libraries define them, each a function that builds it."""

import math
from collections.abc import Callable, Sequence

import onnx

from models.zoo.builder import IMAGENET, SIGNED, SkeletonBuilder, ZooTensor

# VGG (Simonyan and Zisserman 2014): 3x3 convolutions, then three fully connected layers.


def vgg(depth: int, resolution: int) -> onnx.ModelProto:
    """Return VGG-``depth`` (16 or 19) for 1000 classes; output "logits" [1, 1000].

    The first fully connected layer spans whatever 32-fold reduction leaves of ``resolution``.
    """
    repeats = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}[depth]
    b = SkeletonBuilder(f"vgg{depth}", resolution, IMAGENET)
    x = b.image
    for count, width in zip(repeats, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            x = b.relu(b.conv(x, width, 3, bias=True))
        x = b.max_pool(x, 2, 2)
    x = b.flatten(x)
    for features in (4096, 4096):
        x = b.relu(b.linear(x, features))
    return b.model(b.linear(x, 1000))


# SqueezeNet (Iandola et al. 2016), versions 1.0 and 1.1, as torchvision defines them.

# Squeezed and expanded channels of the fire modules; a pool stands before those in _POOLED.
_FIRES = (
    *((16, 64), (16, 64), (32, 128), (32, 128)),
    *((48, 192), (48, 192), (64, 256), (64, 256)),
)
_POOLED = {"1.0": (0, 3, 7), "1.1": (0, 2, 4)}


def _fire(b: SkeletonBuilder, x: ZooTensor, squeezed: int, expanded: int) -> ZooTensor:
    x = b.relu(b.conv(x, squeezed, 1, bias=True))
    return b.concat(*(b.relu(b.conv(x, expanded, kernel, bias=True)) for kernel in (1, 3)))


def squeezenet(version: str, resolution: int) -> onnx.ModelProto:
    """Return SqueezeNet ``version`` ("1.0" or "1.1") for 1000 classes; output "logits" [1, 1000]."""
    b = SkeletonBuilder(f"squeezenet{version}", resolution, IMAGENET)
    channels, kernel = (96, 7) if version == "1.0" else (64, 3)
    x = b.relu(b.conv(b.image, channels, kernel, 2, bias=True, pads=(0, 0, 0, 0)))
    for index, (squeezed, expanded) in enumerate(_FIRES):
        if index in _POOLED[version]:
            x = b.max_pool(x, 3, 2, ceil=True)
        x = _fire(b, x, squeezed, expanded)
    x = b.relu(b.conv(x, 1000, 1, bias=True))
    return b.model(b.flatten(b.global_pool(x)))


# Two Inceptions: GoogLeNet as torchvision defines it, and Inception V2 (BN-Inception).

ConvNorm = Callable[..., ZooTensor]

# Channels: 1x1; 3x3 reduced, 3x3; second 3x3 reduced, 3x3; after the pool. None: a pool that halves.
_GOOGLENET = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    3,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    2,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)

# Channels: 1x1; 3x3 reduced, 3x3; double 3x3 reduced, 3x3; after the pool. Without 1x1 it halves.
_INCEPTION_V2 = (
    (64, 64, 64, 64, 96, 32),
    (64, 64, 96, 64, 96, 64),
    (0, 128, 160, 64, 96, 0),
    (224, 64, 96, 96, 128, 128),
    (192, 96, 128, 96, 128, 128),
    (160, 128, 160, 128, 160, 96),
    (96, 128, 192, 160, 192, 96),
    (0, 128, 192, 192, 256, 0),
    (352, 192, 320, 160, 224, 128),
    (352, 192, 320, 192, 224, 128),
)


def _conv_norm(b: SkeletonBuilder) -> ConvNorm:
    def layer(x: ZooTensor, channels: int, kernel: int, stride: int = 1) -> ZooTensor:
        return b.relu(b.norm(b.conv(x, channels, kernel, stride), 1e-3))

    return layer


def googlenet(resolution: int) -> onnx.ModelProto:
    """Return GoogLeNet (Szegedy et al. 2014) for 1000 classes; output "logits" [1, 1000].

    As in torchvision it has batch norms, 3x3 where the paper has 5x5, and no auxiliary heads.
    """
    b = SkeletonBuilder("googlenet", resolution, IMAGENET)
    conv = _conv_norm(b)
    x = b.max_pool(conv(b.image, 64, 7, 2), 3, 2, ceil=True)
    x = b.max_pool(conv(conv(x, 64, 1), 192, 3), 3, 2, ceil=True)
    for stage in _GOOGLENET:
        if isinstance(stage, int):
            x = b.max_pool(x, stage, 2, ceil=True)
            continue
        single, reduced, wide, reduced2, wide2, pooled = stage
        x = b.concat(
            conv(x, single, 1),
            conv(conv(x, reduced, 1), wide, 3),
            conv(conv(x, reduced2, 1), wide2, 3),
            conv(b.max_pool(x, 3, 1, pad=1), pooled, 1),
        )
    return b.model(b.linear(b.flatten(b.global_pool(x)), 1000))


def inception_v2(resolution: int) -> onnx.ModelProto:
    """Return Inception V2 (Ioffe and Szegedy 2015, Figure 5) for 1000 classes; "logits" [1, 1000].

    As in the paper the first convolution is separable with depth multiplier 8. Parameters:
    10,143,384 in convolutions (3 * 8 * 7 * 7 + 24 * 64 in the first), 2 * 9,952 in batch norms,
    1024 * 1000 + 1000 in the last layer: 11,188,288.
    """
    b = SkeletonBuilder("inceptionv2", resolution, SIGNED)
    conv = _conv_norm(b)
    x = b.conv(b.image, 8 * 3, 7, 2, groups=3)
    x = b.max_pool(conv(x, 64, 1), 3, 2, pad=1)
    x = b.max_pool(conv(conv(x, 64, 1), 192, 3), 3, 2, pad=1)
    for index, (single, reduced, wide, reduced2, wide2, pooled) in enumerate(_INCEPTION_V2):
        stride = 1 if single else 2
        narrow = conv(conv(x, reduced, 1), wide, 3, stride)
        double = conv(conv(conv(x, reduced2, 1), wide2, 3), wide2, 3, stride)
        last = index == len(_INCEPTION_V2) - 1
        if not single:
            x = b.concat(narrow, double, b.max_pool(x, 3, 2, pad=1))
            continue
        pool = b.max_pool(x, 3, 1, pad=1) if last else b.average_pool(x, 3, 1, pad=1)
        x = b.concat(conv(x, single, 1), narrow, double, conv(pool, pooled, 1))
    return b.model(b.linear(b.flatten(b.global_pool(x)), 1000))


# Residual networks (He et al. 2015) as torchvision defines them: stride on the 3x3 convolution.


def _shortcut(b: SkeletonBuilder, x: ZooTensor, channels: int, stride: int) -> ZooTensor:
    if stride == 1 and x.channels == channels:
        return x
    return b.norm(b.conv(x, channels, 1, stride))


def _basic(b: SkeletonBuilder, x: ZooTensor, width: int, stride: int) -> ZooTensor:
    y = b.relu(b.norm(b.conv(x, width, 3, stride)))
    y = b.norm(b.conv(y, width, 3))
    return b.relu(b.add(y, _shortcut(b, x, width, stride)))


def _bottleneck(b: SkeletonBuilder, x: ZooTensor, width: int, stride: int) -> ZooTensor:
    y = b.relu(b.norm(b.conv(x, width, 1)))
    y = b.relu(b.norm(b.conv(y, width, 3, stride)))
    y = b.norm(b.conv(y, 4 * width, 1))
    return b.relu(b.add(y, _shortcut(b, x, 4 * width, stride)))


def resnet(depth: int, resolution: int) -> onnx.ModelProto:
    """Return ResNet-``depth`` for 1000 classes; output "logits" [1, 1000]."""
    block, repeats = {
        18: (_basic, (2, 2, 2, 2)),
        50: (_bottleneck, (3, 4, 6, 3)),
        152: (_bottleneck, (3, 8, 36, 3)),
    }[depth]
    b = SkeletonBuilder(f"resnet{depth}", resolution, IMAGENET)
    x = b.relu(b.norm(b.conv(b.image, 64, 7, 2)))
    x = b.max_pool(x, 3, 2, pad=1)
    for stage, count in enumerate(repeats):
        for index in range(count):
            x = block(b, x, 64 << stage, 2 if stage and not index else 1)
    return b.model(b.linear(b.flatten(b.global_pool(x)), 1000))


# DenseNet (Huang et al. 2016) as torchvision defines it: every layer reads all before it in its block.

_GROWTH = 32


def _dense_layer(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    """Append ``_GROWTH`` channels made from all of ``x``."""
    y = b.conv(b.relu(b.norm(x)), 4 * _GROWTH, 1)
    y = b.conv(b.relu(b.norm(y)), _GROWTH, 3)
    return b.concat(x, y)


def _transition(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    """Halve channels, height and width."""
    return b.average_pool(b.conv(b.relu(b.norm(x)), x.channels // 2, 1), 2, 2)


def densenet(depth: int, resolution: int) -> onnx.ModelProto:
    """Return DenseNet-``depth`` (121 or 201) for 1000 classes; output "logits" [1, 1000]."""
    blocks = {121: (6, 12, 24, 16), 201: (6, 12, 48, 32)}[depth]
    b = SkeletonBuilder(f"densenet{depth}", resolution, IMAGENET)
    x = b.relu(b.norm(b.conv(b.image, 2 * _GROWTH, 7, 2)))
    x = b.max_pool(x, 3, 2, pad=1)
    for position, layers in enumerate(blocks):
        if position:
            x = _transition(b, x)
        for _ in range(layers):
            x = _dense_layer(b, x)
    return b.model(b.linear(b.flatten(b.global_pool(b.relu(b.norm(x)))), 1000))


# ConvNeXt (Liu et al. 2022) as torchvision defines it: channels come last inside a block.

_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # channels last, and back
_EXPANSION = 4


def convnext(depths: Sequence[int], widths: Sequence[int], resolution: int) -> onnx.ModelProto:
    """Return a ConvNeXt for 1000 classes; output "logits" [1, 1000].

    A stage has as many blocks as ``depths`` says, on as many channels as ``widths``.
    """
    b = SkeletonBuilder("convnext", resolution, IMAGENET)
    x = _convnext_norm(b, b.conv(b.image, widths[0], 4, 4, bias=True, pads=(0, 0, 0, 0)))
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if stage:
            x = b.conv(_convnext_norm(b, x), width, 2, 2, bias=True, pads=(0, 0, 0, 0))
        for _ in range(depth):
            x = _convnext_block(b, x)
    return b.model(b.linear(b.flatten(_convnext_norm(b, b.global_pool(x))), 1000))


def _convnext_norm(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    """Add a layer norm over the channels of an image."""
    return b.transpose(b.layer_norm(b.transpose(x, *_LAST)), *_FIRST)


def _convnext_block(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    y = b.transpose(b.conv(x, x.channels, 7, groups=x.channels, bias=True), *_LAST)
    y = b.gelu(b.dense(b.layer_norm(y), _EXPANSION * x.channels))
    y = b.transpose(b.dense(y, x.channels), *_FIRST)
    label = b.next_label("Transpose", "scale")
    return b.add(b.mul(b.weight(f"{label}.weight", (x.channels, 1, 1)), y), x)


# Vision transformers (Dosovitskiy et al. 2021) as timm defines them.

PATCH = 16
_HEAD = 64  # numbers of a token that one attention head looks at


def vit(width: int, depth: int, resolution: int) -> onnx.ModelProto:
    """Return a transformer of ``depth`` blocks on tokens of ``width`` numbers, a head for each 64 of them.

    A token is a patch of 16 x 16 pixels, and one more the class; output "logits" [1, 1000].
    """
    b = SkeletonBuilder("vit", resolution, SIGNED)
    x = _tokens(b, b.conv(b.image, width, PATCH, PATCH, bias=True, pads=(0, 0, 0, 0)))
    for _ in range(depth):
        x = b.add(x, _attention(b, b.layer_norm(x)))
        x = b.add(x, b.dense(b.gelu(b.dense(b.layer_norm(x), _EXPANSION * width)), width))
    return b.model(b.linear(b.take(b.layer_norm(x), 0, axis=1), 1000))


def _tokens(b: SkeletonBuilder, patches: ZooTensor) -> ZooTensor:
    """Return patches [1, width, rows, columns] as rows, the class first, with what says where they were."""
    width = patches.channels
    rows = b.transpose(b.reshape(patches, 1, width, -1), 0, 2, 1)
    x = b.concat(b.weight("class", (1, 1, width)), rows)
    return b.add(x, b.weight("position", x.shape))


def _attention(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    """Let each token sum up what all tokens say, weighed by how well they match."""
    count, width = x.shape[1:]
    heads = max(width // _HEAD, 1)
    parts = b.reshape(b.dense(x, 3 * width), 1, count, 3, heads, width // heads)
    three = b.split(b.transpose(parts, 2, 0, 3, 1, 4), (1, 1, 1), axis=0)
    query, key, value = (b.squeeze(part, 0) for part in three)
    # Both factors are scaled, as exporters write it: no product grows large on the way.
    scale = b.constant("scale", math.sqrt(1 / math.sqrt(width // heads)))
    match = b.matmul(b.mul(query, scale), b.mul(b.transpose(key, 0, 1, 3, 2), scale))
    seen = b.matmul(b.softmax(match, axis=-1), value)
    together = b.reshape(b.transpose(seen, 0, 2, 1, 3), 1, count, width)
    return b.dense(together, width)
