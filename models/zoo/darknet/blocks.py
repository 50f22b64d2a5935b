"""Blocks that several Darknet families share."""

from models.zoo.darknet.stack import Stack


def residual(net: Stack, inner: int, filters: int) -> int:
    """1x1 to ``inner`` channels, 3x3 to ``filters``, plus the input (He et al., 2016)."""
    source = net.last
    net.conv(inner, 1)
    net.conv(filters)
    return net.shortcut(source)


def pyramid_convs(net: Stack, filters: int) -> int:
    """1x1 and 3x3 in turn, five in all: between two levels of YOLOv3's feature pyramid."""
    for _ in range(2):
        net.conv(filters, 1)
        net.conv(2 * filters)
    return net.conv(filters, 1)


def csp_stage(net: Stack, filters: int, blocks: int, part: int = 0, inner: int = 0) -> int:
    """Halve the resolution, then a cross stage partial stage (Wang et al., 2020).

    The stage's input goes through ``blocks`` residual blocks on ``part`` channels (half of
    ``filters`` unless told), and around them through one 1x1; both parts are joined.
    ``inner`` is the bottleneck of the blocks, ``part`` unless told.
    """
    part = part or filters // 2
    start = net.conv(filters, stride=2)
    bypass = net.conv(part, 1)
    net.route(start)
    net.conv(part, 1)
    for _ in range(blocks):
        residual(net, inner or part, part)
    net.route(net.conv(part, 1), bypass)
    return net.conv(filters, 1)


def spatial_pyramid_pool(net: Stack) -> int:
    """The last output beside its maxima over 5x5, 9x9 and 13x13, widest first."""
    source = net.last
    small = net.maxpool(5, stride=1)
    net.route(source)
    middle = net.maxpool(9, stride=1)
    net.route(source)
    large = net.maxpool(13, stride=1)
    return net.route(large, middle, small, source)


def merge_up(net: Stack, finer: int, filters: int) -> int:
    """Top-down step of a path aggregation network: beside ``finer``, the last output enlarged."""
    net.conv(filters, 1)
    coarse = net.upsample()
    net.route(finer)
    return net.route(net.conv(filters, 1), coarse)


def merge_down(net: Stack, coarser: int, filters: int) -> int:
    """Bottom-up step: the last output at half its resolution, beside ``coarser``."""
    return net.route(net.conv(filters, stride=2), coarser)
