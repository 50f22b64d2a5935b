"""Darknet's own classifiers, and VGG-16 as Darknet trained it; 1000 classes of ImageNet."""

from models.darknet.cfg import Section
from models.zoo.darknet.stack import Stack, residual

_CLASSES = 1000


def darknet19_body(net: Stack) -> int:
    """The 18 convolutions of Darknet-19 (Redmon and Farhadi, 2017) without its classifier.

    Returns the last layer at a sixteenth of the resolution, which YOLOv2 reads again.
    """
    net.conv(32)
    net.maxpool()
    before = net.conv(64)
    for filters, convs in ((128, 3), (256, 3), (512, 5), (1024, 5)):
        before = net.last
        net.maxpool()
        for index in range(convs):
            if index % 2:
                net.conv(filters // 2, 1)
            else:
                net.conv(filters)
    return before


def darknet19() -> list[Section]:
    """Darknet-19 at 224: classes by a 1x1 convolution, then their mean over all places."""
    net = Stack(224)
    darknet19_body(net)
    return _classes_then_mean(net)


def darknet53_body(net: Stack) -> list[int]:
    """The 52 convolutions of Darknet-53 (Redmon and Farhadi, 2018).

    Returns the last layer of each stage, resolutions 1/2 to 1/32.
    """
    net.conv(32)
    ends = []
    for filters, blocks in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        net.conv(filters, stride=2)
        for _ in range(blocks):
            residual(net, filters // 2, filters)
        ends.append(net.last)
    return ends


def darknet53() -> list[Section]:
    """Darknet-53 at 256: the mean over all places, then classes by a 1x1 convolution."""
    net = Stack(256)
    darknet53_body(net)
    net.avgpool()
    net.plain_conv(_CLASSES)
    net.softmax()
    return net.sections


def tiny() -> list[Section]:
    """Tiny Darknet at 224: 3x3 convolutions behind narrow 1x1 ones; 4 MB of weights."""
    net = Stack(224)
    net.conv(16)
    net.maxpool()
    net.conv(32)
    for narrow, wide in ((16, 128), (32, 256), (64, 512)):
        net.maxpool()
        for _ in range(2):
            net.conv(narrow, 1)
            net.conv(wide)
    net.conv(128, 1)
    return _classes_then_mean(net)


def vgg16() -> list[Section]:
    """VGG-16 (Simonyan and Zisserman, 2015): the middle 224 pixels of images of 256."""
    net = Stack(256)
    net.add("crop", crop_height=224, crop_width=224)
    for filters, convs in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convs):
            net.plain_conv(filters, 3, "relu")
        net.maxpool()
    for _ in range(2):
        net.add("connected", output=4096, activation="relu")
        net.add("dropout")
    net.add("connected", output=_CLASSES, activation="linear")
    return _classified(net)


def _classified(net: Stack) -> list[Section]:
    """Close a classifier of before 2018: softmax, and the cost layer it was trained with."""
    net.softmax()
    net.add("cost")
    return net.sections


def _classes_then_mean(net: Stack) -> list[Section]:
    net.plain_conv(_CLASSES)
    net.avgpool()
    return _classified(net)


# ResNet and DenseNet as Darknet has them: leaky activations, classes before the mean.


def resnet50() -> list[Section]:
    """ResNet-50 at 256."""
    return _resnet(3, 4, 6, 3)


def resnet152() -> list[Section]:
    """ResNet-152 at 256."""
    return _resnet(3, 8, 36, 3)


def _resnet(*blocks: int) -> list[Section]:
    """Bottlenecks (He et al., 2016), ``blocks`` in each of the four stages.

    Unlike the paper's, no convolution adapts a shortcut where a stage widens: its input is
    added to the first channels only, every second place where the stage halves the resolution.
    """
    net = _stem()
    for stage, count in enumerate(blocks):
        for block in range(count):
            _bottleneck(net, 64 << stage, stride=2 if stage and not block else 1)
    return _classes(net)


def densenet201() -> list[Section]:
    """DenseNet-201 at 256 (Huang et al., 2017), growth 32.

    Each 3x3 adds 32 channels in front of all that came before it.
    """
    net = _stem()
    for stage, count in enumerate((6, 12, 48, 32)):
        if stage:
            net.conv(64 << stage, 1)
            net.maxpool()
        for _ in range(count):
            source = net.last
            net.conv(128, 1)
            net.route(net.conv(32), source)
    return _classes(net)


def _stem() -> Stack:
    net = Stack(256)
    net.conv(64, 7, stride=2)
    net.maxpool()
    return net


def _bottleneck(net: Stack, filters: int, stride: int) -> None:
    source = net.last
    net.conv(filters, 1)
    net.conv(filters, 3, stride)
    net.conv(4 * filters, 1, activation="linear")
    net.shortcut(source, "leaky")


def _classes(net: Stack) -> list[Section]:
    net.plain_conv(_CLASSES)
    net.avgpool()
    return _classified(net)


# EfficientNet-B0 (Tan and Le, 2019) as Darknet has it: some expansions are narrower.

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
        _efficientnet_block(net, channels, filters, size, stride)
        for _ in range(blocks - 1):
            source = net.last
            _efficientnet_block(net, filters, filters, size, stride=1)
            net.add("dropout")
            net.shortcut(source)
        channels = filters
    net.conv(1280, 1)
    net.avgpool()
    net.add("dropout")
    net.plain_conv(_CLASSES)
    net.softmax()
    return net.sections


def _efficientnet_block(net: Stack, channels: int, filters: int, size: int, stride: int) -> None:
    """Expansion, depthwise convolution, squeeze and excitation, projection (MBConv)."""
    wide, squeezed = WIDTHS[channels]
    net.conv(wide, 1)
    expanded = net.conv(wide, size, stride, groups=wide)
    net.avgpool()
    net.plain_conv(squeezed, activation="swish")
    net.plain_conv(wide, activation="logistic")
    net.scale_by_last(expanded)
    net.conv(filters, 1, activation="linear")
