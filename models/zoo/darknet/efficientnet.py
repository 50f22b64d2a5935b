"""EfficientNet-B0 (Tan and Le, 2019) as Darknet has it: some expansions are narrower."""

from models.darknet.cfg.section import Section
from models.zoo.darknet.classifiers import CLASSES
from models.zoo.darknet.stack import Stack

# Channels that enter a block: channels of its depthwise convolution and of its squeeze.
WIDTHS = {
    32: (32, 8),
    16: (96, 16),
    24: (144, 8),
    40: (192, 16),
    80: (384, 24),
    112: (576, 32),
    192: (960, 64),
}
# Channels out, blocks, size of the depthwise convolution, stride of the first one.
STAGES = (
    (16, 1, 3, 1),
    (24, 2, 3, 2),
    (40, 2, 5, 2),
    (80, 3, 3, 1),
    (112, 3, 5, 2),
    (192, 4, 5, 2),
    (320, 1, 3, 1),
)


def efficientnet_b0() -> list[Section]:
    """EfficientNet-B0 at 224, 1000 classes of ImageNet."""
    net = Stack(224, "swish")
    channels = 32
    net.conv(channels, stride=2)
    for filters, blocks, size, stride in STAGES:
        _block(net, channels, filters, size, stride)
        for _ in range(blocks - 1):
            source = net.last
            _block(net, filters, filters, size, stride=1)
            net.add("dropout")
            net.shortcut(source)
        channels = filters
    net.conv(1280, 1)
    net.avgpool()
    net.add("dropout")
    net.plain_conv(CLASSES)
    net.softmax()
    return net.sections


def _block(net: Stack, channels: int, filters: int, size: int, stride: int) -> None:
    """Expansion, depthwise convolution, squeeze and excitation, projection (MBConv)."""
    wide, squeezed = WIDTHS[channels]
    net.conv(wide, 1)
    expanded = net.conv(wide, size, stride, groups=wide)
    net.avgpool()
    net.plain_conv(squeezed, activation="swish")
    net.plain_conv(wide, activation="logistic")
    net.scale_by_last(expanded)
    net.conv(filters, 1, activation="linear")
