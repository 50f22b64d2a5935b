"""Ultralytics' detectors, as its exporter writes them, batch norms not folded.

YOLOv8 and YOLO11 give [1, 4 + classes, boxes], YOLOv5 [1, boxes, 5 + classes]; boxes are centre, width and
height in pixels of the input.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import onnx
from numpy.typing import NDArray

from models.detection.heads import ListedHead
from models.detection.recipe import Detection
from models.graphs.metadata import DETECTION, PREPROCESS
from models.images.preprocess import Preprocess
from models.records import plain, read_record
from models.zoo.builder import SkeletonBuilder, ZooTensor
from models.zoo.entry import COCO

# Blocks of YOLOv5, YOLOv8 and YOLO11, under the names that their authors gave them.

_EPSILON = 1e-3
Block = Callable[[ZooTensor], ZooTensor]


class _Net(SkeletonBuilder):
    """A network whose channels and repeats come from a table and are scaled."""

    def __init__(self, name: str, resolution: int, width: float, depth: float) -> None:
        super().__init__(name, resolution)
        self._width = width
        self._depth = depth

    def wide(self, channels: int) -> int:
        """Return the scaled number of ``channels``, a multiple of 8."""
        return math.ceil(channels * self._width / 8) * 8

    def deep(self, repeats: int) -> int:
        """Return the scaled number of ``repeats``."""
        return max(round(repeats * self._depth), 1)

    def unit(
        self,
        x: ZooTensor,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        pad: int | None = None,
        groups: int = 1,
        active: bool = True,
    ) -> ZooTensor:
        """Convolution, batch norm and SiLU: what the tables call Conv."""
        pads = None if pad is None else (pad, pad, pad, pad)
        y = self.norm(self.conv(x, channels, kernel, stride, groups=groups, pads=pads), _EPSILON)
        return self.silu(y) if active else y

    def bottleneck(
        self, x: ZooTensor, channels: int, hidden: int, first: int, add: bool = True
    ) -> ZooTensor:
        """Two convolutions, of ``first`` and 3 pixels, around a shortcut."""
        y = self.unit(self.unit(x, hidden, first), channels, 3)
        return self.add(x, y) if add else y

    def c3(
        self, x: ZooTensor, channels: int, repeats: int, first: int = 1, add: bool = True
    ) -> ZooTensor:
        """Half of the channels through bottlenecks, the other half beside them."""
        half = channels // 2
        y = self.unit(x, half)
        for _ in range(repeats):
            y = self.bottleneck(y, half, half, first, add)
        return self.unit(self.concat(y, self.unit(x, half)), channels)

    def c2f(self, x: ZooTensor, channels: int, half: int, blocks: list[Block]) -> ZooTensor:
        """Two halves; each of ``blocks`` adds another to what is joined."""
        parts = self.split(self.unit(x, 2 * half), (half, half))
        for block in blocks:
            parts.append(block(parts[-1]))
        return self.unit(self.concat(*parts), channels)

    def sppf(self, x: ZooTensor, channels: int) -> ZooTensor:
        """Maxima over 5, 9 and 13 pixels, joined."""
        parts = [self.unit(x, x.channels // 2)]
        for _ in range(3):
            parts.append(self.max_pool(parts[-1], 5, 1, pad=2))
        return self.unit(self.concat(*parts), channels)


# Detection heads, decoded inside the network as exporters leave them.

_CLASSES = 80
#: Pixels of a cell on each level.
STRIDES = (8, 16, 32)
#: Width and height in pixels, three of each level.
_ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
#: How likely each of so many distances to an edge is.
_BINS = 16
_OUTPUT = "output0"
_GREY = 114
# A random detector is sure of nothing nearly everywhere: the logistic of these is 0.01, 0.05 and 0.12.
_CLASS_ALONE, _OBJECTNESS, _CLASS = -4.5, -3.0, -2.0

Whole = NDArray[np.int64]
Biases = Mapping[str, NDArray[np.float32]]


def _without_anchors(net: _Net, levels: Sequence[tuple[ZooTensor, ZooTensor]]) -> onnx.ModelProto:
    """Return the network with a head on ``levels``: numbers of distances to four edges, of classes."""
    flat = [net.reshape(net.concat(*level), 1, 4 * _BINS + _CLASSES, -1) for level in levels]
    sides = [level[0].shape[2] for level in levels]
    edges, classes = net.split(net.concat(*flat, axis=2), (4 * _BINS, _CLASSES))
    before, behind = net.split(_distances(net, edges), (2, 2))
    corners = net.whole_numbers("cells", np.concatenate([_cells(n) for n in sides], axis=1)[None])
    centres = net.add(corners, net.constant("half", 0.5))
    low, high = net.sub(centres, before), net.add(centres, behind)
    middle = net.div(net.add(low, high), net.constant("two", 2.0))
    strides = np.repeat(STRIDES, [n * n for n in sides])[None]
    boxes = net.mul(net.concat(middle, net.sub(high, low)), net.whole_numbers("strides", strides))
    return _detector(net, net.concat(boxes, net.sigmoid(classes)), "yolov8")


def _distances(net: _Net, edges: ZooTensor) -> ZooTensor:
    """Return the mean distance to each edge, in cells, of how likely each is."""
    count = edges.shape[2]
    likely = net.transpose(net.reshape(edges, 1, 4, _BINS, count), 0, 2, 1, 3)
    bins = net.constant("bins", np.arange(float(_BINS)).reshape(1, _BINS, 1, 1))
    mean = net.add_node("Conv", [net.softmax(likely, axis=1), bins], (1, 1, 4, count))
    return net.reshape(mean, 1, 4, count)


def class_biases() -> Biases:
    """Return what the convolutions "classes1", ... of a head without anchors add."""
    values = np.full(_CLASSES, _CLASS_ALONE, np.float32)
    return {f"classes{level + 1}.bias": values for level in range(len(STRIDES))}


def _with_anchors(net: _Net, levels: Sequence[ZooTensor]) -> onnx.ModelProto:
    """Return the network with YOLOv5's head on ``levels``: 5 + classes numbers of each anchor."""
    boxes = [_anchored(net, *level) for level in zip(levels, STRIDES, _ANCHORS, strict=True)]
    return _detector(net, net.concat(*boxes), "yolov5")


