"""From the outputs of detection layers to candidate boxes: Darknet's get_yolo_detections and its kin.

Objectness is looked at first: few cells see anything, and only those are decoded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.detection.recipe import Head
from models.images.placement import Size

Real = TypeVar("Real", np.float32, np.float64)

#: No more candidates than this are kept, the best ones: without a limit a request could have a million
#: boxes compared with each other. Suppression among them is not changed by it: only better boxes suppress.
MAX_CANDIDATES = 30_000
# As many are held before those that are not among the best are let go.
_MOST_HELD = MAX_CANDIDATES + MAX_CANDIDATES // 4

# A head is decoded in blocks of rows of about so many numbers, however low the threshold is.
_BLOCK_NUMBERS = 1 << 14
#: What decoding takes at most beside what it finds: some arrays of a block, and places of its classes.
WORK_BYTES = 48 * _BLOCK_NUMBERS
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Candidates:
    """One entry a box and class: boxes float64 [n, 4] (centre x, y, width, height), scores, classes.

    Boxes are relative to the network's input. Everything is finite.
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float32]
    classes: NDArray[np.intp]

    @property
    def n_bytes(self) -> int:
        return self.boxes.nbytes + self.scores.nbytes + self.classes.nbytes

    @classmethod
    def best(cls, parts: Sequence[Self]) -> Self:
        """Return the best ``MAX_CANDIDATES`` of ``parts``; where scores are equal, earlier ones first."""
        if not parts:
            return cls(np.empty((0, 4)), np.empty(0, np.float32), np.empty(0, np.intp))
        scores = np.concatenate([part.scores for part in parts])
        order = np.argsort(-scores, kind="stable")[:MAX_CANDIDATES]
        boxes = np.concatenate([part.boxes for part in parts])[order]
        classes = np.concatenate([part.classes for part in parts])[order]
        return cls(boxes, scores[order], classes)


def candidates(
    outputs: Mapping[str, NDArray[Any]], heads: tuple[Head, ...], size: Size, threshold: float
) -> Candidates:
    """Return what ``heads`` see with objectness and score above ``threshold``, best first.

    ``outputs`` holds each head's [1, anchors * (5 + classes), rows, columns] float32; ``size`` is (width,
    height) of the network's input. Boxes and scores that are not finite are left out. Equal scores come in
    Darknet's order: by head, cell, anchor.
    """
    found: list[Candidates] = []
    count = 0
    for head in heads:
        for block in _blocks(head, outputs[head.output], threshold):
            found.append(_decoded(head, block, size, threshold))
            count += len(found[-1].scores)
            if count > _MOST_HELD:
                found = [Candidates.best(found)]
                count = len(found[0].scores)
    return Candidates.best(found)


@dataclass(frozen=True)
class _Cells:
    """Cells and anchors that may see something: entries float32 [n, 5 + classes] and where they are."""

    entries: NDArray[np.float32]
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    anchors: NDArray[np.intp]
    grid: Size


def _blocks(head: Head, output: NDArray[Any], threshold: float) -> Iterator[_Cells]:
    rows, columns = output.shape[2:]
    planes = output.reshape(len(head.anchors), 5 + head.classes, rows, columns)
    step = max(1, _BLOCK_NUMBERS // (columns * head.planes))
    for start in range(0, rows, step):
        block = planes[:, :, start : start + step]
        # Darknet, too, asks objectness first: a region layer without softmax may have larger classes.
        seen = _objectness(head, block[:, 4]) > np.float32(threshold)
        row, column, anchor = np.nonzero(seen.transpose(1, 2, 0))
        if not len(row):
            continue
        entries = block[anchor, :, row, column]
        yield _Cells(entries, row + start, column, anchor, (columns, rows))


def _objectness(head: Head, values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values if head.activated or head.new_coords else _logistic(values)


def _logistic(values: NDArray[Real]) -> NDArray[Real]:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-values)))


def _softmax(values: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _decoded(head: Head, cells: _Cells, size: Size, threshold: float) -> Candidates:
    boxes = _boxes(head, cells, size)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = _scores(head, cells.entries)
        sane = np.all(np.abs(boxes) < _LARGEST, axis=1)
        place, number = np.nonzero(
            (scores > np.float32(threshold)) & np.isfinite(scores) & sane[:, None]
        )
    found = scores[place, number]
    if len(found) > MAX_CANDIDATES:
        best = np.argsort(-found, kind="stable")[:MAX_CANDIDATES]
        place, number, found = place[best], number[best], found[best]
    return Candidates(boxes[place], found, number)


def _scores(head: Head, entries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return objectness times class, [n, classes]."""
    objectness, classes = _objectness(head, entries[:, 4:5]), entries[:, 5:]
    if not head.activated:
        if head.kind == "yolo" and not head.new_coords:
            classes = _logistic(classes)
        elif head.kind == "region" and head.softmax and len(classes):
            classes = _softmax(classes)
    return objectness * classes


def _boxes(head: Head, cells: _Cells, size: Size) -> NDArray[np.float64]:
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


def _spread(head: Head, centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what Darknet's layer makes of the x and y that it receives."""
    if head.kind == "region":
        return _logistic(centres)
    held = centres if head.new_coords else _logistic(centres)
    return np.asarray(held * head.scale_x_y - 0.5 * (head.scale_x_y - 1))
