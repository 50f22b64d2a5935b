"""Patch tunnels as graphs, and what reads them: a classifier, or a detector (seed 004)."""

from collections.abc import Sequence
from functools import reduce
from itertools import product

import numpy as np
import onnx
from numpy.typing import NDArray

from models.detection.heads import ListedHead
from models.detection.recipe import Detection
from models.graphs.metadata import DETECTION
from models.records import plain
from models.zoo.builder import SIGNED, SkeletonBuilder, ZooTensor
from models.zoo.patchnet.design import Design, Patch, PatchLayer

# Patch tunnels as graphs: one after the other in the order of nodes, each from its own patch.


def _tunnel(net: SkeletonBuilder, design: Design, number: int) -> dict[str, ZooTensor]:
    """Add the tunnel of patch ``number``; return what each of its layers makes, by name.

    Weights are called after their layer, and after their tunnel where they are not shared.
    """
    patch = design.patches[number]
    x = net.crop(net.image, patch.top, patch.left, patch.height, patch.width)
    made = {}
    for layer in design.layers:
        label = f"{_tunnel_label(design, number)}.{layer.name}"
        make = _bottleneck if layer.expansion else _stem
        made[layer.name] = x = make(net, x, layer, label)
    return made


def _tunnel_label(design: Design, number: int) -> str:
    """Return what names of weights of the tunnel ``number`` begin with."""
    return "tunnel" if design.options.shared else f"tunnel{number + 1}"


def _separable(net: SkeletonBuilder, x: ZooTensor, channels: int, label: str) -> ZooTensor:
    """Add a depthwise convolution and a pointwise one with a bias (SSDLite's predictor)."""
    y = net.conv(x, x.channels, 3, groups=x.channels, label=f"{label}.depthwise")
    y = net.relu6(net.norm(y, label=f"{label}.depthwise.norm"))
    return net.conv(y, channels, 1, bias=True, label=label)


def _stem(net: SkeletonBuilder, x: ZooTensor, layer: PatchLayer, label: str) -> ZooTensor:
    y = net.conv(x, layer.outputs[2], 3, layer.stride, label=label)
    return net.relu6(net.norm(y, label=f"{label}.norm"))