def _anchored(
    net: _Net, x: ZooTensor, stride: int, anchors: Sequence[tuple[int, int]]
) -> ZooTensor:
    side, count = x.shape[2], 5 + _CLASSES
    apart = net.transpose(net.reshape(x, 1, len(anchors), count, side, side), 0, 1, 3, 4, 2)
    centre, size, scores = net.split(net.sigmoid(apart), (2, 2, 1 + _CLASSES), axis=4)
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
    one = np.zeros(5 + _CLASSES, np.float32)
    one[4], one[5:] = _OBJECTNESS, _CLASS
    return {f"detect{i + 1}.bias": np.tile(one, len(_ANCHORS[i])) for i in range(len(STRIDES))}


def _cells(side: int) -> Whole:
    """Return column and row of each cell of a level, [2, side * side]."""
    rows, columns = np.divmod(np.arange(side * side), side)
    return np.stack([columns, rows])


def _detector(net: _Net, output: ZooTensor, kind: str) -> onnx.ModelProto:
    side = net.image.shape[2]
    recipe = Preprocess(size=(side, side), resize="letterbox", scale=1 / 255, pad_value=_GREY)
    head = read_record(ListedHead, {"output": _OUTPUT, "kind": kind, "classes": _CLASSES})
    entries = {PREPROCESS: recipe, DETECTION: Detection(heads=(head,), labels=COCO)}
    return net.skeleton(
        {_OUTPUT: output},
        {key: plain(entry, without_defaults=True) for key, entry in entries.items()},
    )


# YOLOv5 (Jocher 2020, release 6.0 and later), size s: backbone of C3, pyramid up and down, anchors.


