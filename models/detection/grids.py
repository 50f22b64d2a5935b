"""From detection layers to what they see: Darknet's get_yolo_detections and its kin.

Objectness is looked at first: few cells see anything, and only those are decoded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.detection.recipe import DetectionHead
from models.detection.sight import BLOCK_NUMBERS, Sight, logistic, softmax
from models.images.placement import Size


def seen_in_cells(
    head: DetectionHead, output: NDArray[Any], size: Size, threshold: float
) -> Iterator[Sight]:
    """Yield what has objectness above ``threshold``; ``size`` is (width, height) of the network's input."""
    for cells in _blocks(head, output, threshold):
        boxes = _boxes(head, cells, size)
        with np.errstate(invalid="ignore", over="ignore"):
            yield Sight(boxes, _scores(head, cells.entries))


@dataclass(frozen=True)
class _Cells:
    """Cells and anchors that may see something: entries float32 [n, 5 + classes] and where they are."""

    entries: NDArray[np.float32]
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    anchors: NDArray[np.intp]
    grid: Size


def _blocks(head: DetectionHead, output: NDArray[Any], threshold: float) -> Iterator[_Cells]:
    rows, columns = output.shape[2:]
    planes = output.reshape(len(head.anchors), 5 + head.classes, rows, columns)
    step = max(1, BLOCK_NUMBERS // (columns * head.planes))
    for start in range(0, rows, step):
        block = planes[:, :, start : start + step]
        # Darknet, too, asks objectness first: a region layer without softmax may have larger classes.
        seen = _objectness(head, block[:, 4]) > np.float32(threshold)
        row, column, anchor = np.nonzero(seen.transpose(1, 2, 0))
        if not len(row):
            continue
        entries = block[anchor, :, row, column]
        yield _Cells(entries, row + start, column, anchor, (columns, rows))


def _objectness(head: DetectionHead, values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values if head.activated or head.new_coords else logistic(values)


def _scores(head: DetectionHead, entries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return objectness times class, [n, classes]."""
    objectness, classes = _objectness(head, entries[:, 4:5]), entries[:, 5:]
    if not head.activated:
        if head.kind == "yolo" and not head.new_coords:
            classes = logistic(classes)
        elif head.kind == "region" and head.softmax and len(classes):
            classes = softmax(classes)
    return objectness * classes


def _boxes(head: DetectionHead, cells: _Cells, size: Size) -> NDArray[np.float64]:
    """Return centre x, y, width, height relative to the network's input, [n, 4]."""
    values = cells.entries[:, :4].astype(np.float64)
    anchors = np.array(head.anchors)[cells.anchors]
    centres, extents = values[:, :2], values[:, 2:]
    with np.errstate(invalid="ignore", over="ignore"):
        if not head.activated:
            centres = _spread(head, centres)
        corners = np.stack([cells.columns, cells.rows], axis=1)
        centres = (corners + centres) / cells.grid
        if head.new_coords:
            extents = np.square(extents) * 4 * anchors / size
        else:
            extents = np.exp(extents) * anchors / (size if head.kind == "yolo" else cells.grid)
    return np.concatenate([centres, extents], axis=1)


def _spread(head: DetectionHead, centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what Darknet's layer makes of the x and y that it receives."""
    if head.kind == "region":
        return logistic(centres)
    held = centres if head.new_coords else logistic(centres)
    return np.asarray(held * head.scale_x_y - 0.5 * (head.scale_x_y - 1))
