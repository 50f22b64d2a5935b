"""Two Inceptions: GoogLeNet as torchvision defines it, and Inception V2 (BN-Inception)."""

from collections.abc import Callable

import onnx

from models.zoo.builder import IMAGENET, SIGNED, SkeletonBuilder, ZooTensor

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
