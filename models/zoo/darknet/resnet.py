"""ResNet and DenseNet as Darknet has them: leaky activations, classes before the mean."""

from models.darknet.cfg.section import Section
from models.zoo.darknet.classifiers import CLASSES, classified
from models.zoo.darknet.stack import Stack


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
    net.plain_conv(CLASSES)
    net.avgpool()
    return classified(net)