def yolov5s(resolution: int, width: float = 1.0) -> onnx.ModelProto:
    """Return YOLOv5s for COCO's 80 classes; output "output0" [1, boxes, 85]."""
    net = _Net("yolov5s", resolution, 0.5 * width, 0.33)
    wide, deep = net.wide, net.deep
    x = net.unit(net.image, wide(64), 6, 2, pad=2)
    x = net.c3(net.unit(x, wide(128), 3, 2), wide(128), deep(3))
    eighth = x = net.c3(net.unit(x, wide(256), 3, 2), wide(256), deep(6))
    sixteenth = x = net.c3(net.unit(x, wide(512), 3, 2), wide(512), deep(9))
    x = net.c3(net.unit(x, wide(1024), 3, 2), wide(1024), deep(3))
    coarse = net.unit(net.sppf(x, wide(1024)), wide(512))
    x = net.c3(net.concat(net.upsample(coarse), sixteenth), wide(512), deep(3), add=False)
    middle = net.unit(x, wide(256))
    fine = net.c3(net.concat(net.upsample(middle), eighth), wide(256), deep(3), add=False)
    x = net.concat(net.unit(fine, wide(256), 3, 2), middle)
    medium = net.c3(x, wide(512), deep(3), add=False)
    x = net.concat(net.unit(medium, wide(512), 3, 2), coarse)
    large = net.c3(x, wide(1024), deep(3), add=False)
    levels = [
        net.conv(level, len(anchors) * (5 + _CLASSES), 1, bias=True, label=f"detect{number}")
        for number, (level, anchors) in enumerate(
            zip((fine, medium, large), _ANCHORS, strict=True), 1
        )
    ]
    return _with_anchors(net, levels)


# YOLOv8 (Jocher et al. 2023), size n: backbone of C2f, pyramid up and down, no anchors.


def yolov8n(resolution: int, width: float = 1.0) -> onnx.ModelProto:
    """Return YOLOv8n for COCO's 80 classes; output "output0" [1, 84, boxes]."""
    net = _Net("yolov8n", resolution, 0.25 * width, 0.33)
    wide = net.wide
    x = net.unit(net.unit(net.image, wide(64), 3, 2), wide(128), 3, 2)
    x = net.unit(_yolov8_stage(net, x, 128, 3), wide(256), 3, 2)
    eighth = _yolov8_stage(net, x, 256, 6)
    sixteenth = _yolov8_stage(net, net.unit(eighth, wide(512), 3, 2), 512, 6)
    x = _yolov8_stage(net, net.unit(sixteenth, wide(1024), 3, 2), 1024, 3)
    coarse = net.sppf(x, wide(1024))
    middle = _yolov8_stage(net, net.concat(net.upsample(coarse), sixteenth), 512, 3, add=False)
    fine = _yolov8_stage(net, net.concat(net.upsample(middle), eighth), 256, 3, add=False)
    x = net.concat(net.unit(fine, wide(256), 3, 2), middle)
    medium = _yolov8_stage(net, x, 512, 3, add=False)
    x = net.concat(net.unit(medium, wide(512), 3, 2), coarse)
    large = _yolov8_stage(net, x, 1024, 3, add=False)
    levels = (fine, medium, large)
    return _without_anchors(net, [_yolov8_level(net, x, n, fine) for n, x in enumerate(levels, 1)])


def _yolov8_stage(
    net: _Net, x: ZooTensor, channels: int, repeats: int, add: bool = True
) -> ZooTensor:
    half = net.wide(channels) // 2
    block = partial(net.bottleneck, channels=half, hidden=half, first=3, add=add)
    return net.c2f(x, 2 * half, half, [block] * net.deep(repeats))


def _yolov8_level(
    net: _Net, x: ZooTensor, number: int, fine: ZooTensor
) -> tuple[ZooTensor, ZooTensor]:
    """Return what a level says of boxes and of classes."""
    boxes, classes = _box_channels(fine), max(fine.channels, _CLASSES)
    y = net.unit(net.unit(x, boxes, 3), boxes, 3)
    z = net.unit(net.unit(x, classes, 3), classes, 3)
    return (
        net.conv(y, 4 * _BINS, 1, bias=True, label=f"boxes{number}"),
        net.conv(z, _CLASSES, 1, bias=True, label=f"classes{number}"),
    )


