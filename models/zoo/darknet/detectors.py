"""Darknet's detectors, from YOLOv2 to Scaled-YOLOv4."""

from models.darknet.cfg import Section
from models.zoo.darknet.classifiers import darknet19_body, darknet53_body
from models.zoo.darknet.stack import (
    Stack,
    csp_stage,
    merge_down,
    merge_up,
    pyramid_convs,
    residual,
    spatial_pyramid_pool,
)

# YOLOv2 (Redmon and Farhadi, 2017): Darknet-19, one detection layer.

# Widths and heights of the anchors in cells of the last grid, as published.
COCO_ANCHORS = "0.57273,0.677385,1.87446,2.06253,3.33843,5.47434,7.88282,3.52778,9.77052,9.16828"
VOC_ANCHORS = "1.3221,1.73145,3.19275,4.00944,5.05587,8.09892,9.47112,4.84053,11.2364,10.0071"


def yolov2(classes: int = 80, anchors: str = COCO_ANCHORS) -> list[Section]:
    """YOLOv2 at 416, of COCO by default."""
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


# YOLOv3 (Redmon and Farhadi, 2018): Darknet-53 and a feature pyramid; COCO's 80 classes.

CLASSES = 80
YOLOV3_ANCHORS = (10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119, 116, 90, 156, 198, 373, 326)
TINY_ANCHORS = (10, 14, 23, 27, 37, 58, 81, 82, 135, 169, 344, 319)


def yolov3() -> list[Section]:
    """YOLOv3 at 416: detection at 1/32, 1/16 and 1/8 of the resolution."""
    net = Stack(416)
    _, _, eighth, sixteenth, _ = darknet53_body(net)
    level = pyramid_convs(net, 512)
    _yolov3_detect(net, 1024, (6, 7, 8))
    for finer, filters, mask in ((sixteenth, 256, (3, 4, 5)), (eighth, 128, (0, 1, 2))):
        net.route(level)
        net.conv(filters, 1)
        net.route(net.upsample(), finer)
        level = pyramid_convs(net, filters)
        _yolov3_detect(net, 2 * filters, mask)
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
    _yolov3_detect(net, 512, (3, 4, 5), TINY_ANCHORS)
    net.route(level)
    net.conv(128, 1)
    net.route(net.upsample(), sixteenth)
    _yolov3_detect(net, 256, (0, 1, 2), TINY_ANCHORS)
    return net.sections


def _yolov3_detect(
    net: Stack, filters: int, mask: tuple[int, ...], anchors: tuple[int, ...] = YOLOV3_ANCHORS
) -> None:
    net.conv(filters)
    net.plain_conv(len(mask) * (5 + CLASSES))
    net.yolo(anchors, mask, CLASSES)


# YOLOv4 (Bochkovskiy, Wang and Liao, 2020): CSPDarknet-53, SPP, PAN; COCO's 80 classes.

_YOLOV4_ANCHORS = (12, 16, 19, 36, 40, 28, 36, 75, 76, 55, 72, 146, 142, 110, 192, 243, 459, 401)


def yolov4() -> list[Section]:
    """YOLOv4 at 608: up the pyramid from 1/32 to 1/8 of the resolution, and down again."""
    net = Stack(608, "mish")
    net.conv(32)
    csp_stage(net, 64, 1, part=64, inner=32)
    csp_stage(net, 128, 2)
    eighth = csp_stage(net, 256, 8)
    sixteenth = csp_stage(net, 512, 8)
    csp_stage(net, 1024, 4)

    net.activation = "leaky"
    _triple(net)
    spatial_pyramid_pool(net)
    coarse = _triple(net)
    merge_up(net, sixteenth, 256)
    middle = pyramid_convs(net, 256)
    merge_up(net, eighth, 128)
    level = pyramid_convs(net, 128)
    _yolov4_detect(net, 256, (0, 1, 2), 1.2)
    for coarser, filters, mask, scale in (
        (middle, 256, (3, 4, 5), 1.1),
        (coarse, 512, (6, 7, 8), 1.05),
    ):
        net.route(level)
        merge_down(net, coarser, filters)
        level = pyramid_convs(net, filters)
        _yolov4_detect(net, 2 * filters, mask, scale)
    return net.sections


def yolov4_tiny() -> list[Section]:
    """YOLOv4-tiny at 416: detection at 1/32 and 1/16 of the resolution."""
    net = Stack(416)
    net.conv(32, stride=2)
    net.conv(64, stride=2)
    sixteenth = net.last
    for filters in (64, 128, 256):
        sixteenth = _partial_stage(net, filters)
    net.conv(512)
    level = net.conv(256, 1)
    _yolov4_detect(net, 512, (3, 4, 5), 1.05, TINY_ANCHORS)
    net.route(level)
    net.conv(128, 1)
    net.route(net.upsample(), sixteenth)
    _yolov4_detect(net, 256, (1, 2, 3), 1.05, TINY_ANCHORS)
    return net.sections