def _bottleneck(net: SkeletonBuilder, x: ZooTensor, layer: PatchLayer, label: str) -> ZooTensor:
    """Add expansion, depthwise convolution and projection as MobileNetV2 has them."""
    wide = layer.expanded

    def conv(
        part: str, y: ZooTensor, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> ZooTensor:
        named = f"{label}.{part}"
        made = net.conv(y, channels, kernel, stride, groups=groups, label=named)
        return net.norm(made, label=f"{named}.norm")

    y = net.relu6(conv("expand", x, wide))
    y = net.relu6(conv("depthwise", y, wide, 3, stride=layer.stride, groups=wide))
    y = conv("project", y, layer.outputs[2])
    return net.add(x, y) if layer.inputs == layer.outputs else y


def classifier(design: Design, classes: int) -> onnx.ModelProto:
    """Return the network; output "logits" [1, classes].

    What a tunnel leaves is the mean of each channel: the sum needs no more memory than that.
    """
    net = SkeletonBuilder("patchnet", design.options.image[:2], SIGNED)

    def features(number: int) -> ZooTensor:
        return net.global_pool(_tunnel(net, design, number)[design.layers[-1].name])

    total = reduce(lambda x, n: net.add(x, features(n)), range(1, len(design.patches)), features(0))
    return net.model(net.linear(net.flatten(total), classes))


# The detector: SSDLite's predictors behind the last stages of each tunnel (seed 004, Section 4).

#: Width and height of boxes as parts of the image, some for each level, the finest level first.
Anchors = Sequence[Sequence[tuple[float, float]]]

#: As SSD spreads them (Liu et al. 2016, Section 2.2): 0.1, then 0.2 to 0.9 of the image, and between.
ANCHORS: Anchors = (
    ((0.1, 0.1), (0.14, 0.14)),
    ((0.2, 0.2), (0.33, 0.33)),
    ((0.55, 0.55), (0.9, 0.9)),
)
#: The output: [1, 4 + classes, boxes], YOLOv8's.
OUTPUT = "output0"
#: What a predictor gives for a box is multiplied by these: centre, size (SSD's variances).
_CENTRE, _SIZE = 0.1, 0.2


def detector(
    design: Design, classes: int, anchors: Anchors = ANCHORS, labels: Sequence[str] = ()
) -> onnx.ModelProto:
    """Return the network; ``anchors``: of as many of the last stages."""
    net = SkeletonBuilder("patchnet-ssdlite", design.options.image[:2], SIGNED)
    levels = list(zip(_ends(design)[-len(anchors) :], anchors, strict=True))
    numbers = 4 + classes
    predictions = []
    for number in range(len(design.patches)):
        features = _tunnel(net, design, number)
        for index, (layer, boxes) in enumerate(levels, 1):
            label = f"{_tunnel_label(design, number)}.detect{index}"
            seen = _separable(net, features[layer.name], numbers * len(boxes), label)
            predictions.append(net.reshape(seen, 1, numbers, -1))
    whole = np.concatenate(
        [
            _cells(patch, layer, boxes, design)
            for patch in design.patches
            for layer, boxes in levels
        ],
        axis=1,
    )
    decoded = _decoded(net, net.concat(*predictions, axis=2), whole)
    head = ListedHead(output=OUTPUT, kind="yolov8", classes=classes)
    recipe = Detection(heads=(head,), labels=tuple(labels))
    entry = {DETECTION: plain(recipe, without_defaults=True)}
    return net.skeleton({OUTPUT: decoded}, {**net.recipe("stretch"), **entry})


def _ends(design: Design) -> list[PatchLayer]:
    """Return the last layer of each stage."""
    return [
        layer
        for layer, after in zip(design.layers, (*design.layers[1:], None), strict=True)
        if layer.expansion and (after is None or after.stride > 1)
    ]


def _cells(
    patch: Patch, layer: PatchLayer, boxes: Sequence[tuple[float, float]], design: Design
) -> NDArray[np.int64]:
    """Return centre x, y, width and height in whole pixels of each box that a level predicts from."""
    height, width, _ = design.options.image
    rows, columns, _ = layer.outputs
    cells = [
        (
            patch.left + (2 * column + 1) * patch.width // (2 * columns),
            patch.top + (2 * row + 1) * patch.height // (2 * rows),
            max(1, round(size[0] * width)),
            max(1, round(size[1] * height)),
        )
        for size, row, column in product(boxes, range(rows), range(columns))
    ]
    return np.array(cells, np.int64).T


def _decoded(net: SkeletonBuilder, seen: ZooTensor, cells: NDArray[np.int64]) -> ZooTensor:
    """Return boxes in pixels and probabilities of what the predictors say beside their anchors."""
    places = net.whole_numbers("anchors.centres", cells[None, :2])
    sizes = net.whole_numbers("anchors.sizes", cells[None, 2:])
    classes = seen.shape[1] - 4
    centre, size, scores = net.split(seen, (2, 2, classes))
    moved = net.mul(net.mul(centre, net.constant("centre.variance", _CENTRE)), sizes)
    grown = net.add_node("Exp", [net.mul(size, net.constant("size.variance", _SIZE))], size.shape)
    return net.concat(net.add(moved, places), net.mul(grown, sizes), net.sigmoid(scores))


def score_biases(
    design: Design, classes: int, anchors: Anchors = ANCHORS
) -> dict[str, NDArray[np.float32]]:
    """Return what the predictors add: of an untrained one every box is nothing, with 0.98."""
    labels = {_tunnel_label(design, number) for number in range(len(design.patches))}
    return {
        f"{label}.detect{index}.bias": np.repeat(
            np.array([0.0] * 4 + [-4.0] * classes, np.float32), len(boxes)
        )
        for label in sorted(labels)
        for index, boxes in enumerate(anchors, 1)
    }
