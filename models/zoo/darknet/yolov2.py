"""YOLOv2 (Redmon and Farhadi, 2017): Darknet-19, one detection layer."""

from models.darknet.cfg.section import Section
from models.zoo.darknet.classifiers import darknet19_body
from models.zoo.darknet.stack import Stack

# Widths and heights of the anchors in cells of the last grid, as published.
COCO_ANCHORS = "0.57273,0.677385,1.87446,2.06253,3.33843,5.47434,7.88282,3.52778,9.77052,9.16828"
VOC_ANCHORS = "1.3221,1.73145,3.19275,4.00944,5.05587,8.09892,9.47112,4.84053,11.2364,10.0071"


def yolov2(classes: int = 80, anchors: str = COCO_ANCHORS) -> list[Section]:
    """YOLOv2 at 416, of COCO unless told otherwise."""
    net = Stack(416)
    sixteenth = darknet19_body(net)
    net.conv(1024)
    coarse = net.conv(1024)
    net.route(sixteenth)
    net.conv(64, 1)
    net.route(net.add("reorg", stride=2), coarse)
    net.conv(1024)
    return _region(net, classes, anchors)


def yolov2_voc() -> list[Section]:
    """YOLOv2 at 416 of the 20 classes of PASCAL VOC."""
    return yolov2(20, VOC_ANCHORS)


def yolov2_tiny() -> list[Section]:
    """YOLOv2-tiny at 416: nine convolutions."""
    net = Stack(416)
    for filters in (16, 32, 64, 128, 256):
        net.conv(filters)
        net.maxpool()
    net.conv(512)
    net.maxpool(2, stride=1)
    net.conv(1024)
    net.conv(512)
    return _region(net, 80, COCO_ANCHORS)


def _region(net: Stack, classes: int, anchors: str) -> list[Section]:
    pairs = len(anchors.split(",")) // 2
    net.plain_conv(pairs * (5 + classes))
    net.add("region", anchors=anchors, classes=classes, coords=4, num=pairs, softmax=1)
    return net.sections
