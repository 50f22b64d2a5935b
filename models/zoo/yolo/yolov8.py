"""YOLOv8 (Jocher et al. 2023), size n: backbone of C2f, pyramid up and down, no anchors."""

from functools import partial

import onnx

from models.zoo.builder import ZooTensor
from models.zoo.yolo.blocks import Net
from models.zoo.yolo.heads import BINS, CLASSES, without_anchors


def yolov8n(resolution: int, width: float = 1.0) -> onnx.ModelProto:
    """Return YOLOv8n for COCO's 80 classes; output "output0" [1, 84, boxes]."""
    net = Net("yolov8n", resolution, 0.25 * width, 0.33)
    wide = net.wide
    x = net.unit(net.unit(net.image, wide(64), 3, 2), wide(128), 3, 2)
    x = net.unit(_stage(net, x, 128, 3), wide(256), 3, 2)
    eighth = _stage(net, x, 256, 6)
    sixteenth = _stage(net, net.unit(eighth, wide(512), 3, 2), 512, 6)
    x = _stage(net, net.unit(sixteenth, wide(1024), 3, 2), 1024, 3)
    coarse = net.sppf(x, wide(1024))
    middle = _stage(net, net.concat(net.upsample(coarse), sixteenth), 512, 3, add=False)
    fine = _stage(net, net.concat(net.upsample(middle), eighth), 256, 3, add=False)
    x = net.concat(net.unit(fine, wide(256), 3, 2), middle)
    medium = _stage(net, x, 512, 3, add=False)
    x = net.concat(net.unit(medium, wide(512), 3, 2), coarse)
    large = _stage(net, x, 1024, 3, add=False)
    levels = (fine, medium, large)
    return without_anchors(net, [_level(net, x, n, fine) for n, x in enumerate(levels, 1)])


def _stage(net: Net, x: ZooTensor, channels: int, repeats: int, add: bool = True) -> ZooTensor:
    half = net.wide(channels) // 2
    block = partial(net.bottleneck, channels=half, hidden=half, first=3, add=add)
    return net.c2f(x, 2 * half, half, [block] * net.deep(repeats))


def _level(net: Net, x: ZooTensor, number: int, fine: ZooTensor) -> tuple[ZooTensor, ZooTensor]:
    """Return what a level says of boxes and of classes."""
    boxes, classes = box_channels(fine), max(fine.channels, CLASSES)
    y = net.unit(net.unit(x, boxes, 3), boxes, 3)
    z = net.unit(net.unit(x, classes, 3), classes, 3)
    return (
        net.conv(y, 4 * BINS, 1, bias=True, label=f"boxes{number}"),
        net.conv(z, CLASSES, 1, bias=True, label=f"classes{number}"),
    )


def box_channels(fine: ZooTensor) -> int:
    """Return how many channels the boxes of all levels come from, the finest being ``fine``."""
    return max(16, fine.channels // 4, 4 * BINS)
