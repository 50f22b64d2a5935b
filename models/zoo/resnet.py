"""Residual networks (He et al. 2015) as torchvision defines them: stride on the 3x3 convolution."""

import onnx

from models.zoo.builder import IMAGENET, SkeletonBuilder, ZooTensor


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
