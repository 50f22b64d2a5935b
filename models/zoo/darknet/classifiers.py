"""Darknet's own classifiers, and VGG-16 as Darknet trained it; 1000 classes of ImageNet."""

from models.darknet.cfg.section import Section
from models.zoo.darknet.blocks import residual
from models.zoo.darknet.stack import Stack

CLASSES = 1000


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
    net.plain_conv(CLASSES)
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
    net.add("connected", output=CLASSES, activation="linear")
    return classified(net)


def classified(net: Stack) -> list[Section]:
    """Close a classifier of before 2018: softmax, and the cost layer it was trained with."""
    net.softmax()
    net.add("cost")
    return net.sections


def _classes_then_mean(net: Stack) -> list[Section]:
    net.plain_conv(CLASSES)
    net.avgpool()
    return classified(net)
