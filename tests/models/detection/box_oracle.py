"""Darknet's formulas for boxes, one number at a time, to judge the vectorised ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from models.detection.heads import DetectionHead
from models.detection.recipe import Detection


@dataclass
class Found:
    """A box relative to the image and the probability of each class."""

    x: float
    y: float
    w: float
    h: float
    probabilities: list[float]


def logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def softmax(values: Sequence[float]) -> list[float]:
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


def activated(head: DetectionHead, entry: list[float]) -> list[float]:
    """What Darknet's layer makes of x, y, w, h, objectness, classes."""
    x, y, w, h, objectness, *classes = entry
    if head.kind == "region":
        held = softmax(classes) if head.softmax else classes
        return [logistic(x), logistic(y), w, h, logistic(objectness), *held]
    if not head.new_coords:
        x, y, objectness = logistic(x), logistic(y), logistic(objectness)
        classes = [logistic(value) for value in classes]
    shift = 0.5 * (head.scale_x_y - 1)
    return [x * head.scale_x_y - shift, y * head.scale_x_y - shift, w, h, objectness, *classes]


def one_box(
    head: DetectionHead,
    entry: list[float],
    cell: tuple[int, int],
    grid: tuple[int, int],
    net: tuple[int, int],
    anchor: tuple[float, float],
) -> tuple[float, float, float, float]:
    """get_yolo_box, get_yolo_box with new_coords, get_region_box."""
    x, y, w, h = entry[:4]
    (column, row), (columns, rows) = cell, grid
    centre = ((column + x) / columns, (row + y) / rows)
    if head.kind == "region":
        return *centre, math.exp(w) * anchor[0] / columns, math.exp(h) * anchor[1] / rows
    if head.new_coords:
        return *centre, w * w * 4 * anchor[0] / net[0], h * h * 4 * anchor[1] / net[1]
    return *centre, math.exp(w) * anchor[0] / net[0], math.exp(h) * anchor[1] / net[1]


def head_boxes(
    head: DetectionHead, output: NDArray[Any], net: tuple[int, int], threshold: float
) -> list[Found]:
    """get_yolo_detections and get_region_detections, before boxes are moved to the image."""
    found = []
    _, _, rows, columns = output.shape
    entries = output.reshape(len(head.anchors), 5 + head.classes, rows, columns)
    for row in range(rows):
        for column in range(columns):
            for number, anchor in enumerate(head.anchors):
                entry = [float(value) for value in entries[number, :, row, column]]
                if not head.activated:
                    entry = activated(head, entry)
                objectness = entry[4]
                if not objectness > threshold:
                    continue
                likely = [objectness * value for value in entry[5:]]
                likely = [value if value > threshold else 0.0 for value in likely]
                box = one_box(head, entry, (column, row), (columns, rows), net, anchor)
                found.append(Found(*box, likely))
    return found


def correct(box: Found, net: tuple[int, int], image: tuple[int, int]) -> None:
    """correct_yolo_boxes with letterbox: from the network's input to the image."""
    net_w, net_h = net
    w, h = image
    if net_w / w < net_h / h:
        new_w, new_h = net_w, max(1, (h * net_w) // w)
    else:
        new_w, new_h = max(1, (w * net_h) // h), net_h
    box.x = (box.x - (net_w - new_w) / 2.0 / net_w) / (new_w / net_w)
    box.y = (box.y - (net_h - new_h) / 2.0 / net_h) / (new_h / net_h)
    box.w *= net_w / new_w
    box.h *= net_h / new_h


def _edges(box: Found) -> tuple[float, float, float, float]:
    return box.x - box.w / 2, box.y - box.h / 2, box.x + box.w / 2, box.y + box.h / 2


def iou(a: Found, b: Found) -> float:
    """box_iou."""
    a_edges, b_edges = _edges(a), _edges(b)
    w = min(a_edges[2], b_edges[2]) - max(a_edges[0], b_edges[0])
    h = min(a_edges[3], b_edges[3]) - max(a_edges[1], b_edges[1])
    common = 0.0 if w < 0 or h < 0 else w * h
    union = a.w * a.h + b.w * b.h - common
    return 0.0 if union == 0 else common / union


def diou(a: Found, b: Found, beta: float) -> float:
    """box_diounms."""
    a_edges, b_edges = _edges(a), _edges(b)
    w = max(a_edges[2], b_edges[2]) - min(a_edges[0], b_edges[0])
    h = max(a_edges[3], b_edges[3]) - min(a_edges[1], b_edges[1])
    c = w * w + h * h
    if c == 0:
        return iou(a, b)
    d = (a.x - b.x) ** 2 + (a.y - b.y) ** 2
    return iou(a, b) - math.pow(d / c, beta)


def suppress(boxes: list[Found], classes: int, threshold: float, kind: str, beta: float) -> None:
    """do_nms_sort and diounms_sort: sets the probabilities of what goes to 0."""
    for k in range(classes):
        order = sorted(boxes, key=lambda box: -box.probabilities[k])
        for i, a in enumerate(order):
            if a.probabilities[k] == 0:
                continue
            for b in order[i + 1 :]:
                measure = iou(a, b) if kind == "greedy" else diou(a, b, beta)
                if measure > threshold:
                    b.probabilities[k] = 0.0


def detect(
    outputs: Mapping[str, NDArray[Any]],
    detection: Detection,
    net: tuple[int, int],
    image: tuple[int, int],
    letterbox: bool,
) -> list[tuple[int, float, tuple[float, ...]]]:
    """Class, score and edges in pixels of everything that remains, best first."""
    boxes = [
        box
        for head in detection.heads
        if isinstance(head, DetectionHead)
        for box in head_boxes(head, outputs[head.output], net, detection.score_threshold)
    ]
    for box in boxes if letterbox else []:
        correct(box, net, image)
    suppress(boxes, detection.classes, detection.iou_threshold, detection.nms, detection.beta)
    found = [
        (number, score, tuple(e * s for e, s in zip(_edges(box), (*image, *image), strict=True)))
        for box in boxes
        for number, score in enumerate(box.probabilities)
        if score > 0
    ]
    return sorted(found, key=lambda item: -item[1])
