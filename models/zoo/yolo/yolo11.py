"""YOLO11 (Jocher et al. 2024), size n: backbone of C3k2, attention on the coarsest level, no anchors."""

import math
from functools import partial

import onnx

from models.zoo.builder import ZooTensor
from models.zoo.yolo.blocks import Net
from models.zoo.yolo.heads import BINS, CLASSES, without_anchors
from models.zoo.yolo.yolov8 import box_channels

_HEAD = 64  # channels that one attention head looks at


def yolo11n(resolution: int, width: float = 1.0) -> onnx.ModelProto:
    """Return YOLO11n for COCO's 80 classes; output "output0" [1, 84, boxes]."""
    net = Net("yolo11n", resolution, 0.25 * width, 0.5)
    wide = net.wide
    x = net.unit(net.unit(net.image, wide(64), 3, 2), wide(128), 3, 2)
    x = net.unit(_stage(net, x, 256, hidden=0.25), wide(256), 3, 2)
    eighth = _stage(net, x, 512, hidden=0.25)
    sixteenth = _stage(net, net.unit(eighth, wide(512), 3, 2), 512, nested=True)
    x = _stage(net, net.unit(sixteenth, wide(1024), 3, 2), 1024, nested=True)
    coarse = _attending(net, net.sppf(x, wide(1024)), net.deep(2))
    middle = _stage(net, net.concat(net.upsample(coarse), sixteenth), 512)
    fine = _stage(net, net.concat(net.upsample(middle), eighth), 256)
    medium = _stage(net, net.concat(net.unit(fine, wide(256), 3, 2), middle), 512)
    x = net.concat(net.unit(medium, wide(512), 3, 2), coarse)
    large = _stage(net, x, 1024, nested=True)
    levels = (fine, medium, large)
    return without_anchors(net, [_level(net, x, n, fine) for n, x in enumerate(levels, 1)])


def _stage(
    net: Net, x: ZooTensor, channels: int, hidden: float = 0.5, nested: bool = False
) -> ZooTensor:
    """C3k2: a C2f of bottlenecks, or (``nested``) of C3 with two bottlenecks each."""
    inner = int(net.wide(channels) * hidden)
    if nested:
        block = partial(net.c3, channels=inner, repeats=2, first=3)
    else:
        block = partial(net.bottleneck, channels=inner, hidden=inner // 2, first=3)
    return net.c2f(x, net.wide(channels), inner, [block] * net.deep(2))


def _attending(net: Net, x: ZooTensor, repeats: int) -> ZooTensor:
    """C2PSA: half of the channels look at all others, the other half stays beside them."""
    half = x.channels // 2
    beside, y = net.split(net.unit(x, 2 * half), (half, half))
    for _ in range(repeats):
        y = net.add(y, _attention(net, y))
        y = net.add(y, net.unit(net.unit(y, 2 * half), half, active=False))
    return net.unit(net.concat(beside, y), x.channels)


def _attention(net: Net, x: ZooTensor) -> ZooTensor:
    """Let each cell sum up what all cells say; a depthwise convolution says where they are."""
    heads = max(x.channels // _HEAD, 1)
    size = x.channels // heads
    key_size, cells = size // 2, math.prod(x.shape[2:])
    all_three = net.unit(x, x.channels + 2 * key_size * heads, active=False)
    apart = net.reshape(all_three, 1, heads, 2 * key_size + size, cells)
    query, key, value = net.split(apart, (key_size, key_size, size), axis=2)
    scale = net.constant("scale", 1 / math.sqrt(key_size))
    match = net.mul(net.matmul(net.transpose(query, 0, 1, 3, 2), key), scale)
    weights = net.transpose(net.softmax(match, axis=-1), 0, 1, 3, 2)
    seen = net.reshape(net.matmul(value, weights), *x.shape)
    place = net.unit(net.reshape(value, *x.shape), x.channels, 3, groups=x.channels, active=False)
    return net.unit(net.add(seen, place), x.channels, active=False)


def _level(net: Net, x: ZooTensor, number: int, fine: ZooTensor) -> tuple[ZooTensor, ZooTensor]:
    """Return what a level says of boxes and of classes, these by depthwise convolutions."""
    boxes, classes = box_channels(fine), max(fine.channels, CLASSES)
    y = net.unit(net.unit(x, boxes, 3), boxes, 3)
    z = x
    for _ in range(2):
        z = net.unit(net.unit(z, z.channels, 3, groups=z.channels), classes)
    return (
        net.conv(y, 4 * BINS, 1, bias=True, label=f"boxes{number}"),
        net.conv(z, CLASSES, 1, bias=True, label=f"classes{number}"),
    )
