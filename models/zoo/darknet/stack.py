"""The sections of a Darknet network, stacked by calls and blocks that read like its architecture.

Every call appends one layer and returns its index, so a layer that is needed again has a name
in Python instead of a relative offset, as cfg files count them.
"""

from collections.abc import Iterable

from models.darknet.cfg import Section


class Stack:
    """A network under construction: ``[net]`` first, then one section a layer.

    ``resolution`` is the default side of the square RGB input in pixels; ``activation`` what
    ``conv`` applies by default.
    """

    def __init__(self, resolution: int, activation: str = "leaky") -> None:
        side = str(resolution)
        self.sections = [Section("net", {"width": side, "height": side, "channels": "3"})]
        self.activation = activation

    @property
    def last(self) -> int:
        """Index of the layer added last; the layer after ``[net]`` is 0."""
        return len(self.sections) - 2

    def add(self, kind: str, **options: object) -> int:
        """Append a layer of any kind; options are written as a cfg file writes them."""
        self.sections.append(Section(kind, {key: str(value) for key, value in options.items()}))
        return self.last

    def conv(
        self,
        filters: int,
        size: int = 3,
        stride: int = 1,
        activation: str | None = None,
        groups: int = 1,
    ) -> int:
        """Convolution padded to keep the spatial size, batch normalization, activation."""
        return self.add(
            "convolutional",
            filters=filters,
            size=size,
            stride=stride,
            pad=1,
            groups=groups,
            batch_normalize=1,
            activation=activation or self.activation,
        )

    def plain_conv(self, filters: int, size: int = 1, activation: str = "linear") -> int:
        """Convolution with a bias and no batch normalization."""
        return self.add(
            "convolutional",
            filters=filters,
            size=size,
            pad=1,
            activation=activation,
        )

    def maxpool(self, size: int = 2, stride: int = 2) -> int:
        """Maximum over windows; with stride 1 the spatial size stays."""
        return self.add("maxpool", size=size, stride=stride)

    def avgpool(self) -> int:
        """Mean of each channel."""
        return self.add("avgpool")

    def route(self, *layers: int) -> int:
        """The outputs of ``layers`` along the channels, in this order; one layer: go back to it."""
        return self.add("route", layers=_listed(layers))

    def second_half(self, layer: int) -> int:
        """The upper half of the channels of ``layer``."""
        return self.add("route", layers=layer, groups=2, group_id=1)

    def shortcut(self, source: int, activation: str = "linear") -> int:
        """The last output plus that of ``source``."""
        return self.add("shortcut", **{"from": source, "activation": activation})

    def scale_by_last(self, source: int) -> int:
        """The output of ``source``, each channel times the last output (one number a channel)."""
        return self.add("scale_channels", **{"from": source})

    def upsample(self) -> int:
        """Twice the spatial size, nearest neighbour."""
        return self.add("upsample", stride=2)

    def softmax(self) -> int:
        """Probabilities of the classes."""
        return self.add("softmax", groups=1)

    def yolo(
        self, anchors: Iterable[int], mask: Iterable[int], classes: int, **options: object
    ) -> int:
        """Detection layer; ``anchors`` in pixels, width and height in turn; ``mask`` picks pairs."""
        numbers = tuple(anchors)
        return self.add(
            "yolo",
            mask=_listed(mask),
            anchors=_listed(numbers),
            classes=classes,
            num=len(numbers) // 2,
            **options,
        )


def _listed(numbers: Iterable[object]) -> str:
    return ",".join(map(str, numbers))


# Blocks that several Darknet families share.


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
    ``filters`` by default), and around them through one 1x1; both parts are joined.
    ``inner`` is the bottleneck of the blocks, ``part`` by default.
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
