"""EfficientNet-B0 (Tan and Le 2019) as torchvision defines it."""

import onnx

from models.zoo.builder import IMAGENET, SkeletonBuilder, ZooTensor

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


def _squeeze_excite(b: SkeletonBuilder, x: ZooTensor, squeezed: int) -> ZooTensor:
    """Weigh the channels of ``x`` by what all of the image says about them."""
    y = b.silu(b.conv(b.global_pool(x), squeezed, 1, bias=True))
    return b.mul(x, b.sigmoid(b.conv(y, x.channels, 1, bias=True)))


def _block(
    b: SkeletonBuilder, x: ZooTensor, expansion: int, kernel: int, stride: int, channels: int
) -> ZooTensor:
    wide, y = expansion * x.channels, x
    if expansion > 1:
        y = b.silu(b.norm(b.conv(y, wide, 1)))
    y = b.silu(b.norm(b.conv(y, wide, kernel, stride, groups=wide)))
    y = b.norm(b.conv(_squeeze_excite(b, y, x.channels // 4), channels, 1))
    return b.add(x, y) if stride == 1 and channels == x.channels else y


def efficientnet_b0(resolution: int) -> onnx.ModelProto:
    """Return EfficientNet-B0 for 1000 classes; output "logits" [1, 1000]."""
    b = SkeletonBuilder("efficientnet-b0", resolution, IMAGENET)
    x = b.silu(b.norm(b.conv(b.image, 32, 3, 2)))
    for expansion, kernel, first_stride, channels, blocks in _B0:
        for index in range(blocks):
            x = _block(b, x, expansion, kernel, 1 if index else first_stride, channels)
    x = b.silu(b.norm(b.conv(x, 1280, 1)))
    return b.model(b.linear(b.flatten(b.global_pool(x)), 1000))
