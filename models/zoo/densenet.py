"""DenseNet (Huang et al. 2016) as torchvision defines it: every layer reads all before it in its block."""

import onnx

from models.zoo.builder import IMAGENET, SkeletonBuilder, ZooTensor

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