def _triple(net: Stack) -> int:
    net.conv(512, 1)
    net.conv(1024)
    return net.conv(512, 1)


def _partial_stage(net: Stack, filters: int) -> int:
    """Two 3x3 on the upper half of the channels, joined around them; then half the resolution.

    Returns the layer before the outer join.
    """
    whole = net.conv(filters)
    net.second_half(whole)
    first = net.conv(filters // 2)
    net.route(net.conv(filters // 2), first)
    joined = net.conv(filters, 1)
    net.route(whole, joined)
    net.maxpool()
    return joined


def _yolov4_detect(
    net: Stack,
    filters: int,
    mask: tuple[int, ...],
    scale: float,
    anchors: tuple[int, ...] = _YOLOV4_ANCHORS,
) -> None:
    net.conv(filters)
    net.plain_conv(len(mask) * (5 + CLASSES))
    net.yolo(anchors, mask, CLASSES, scale_x_y=scale, nms_kind="greedynms", beta_nms=0.6)


# Scaled-YOLOv4 (Wang, Bochkovskiy and Liao, 2021): CSP everywhere; COCO's 80 classes.

# Four a level, as published: (97, 189) and (324, 451) end one level and begin the next.
P6_ANCHORS = (
    *(13, 17, 31, 25, 24, 51, 61, 45),
    *(61, 45, 48, 102, 119, 96, 97, 189),
    *(97, 189, 217, 184, 171, 384, 324, 451),
    *(324, 451, 545, 357, 616, 618, 1024, 1024),
)


def yolov4_csp() -> list[Section]:
    """YOLOv4-CSP at 512: three levels, 1/8 to 1/32 of the resolution."""
    net = Stack(512, "mish")
    net.conv(32)
    net.conv(64, stride=2)
    residual(net, 32, 64)
    csp_stage(net, 128, 2)
    eighth = csp_stage(net, 256, 8)
    sixteenth = csp_stage(net, 512, 8)
    csp_stage(net, 1024, 4)

    coarse = _csp_pool(net)
    merge_up(net, sixteenth, 256)
    middle = _csp_join(net, 256, 2)
    merge_up(net, eighth, 128)
    level = _csp_join(net, 128, 2)
    _scaled_yolov4_detect(net, 256, _YOLOV4_ANCHORS, range(3))
    for index, (coarser, filters) in enumerate(((middle, 256), (coarse, 512)), start=1):
        net.route(level)
        merge_down(net, coarser, filters)
        level = _csp_join(net, filters, 2)
        _scaled_yolov4_detect(net, 2 * filters, _YOLOV4_ANCHORS, range(3 * index, 3 * index + 3))
    return net.sections


def yolov4_p6() -> list[Section]:
    """YOLOv4-P6 at 640 (published for 1280): four levels, 1/8 to 1/64 of the resolution."""
    net = Stack(640, "mish")
    net.conv(32)
    stages = ((64, 1), (128, 3), (256, 15), (512, 15), (1024, 7), (1024, 7))
    *_, p3, p4, p5, _ = [csp_stage(net, filters, blocks) for filters, blocks in stages]

    ups = [_csp_pool(net)]
    for finer, filters in ((p5, 512), (p4, 256), (p3, 128)):
        merge_up(net, finer, filters)
        ups.append(_csp_join(net, filters, 3))
    levels = [ups.pop()]
    for filters in (256, 512, 512):
        merge_down(net, ups.pop(), filters)
        levels.append(_csp_join(net, filters, 3))
    for index, (level, filters) in enumerate(zip(levels, (256, 512, 1024, 1024), strict=True)):
        net.route(level)
        _scaled_yolov4_detect(net, filters, P6_ANCHORS, range(4 * index, 4 * index + 4))
    return net.sections


def _csp_pool(net: Stack) -> int:
    """Spatial pyramid pooling between convolutions of 512 channels, and around them a 1x1."""
    start = net.last
    bypass = net.conv(512, 1)
    net.route(start)
    net.conv(512, 1)
    net.conv(512)
    net.conv(512, 1)
    spatial_pyramid_pool(net)
    net.conv(512, 1)
    net.route(net.conv(512), bypass)
    return net.conv(512, 1)


def _csp_join(net: Stack, filters: int, pairs: int) -> int:
    """After a merge: ``pairs`` of 1x1 and 3x3, and around them a 1x1; all ``filters`` wide."""
    start = net.conv(filters, 1)
    bypass = net.conv(filters, 1)
    net.route(start)
    for _ in range(pairs):
        net.conv(filters, 1)
        net.conv(filters)
    net.route(net.last, bypass)
    return net.conv(filters, 1)


def _scaled_yolov4_detect(net: Stack, filters: int, anchors: tuple[int, ...], mask: range) -> None:
    net.conv(filters)
    net.plain_conv(len(mask) * (5 + CLASSES), activation="logistic")
    net.yolo(anchors, mask, CLASSES, scale_x_y=2.0, new_coords=1, nms_kind="diounms", beta_nms=0.6)
