"""YOLOv5 (Jocher 2020, release 6.0 and later), size s: backbone of C3, pyramid up and down, anchors."""

import onnx

from models.zoo.yolo.blocks import Net
from models.zoo.yolo.heads import ANCHORS, CLASSES, with_anchors


def yolov5s(resolution: int, width: float = 1.0) -> onnx.ModelProto:
    """Return YOLOv5s for COCO's 80 classes; output "output0" [1, boxes, 85]."""
    net = Net("yolov5s", resolution, 0.5 * width, 0.33)
    wide, deep = net.wide, net.deep
    x = net.unit(net.image, wide(64), 6, 2, pad=2)
    x = net.c3(net.unit(x, wide(128), 3, 2), wide(128), deep(3))
    eighth = x = net.c3(net.unit(x, wide(256), 3, 2), wide(256), deep(6))
    sixteenth = x = net.c3(net.unit(x, wide(512), 3, 2), wide(512), deep(9))
    x = net.c3(net.unit(x, wide(1024), 3, 2), wide(1024), deep(3))
    coarse = net.unit(net.sppf(x, wide(1024)), wide(512))
    x = net.c3(net.concat(net.upsample(coarse), sixteenth), wide(512), deep(3), add=False)
    middle = net.unit(x, wide(256))
    fine = net.c3(net.concat(net.upsample(middle), eighth), wide(256), deep(3), add=False)
    x = net.concat(net.unit(fine, wide(256), 3, 2), middle)
    medium = net.c3(x, wide(512), deep(3), add=False)
    x = net.concat(net.unit(medium, wide(512), 3, 2), coarse)
    large = net.c3(x, wide(1024), deep(3), add=False)
    levels = [
        net.conv(level, len(anchors) * (5 + CLASSES), 1, bias=True, label=f"detect{number}")
        for number, (level, anchors) in enumerate(
            zip((fine, medium, large), ANCHORS, strict=True), 1
        )
    ]
    return with_anchors(net, levels)
