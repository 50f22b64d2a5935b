"""The sections of a Darknet network, stacked by calls that read like its architecture.

Every call appends one layer and returns its index, so a layer that is needed again has a name
in Python instead of a relative offset, as cfg files count them.
"""

from collections.abc import Iterable

from models.darknet.cfg.section import Section


class Stack:
    """A network under construction: ``[net]`` first, then one section a layer.

    ``resolution`` is the default side of the square RGB input in pixels; ``activation`` what
    ``conv`` applies when not told otherwise.
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
        self, anchors: Iterable[int], mask: Iterable[int], classes: int = 80, **options: object
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
