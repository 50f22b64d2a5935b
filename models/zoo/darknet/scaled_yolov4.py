"""Scaled-YOLOv4 (Wang, Bochkovskiy and Liao, 2021): CSP everywhere; COCO's 80 classes."""

from models.darknet.cfg.section import Section
from models.zoo.darknet.blocks import (
    csp_stage,
    merge_down,
    merge_up,
    residual,
    spatial_pyramid_pool,
)
from models.zoo.darknet.stack import Stack
from models.zoo.darknet.yolov4 import ANCHORS as CSP_ANCHORS

CLASSES = 80
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
    _detect(net, 256, CSP_ANCHORS, range(3))
    for index, (coarser, filters) in enumerate(((middle, 256), (coarse, 512)), start=1):
        net.route(level)
        merge_down(net, coarser, filters)
        level = _csp_join(net, filters, 2)
        _detect(net, 2 * filters, CSP_ANCHORS, range(3 * index, 3 * index + 3))
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
        _detect(net, filters, P6_ANCHORS, range(4 * index, 4 * index + 4))
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


def _detect(net: Stack, filters: int, anchors: tuple[int, ...], mask: range) -> None:
    net.conv(filters)
    net.plain_conv(len(mask) * (5 + CLASSES), activation="logistic")
    net.yolo(anchors, mask, CLASSES, scale_x_y=2.0, new_coords=1, nms_kind="diounms", beta_nms=0.6)
