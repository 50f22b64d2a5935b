"""MobileNets: V1 (Howard et al. 2017) as Keras defines it, V2 (Sandler et al. 2018) as torchvision does."""

import onnx

from models.zoo.builder import IMAGENET, SIGNED, SkeletonBuilder, ZooTensor

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
