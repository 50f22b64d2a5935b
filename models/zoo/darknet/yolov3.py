"""YOLOv3 (Redmon and Farhadi, 2018): Darknet-53 and a feature pyramid; COCO's 80 classes."""

from models.darknet.cfg.section import Section
from models.zoo.darknet.blocks import pyramid_convs
from models.zoo.darknet.classifiers import darknet53_body
from models.zoo.darknet.stack import Stack

CLASSES = 80
ANCHORS = (10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119, 116, 90, 156, 198, 373, 326)
TINY_ANCHORS = (10, 14, 23, 27, 37, 58, 81, 82, 135, 169, 344, 319)


def yolov3() -> list[Section]:
    """YOLOv3 at 416: detection at 1/32, 1/16 and 1/8 of the resolution."""
    net = Stack(416)
    _, _, eighth, sixteenth, _ = darknet53_body(net)
    level = pyramid_convs(net, 512)
    _detect(net, 1024, (6, 7, 8))
    for finer, filters, mask in ((sixteenth, 256, (3, 4, 5)), (eighth, 128, (0, 1, 2))):
        net.route(level)
        net.conv(filters, 1)
        net.route(net.upsample(), finer)
        level = pyramid_convs(net, filters)
        _detect(net, 2 * filters, mask)
    return net.sections


def yolov3_tiny() -> list[Section]:
    """YOLOv3-tiny at 416: detection at 1/32 and 1/16 of the resolution."""
    net = Stack(416)
    sixteenth = net.last
    for filters in (16, 32, 64, 128, 256):
        sixteenth = net.conv(filters)
        net.maxpool()
    net.conv(512)
    net.maxpool(2, stride=1)
    net.conv(1024)
    level = net.conv(256, 1)
    _detect(net, 512, (3, 4, 5), TINY_ANCHORS)
    net.route(level)
    net.conv(128, 1)
    net.route(net.upsample(), sixteenth)
    _detect(net, 256, (0, 1, 2), TINY_ANCHORS)
    return net.sections


def _detect(
    net: Stack, filters: int, mask: tuple[int, ...], anchors: tuple[int, ...] = ANCHORS
) -> None:
    net.conv(filters)
    net.plain_conv(len(mask) * (5 + CLASSES))
    net.yolo(anchors, mask, CLASSES)