def _box_channels(fine: ZooTensor) -> int:
    """Return how many channels the boxes of all levels come from, the finest being ``fine``."""
    return max(16, fine.channels // 4, 4 * _BINS)


# YOLO11 (Jocher et al. 2024), size n: backbone of C3k2, attention on the coarsest level, no anchors.

_HEAD = 64  # channels that one attention head looks at


def yolo11n(resolution: int, width: float = 1.0) -> onnx.ModelProto:
    """Return YOLO11n for COCO's 80 classes; output "output0" [1, 84, boxes]."""
    net = _Net("yolo11n", resolution, 0.25 * width, 0.5)
    wide = net.wide
    x = net.unit(net.unit(net.image, wide(64), 3, 2), wide(128), 3, 2)
    x = net.unit(_yolo11_stage(net, x, 256, hidden=0.25), wide(256), 3, 2)
    eighth = _yolo11_stage(net, x, 512, hidden=0.25)
    sixteenth = _yolo11_stage(net, net.unit(eighth, wide(512), 3, 2), 512, nested=True)
    x = _yolo11_stage(net, net.unit(sixteenth, wide(1024), 3, 2), 1024, nested=True)
    coarse = _attending(net, net.sppf(x, wide(1024)), net.deep(2))
    middle = _yolo11_stage(net, net.concat(net.upsample(coarse), sixteenth), 512)
    fine = _yolo11_stage(net, net.concat(net.upsample(middle), eighth), 256)
    medium = _yolo11_stage(net, net.concat(net.unit(fine, wide(256), 3, 2), middle), 512)
    x = net.concat(net.unit(medium, wide(512), 3, 2), coarse)
    large = _yolo11_stage(net, x, 1024, nested=True)
    levels = (fine, medium, large)
    return _without_anchors(net, [_yolo11_level(net, x, n, fine) for n, x in enumerate(levels, 1)])


def _yolo11_stage(
    net: _Net, x: ZooTensor, channels: int, hidden: float = 0.5, nested: bool = False
) -> ZooTensor:
    """C3k2: a C2f of bottlenecks, or (``nested``) of C3 with two bottlenecks each."""
    inner = int(net.wide(channels) * hidden)
    if nested:
        block = partial(net.c3, channels=inner, repeats=2, first=3)
    else:
        block = partial(net.bottleneck, channels=inner, hidden=inner // 2, first=3)
    return net.c2f(x, net.wide(channels), inner, [block] * net.deep(2))


def _attending(net: _Net, x: ZooTensor, repeats: int) -> ZooTensor:
    """C2PSA: half of the channels look at all others, the other half stays beside them."""
    half = x.channels // 2
    beside, y = net.split(net.unit(x, 2 * half), (half, half))
    for _ in range(repeats):
        y = net.add(y, _attention(net, y))
        y = net.add(y, net.unit(net.unit(y, 2 * half), half, active=False))
    return net.unit(net.concat(beside, y), x.channels)


def _attention(net: _Net, x: ZooTensor) -> ZooTensor:
    """Let each cell sum up what all cells say; a depthwise convolution says where they are."""
    heads = max(x.channels // _HEAD, 1)
    size = x.channels // heads
    key_size, cells = size // 2, math.prod(x.shape[2:])
    all_three = net.unit(x, x.channels + 2 * key_size * heads, active=False)
    apart = net.reshape(all_three, 1, heads, 2 * key_size + size, cells)
    query, key, value = net.split(apart, (key_size, key_size, size), axis=2)
    scale = net.constant("scale", 1 / math.sqrt(key_size))
    match = net.mul(net.matmul(net.transpose(query, 0, 1, 3, 2), key), scale)
    weights = net.transpose(net.softmax(match, axis=-1), 0, 1, 3, 2)
    seen = net.reshape(net.matmul(value, weights), *x.shape)
    place = net.unit(net.reshape(value, *x.shape), x.channels, 3, groups=x.channels, active=False)
    return net.unit(net.add(seen, place), x.channels, active=False)


def _yolo11_level(
    net: _Net, x: ZooTensor, number: int, fine: ZooTensor
) -> tuple[ZooTensor, ZooTensor]:
    """Return what a level says of boxes and of classes, these by depthwise convolutions."""
    boxes, classes = _box_channels(fine), max(fine.channels, _CLASSES)
    y = net.unit(net.unit(x, boxes, 3), boxes, 3)
    z = x
    for _ in range(2):
        z = net.unit(net.unit(z, z.channels, 3, groups=z.channels), classes)
    return (
        net.conv(y, 4 * _BINS, 1, bias=True, label=f"boxes{number}"),
        net.conv(z, _CLASSES, 1, bias=True, label=f"classes{number}"),
    )
