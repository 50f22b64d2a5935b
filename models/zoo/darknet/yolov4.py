"""YOLOv4 (Bochkovskiy, Wang and Liao, 2020): CSPDarknet-53, SPP, PAN; COCO's 80 classes."""

from models.darknet.cfg.section import Section
from models.zoo.darknet.blocks import (
    csp_stage,
    merge_down,
    merge_up,
    pyramid_convs,
    spatial_pyramid_pool,
)
from models.zoo.darknet.stack import Stack

CLASSES = 80
ANCHORS = (12, 16, 19, 36, 40, 28, 36, 75, 76, 55, 72, 146, 142, 110, 192, 243, 459, 401)
TINY_ANCHORS = (10, 14, 23, 27, 37, 58, 81, 82, 135, 169, 344, 319)


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
    _detect(net, 256, (0, 1, 2), 1.2)
    for coarser, filters, mask, scale in (
        (middle, 256, (3, 4, 5), 1.1),
        (coarse, 512, (6, 7, 8), 1.05),
    ):
        net.route(level)
        merge_down(net, coarser, filters)
        level = pyramid_convs(net, filters)
        _detect(net, 2 * filters, mask, scale)
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
    _detect(net, 512, (3, 4, 5), 1.05, TINY_ANCHORS)
    net.route(level)
    net.conv(128, 1)
    net.route(net.upsample(), sixteenth)
    _detect(net, 256, (1, 2, 3), 1.05, TINY_ANCHORS)
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


def _detect(
    net: Stack,
    filters: int,
    mask: tuple[int, ...],
    scale: float,
    anchors: tuple[int, ...] = ANCHORS,
) -> None:
    net.conv(filters)
    net.plain_conv(len(mask) * (5 + CLASSES))
    net.yolo(anchors, mask, CLASSES, scale_x_y=scale, nms_kind="greedynms", beta_nms=0.6)
