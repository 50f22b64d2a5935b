"""Networks as users have them whose plans once took long to find: shuffled channels, large feature maps."""

import numpy as np
import onnx

from models.zoo.builder import SkeletonBuilder, ZooTensor
from tests.models.nets import filled


def shuffle_detector(resolution: int, channels: int = 116, blocks: int = 3) -> onnx.ModelProto:
    """Return a detector on a ShuffleNetV2, whose channels are shuffled by Reshape and Transpose.

    ``channels`` of the first stage; the others have twice and four times as many.
    """
    b = SkeletonBuilder("shuffle", resolution)
    x = b.max_pool(b.relu(b.norm(b.conv(b.image, 24, 3, 2))), 3, 2, 1)
    maps = []
    for stage, count in enumerate((blocks, 2 * blocks + 1, blocks)):
        x = _shuffled_down(b, x, channels << stage)
        for _ in range(count):
            x = _shuffled(b, x)
        maps.append(x)
    found = {}
    for level, held in enumerate(maps):
        y = _depthwise(b, b.relu(b.norm(b.conv(held, 64, 1))))
        for name, outputs in (("boxes", 4), ("scores", 20)):
            found[f"{name}{level}"] = b.conv(_depthwise(b, y), outputs, 1, bias=True)
    return filled(b.skeleton(found, {}), seed=3)


def segmentation(resolution: int, width: float = 1.0, repeats: int = 4) -> onnx.ModelProto:
    """Return a segmentation network on a MobileNetV2, dilated at the end, upsampled to all pixels."""
    b = SkeletonBuilder("segmentation", resolution)
    x = b.relu6(b.norm(b.conv(b.image, _even(32 * width), 3, 2)))
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 1),
    )
    for factor, channels, count, stride in stages:
        for number in range(min(count, repeats)):
            x = _inverted(b, x, _even(channels * width), factor, stride if number == 0 else 1)
    size = x.shape[2:]
    pooled = b.relu(b.norm(b.conv(b.global_pool(x), 256, 1)))
    joined = b.concat(_resized(b, pooled, *size), b.relu(b.norm(b.conv(x, 256, 1))))
    y = b.conv(b.relu(b.norm(b.conv(joined, 256, 1))), 21, 1, bias=True)
    return filled(b.skeleton({"classes": _resized(b, y, resolution, resolution)}, {}), seed=3)


def _even(channels: float) -> int:
    return max(8 * round(channels / 8), 8)


def _depthwise(b: SkeletonBuilder, x: ZooTensor, stride: int = 1) -> ZooTensor:
    return b.norm(b.conv(x, x.channels, 3, stride, groups=x.channels))


def _shuffled_down(b: SkeletonBuilder, x: ZooTensor, channels: int) -> ZooTensor:
    half = channels // 2
    left = b.relu(b.norm(b.conv(_depthwise(b, x, 2), half, 1)))
    right = b.relu(b.norm(b.conv(x, half, 1)))
    right = b.relu(b.norm(b.conv(_depthwise(b, right, 2), half, 1)))
    return _shuffle(b, b.concat(left, right))


def _shuffled(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    half = x.channels // 2
    left, right = b.split(x, [half, half])
    right = b.relu(b.norm(b.conv(right, half, 1)))
    right = b.relu(b.norm(b.conv(_depthwise(b, right), half, 1)))
    return _shuffle(b, b.concat(left, right))


def _shuffle(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    _, channels, height, width = x.shape
    pairs = b.transpose(b.reshape(x, 1, 2, channels // 2, height, width), 0, 2, 1, 3, 4)
    return b.reshape(pairs, 1, channels, height, width)


def _inverted(
    b: SkeletonBuilder, x: ZooTensor, channels: int, factor: int, stride: int
) -> ZooTensor:
    y = x if factor == 1 else b.relu6(b.norm(b.conv(x, factor * x.channels, 1)))
    y = b.norm(b.conv(b.relu6(_depthwise(b, y, stride)), channels, 1))
    return b.add(y, x) if y.shape == x.shape else y


def _resized(b: SkeletonBuilder, x: ZooTensor, height: int, width: int) -> ZooTensor:
    no_region, no_scales = ZooTensor("", ()), ZooTensor("", ())
    shape = (*x.shape[:2], height, width)
    sizes = b.constant(f"{b.next_label('Resize')}.sizes", np.array(shape))
    return b.add_node("Resize", [x, no_region, no_scales, sizes], shape, mode="linear")
