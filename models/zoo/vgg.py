"""VGG (Simonyan and Zisserman 2014): 3x3 convolutions, then three fully connected layers."""

import onnx

from models.zoo.builder import IMAGENET, SkeletonBuilder


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
