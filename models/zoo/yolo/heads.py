"""Detection heads, decoded inside the network as exporters leave them.

YOLOv8 and YOLO11 give [1, 4 + classes, boxes], YOLOv5 [1, boxes, 5 + classes]; boxes are centre, width and
height in pixels of the input.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray

from models.detection.coco import COCO
from models.detection.recipe import Detection, ListedHead
from models.graphs.metadata import DETECTION, PREPROCESS
from models.images.preprocess import Preprocess
from models.zoo.builder import ZooTensor
from models.zoo.yolo.blocks import Net

CLASSES = 80
#: Pixels of a cell on each level.
STRIDES = (8, 16, 32)
#: Width and height in pixels, three of each level.
ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
#: How likely each of so many distances to an edge is.
BINS = 16
_OUTPUT = "output0"
_GREY = 114
# A random detector is sure of nothing nearly everywhere: the logistic of these is 0.01, 0.05 and 0.12.
_CLASS_ALONE, _OBJECTNESS, _CLASS = -4.5, -3.0, -2.0

Whole = NDArray[np.int64]
Biases = Mapping[str, NDArray[np.float32]]


def without_anchors(net: Net, levels: Sequence[tuple[ZooTensor, ZooTensor]]) -> onnx.ModelProto:
    """Return the network with a head on ``levels``: numbers of distances to four edges, of classes."""
    flat = [net.reshape(net.concat(*level), 1, 4 * BINS + CLASSES, -1) for level in levels]
    sides = [level[0].shape[2] for level in levels]
    edges, classes = net.split(net.concat(*flat, axis=2), (4 * BINS, CLASSES))
    before, behind = net.split(_distances(net, edges), (2, 2))
    corners = net.whole_numbers("cells", np.concatenate([_cells(n) for n in sides], axis=1)[None])
    centres = net.add(corners, net.constant("half", 0.5))
    low, high = net.sub(centres, before), net.add(centres, behind)
    middle = net.div(net.add(low, high), net.constant("two", 2.0))
    strides = np.repeat(STRIDES, [n * n for n in sides])[None]
    boxes = net.mul(net.concat(middle, net.sub(high, low)), net.whole_numbers("strides", strides))
    return _detector(net, net.concat(boxes, net.sigmoid(classes)), "yolov8")


def _distances(net: Net, edges: ZooTensor) -> ZooTensor:
    """Return the mean distance to each edge, in cells, of how likely each is."""
    count = edges.shape[2]
    likely = net.transpose(net.reshape(edges, 1, 4, BINS, count), 0, 2, 1, 3)
    bins = net.constant("bins", np.arange(float(BINS)).reshape(1, BINS, 1, 1))
    mean = net.add_node("Conv", [net.softmax(likely, axis=1), bins], (1, 1, 4, count))
    return net.reshape(mean, 1, 4, count)


def class_biases() -> Biases:
    """Return what the convolutions "classes1", ... of a head without anchors add."""
    values = np.full(CLASSES, _CLASS_ALONE, np.float32)
    return {f"classes{level + 1}.bias": values for level in range(len(STRIDES))}


def with_anchors(net: Net, levels: Sequence[ZooTensor]) -> onnx.ModelProto:
    """Return the network with YOLOv5's head on ``levels``: 5 + classes numbers of each anchor."""
    boxes = [_anchored(net, *level) for level in zip(levels, STRIDES, ANCHORS, strict=True)]
    return _detector(net, net.concat(*boxes), "yolov5")


def _anchored(net: Net, x: ZooTensor, stride: int, anchors: Sequence[tuple[int, int]]) -> ZooTensor:
    side, count = x.shape[2], 5 + CLASSES
    apart = net.transpose(net.reshape(x, 1, len(anchors), count, side, side), 0, 1, 3, 4, 2)
    centre, size, scores = net.split(net.sigmoid(apart), (2, 2, 1 + CLASSES), axis=4)
    cells = _cells(side).T.reshape(1, 1, side, side, 2)
    grid = net.sub(net.whole_numbers(f"cells{stride}", cells), net.constant("half", 0.5))
    two = net.constant("two", 2.0)
    shown = net.mul(
        net.add(net.mul(centre, two), grid), net.constant(f"stride{stride}", float(stride))
    )
    given = net.whole_numbers(f"anchors{stride}", np.reshape(anchors, (1, len(anchors), 1, 1, 2)))
    large = net.mul(net.square(net.mul(size, two)), given)
    return net.reshape(net.concat(shown, large, scores, axis=4), 1, -1, count)


def anchor_biases() -> Biases:
    """Return what the convolutions "detect1", ... of a head with anchors add."""
    one = np.zeros(5 + CLASSES, np.float32)
    one[4], one[5:] = _OBJECTNESS, _CLASS
    return {f"detect{i + 1}.bias": np.tile(one, len(ANCHORS[i])) for i in range(len(STRIDES))}


def _cells(side: int) -> Whole:
    """Return column and row of each cell of a level, [2, side * side]."""
    rows, columns = np.divmod(np.arange(side * side), side)
    return np.stack([columns, rows])


def _detector(net: Net, output: ZooTensor, kind: str) -> onnx.ModelProto:
    side = net.image.shape[2]
    recipe = Preprocess(size=(side, side), resize="letterbox", scale=1 / 255, pad_value=_GREY)
    head = ListedHead.model_validate({"output": _OUTPUT, "kind": kind, "classes": CLASSES})
    entries = {PREPROCESS: recipe, DETECTION: Detection(heads=(head,), labels=COCO)}
    return net.skeleton(
        {_OUTPUT: output},
        {
            key: entry.model_dump(mode="json", exclude_defaults=True)
            for key, entry in entries.items()
        },
    )
