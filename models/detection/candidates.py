"""From the outputs of a detector to candidate boxes, the best of all its heads: of grids, and of lists."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.detection.heads import AnchorLevel, AnyHead, BoxesHead, DetectionHead
from models.detection.recipe import Detection
from models.images.placement import Size

# What a head sees before scores are compared, a block of its output at a time.

Real = TypeVar("Real", np.float32, np.float64)

#: A head is decoded in blocks of about so many numbers, however low the threshold is.
_BLOCK_NUMBERS = 1 << 14


@dataclass(frozen=True)
class _Sight:
    """Boxes and scores of all classes, float32 [n, classes]; what the network gives may be nonsense.

    Boxes are float64 [n, 4]: centre x, y, width, height, relative to the network's input; so are the first
    two numbers of each of their points, float64 [n, points, numbers]. ``factors``: of their masks, float32
    [n, channels].
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float32]
    points: NDArray[np.float64]
    factors: NDArray[np.float32]


def logistic(values: NDArray[Real]) -> NDArray[Real]:
    """Return 1 / (1 + exp(-x)) of each value."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-values)))


def softmax(values: NDArray[Real]) -> NDArray[Real]:
    """Return the shares of each row that ``values`` are logarithms of."""
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


# From detection layers to what they see: Darknet's get_yolo_detections and its kin.
#
# Objectness is looked at first: few cells see anything, and only those are decoded.


def _seen_in_cells(
    head: DetectionHead, output: NDArray[Any], size: Size, threshold: float
) -> Iterator[_Sight]:
    """Yield what has objectness above ``threshold``; ``size`` is (width, height) of the network's input."""
    for cells in _blocks(head, output, threshold):
        boxes = _cell_boxes(head, cells, size)
        with np.errstate(invalid="ignore", over="ignore"):
            scores = _cell_scores(head, cells.entries)
            count = len(boxes)
            yield _Sight(boxes, scores, np.empty((count, 0, 2)), np.empty((count, 0), np.float32))


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
    step = max(1, _BLOCK_NUMBERS // (columns * head.planes))
    for start in range(0, rows, step):
        block = planes[:, :, start : start + step]
        # Darknet, too, looks at objectness first: a region layer without softmax may have larger classes.
        seen = _objectness(head, block[:, 4]) > np.float32(threshold)
        row, column, anchor = np.nonzero(seen.transpose(1, 2, 0))
        if not len(row):
            continue
        entries = block[anchor, :, row, column]
        yield _Cells(entries, row + start, column, anchor, (columns, rows))


def _objectness(head: DetectionHead, values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values if head.activated or head.new_coords else logistic(values)


def _cell_scores(head: DetectionHead, entries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return objectness times class, [n, classes]."""
    objectness, classes = _objectness(head, entries[:, 4:5]), entries[:, 5:]
    if not head.activated:
        if head.kind == "yolo" and not head.new_coords:
            classes = logistic(classes)
        elif head.kind == "region" and head.softmax and len(classes):
            classes = softmax(classes)
    return objectness * classes


def _cell_boxes(head: DetectionHead, cells: _Cells, size: Size) -> NDArray[np.float64]:
    """Return centre x, y, width, height relative to the network's input, [n, 4]."""
    values = cells.entries[:, :4].astype(np.float64)
    anchors = np.array(head.anchors)[cells.anchors]
    centres, extents = values[:, :2], values[:, 2:]
    with np.errstate(invalid="ignore", over="ignore"):
        if not head.activated:
            centres = _spread_centres(head, centres)
        corners = np.stack([cells.columns, cells.rows], axis=1)
        centres = (corners + centres) / cells.grid
        if head.new_coords:
            extents = np.square(extents) * 4 * anchors / size
        else:
            extents = np.exp(extents) * anchors / (size if head.kind == "yolo" else cells.grid)
    return np.concatenate([centres, extents], axis=1)


def _spread_centres(head: DetectionHead, centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what Darknet's layer makes of the x and y that it receives."""
    if head.kind == "region":
        return logistic(centres)
    held = centres if head.new_coords else logistic(centres)
    return np.asarray(held * head.scale_x_y - 0.5 * (head.scale_x_y - 1))


# From lists of boxes and scores to what a detector sees: SSD, RetinaNet, YOLOv5, DETR and their kin.

_SIDES = 4
# The error of logits in single precision. Candidates that pass are compared exactly.
_MARGIN = 0.01


def _seen_in_list(
    head: BoxesHead, outputs: Mapping[str, NDArray[Any]], size: Size, threshold: float
) -> Iterator[_Sight]:
    """Yield what may have a score above ``threshold``; ``size``: (width, height) of the input."""
    boxes = _Table(head, outputs[head.boxes])
    scores = _Table(head, outputs[head.scores], head.is_single)
    indices = None if head.indices is None else outputs[head.indices].reshape(-1)
    # Of networks that list as many as they find it may be nonsense.
    count = min(len(each) for each in (boxes, scores, indices) if each is not None)
    step = max(1, _BLOCK_NUMBERS // max(boxes.row_length, scores.row_length, head.classes))
    anchors = _Anchors(head, size)
    for start in range(0, count, step):
        end = min(start + step, count)
        entries = scores.rows(start, end)
        with np.errstate(invalid="ignore", over="ignore"):
            places = _likely_entries(head, entries, threshold)
            if not len(places):
                continue
            entry_scores = _listed_scores(head, entries[places])
            if head.index_at is not None:
                entry_scores = _spread_scores(head, entry_scores, entries[places, head.index_at])
            elif indices is not None:
                entry_scores = _spread_scores(head, entry_scores, indices[start:end][places])
            values = boxes.rows(start, end)[places]
            decoded = _listed_boxes(head, values, anchors, places + start, size)
            if head.rotated:
                decoded, points = _turned(head, decoded, values, size)
            else:
                points = _keypoints(head, values, size)
            factors = values[:, head.factors_at : head.factors_at + head.channels]
            yield _Sight(decoded, entry_scores, points, factors)


class _Table:
    """An output as rows of ``numbers`` in the order of the boxes, copied where they are asked for."""

    def __init__(self, head: BoxesHead, output: NDArray[Any], is_single: bool = False) -> None:
        listed = head.rows(output.shape, is_single)
        assert listed is not None
        self._count, self.row_length = listed
        self._planes: NDArray[Any] | None = None
        if head.layout == "planes":
            _, planes, rows, columns = output.shape
            shape = planes // self.row_length, self.row_length, rows, columns
            self._planes = output.reshape(shape).transpose(2, 3, 0, 1)
        elif head.layout == "columns":
            self._rows = output[0].T
        else:
            self._rows = output.reshape(-1, self.row_length)

    def __len__(self) -> int:
        return self._count

    def rows(self, first: int, end: int) -> NDArray[Any]:
        """Return rows [first, end)."""
        if self._planes is None:
            return np.asarray(self._rows[first:end])
        row, column, anchor = np.unravel_index(np.arange(first, end), self._planes.shape[:3])
        return np.asarray(self._planes[row, column, anchor])


def _likely_entries(head: BoxesHead, entries: NDArray[Any], threshold: float) -> NDArray[np.intp]:
    """Return which rows may have a score above ``threshold``."""
    if head.objectness is not None:
        looked, is_raw = entries[:, head.objectness, None], head.activation != "none"
    else:
        looked, is_raw = _raw_scores(head, entries), head.activation == "sigmoid"
        if head.activation == "softmax":
            looked = _without_background(head, softmax(looked))
        else:
            looked = _without_background(head, looked)
    least = np.float32(_logit(threshold) - _MARGIN if is_raw else threshold)
    return np.flatnonzero(np.any(looked > least, axis=1))


def _logit(value: float) -> float:
    with np.errstate(divide="ignore"):
        return float(np.log(value) - np.log1p(-value))


def _raw_scores(head: BoxesHead, entries: NDArray[Any]) -> NDArray[np.float32]:
    return entries[:, head.scores_at : head.scores_at + head.columns]


def _without_background(head: BoxesHead, scores: NDArray[Any]) -> NDArray[Any]:
    if head.background is None or head.names_classes:
        return scores
    return np.asarray(scores[:, 1:] if head.background == "first" else scores[:, :-1])


def _listed_scores(head: BoxesHead, entries: NDArray[Any]) -> NDArray[np.float32]:
    """Return a score for each class, or the one that there is: [n, classes] or [n, 1]."""
    scores = _raw_scores(head, entries)
    if head.activation == "softmax":
        scores = softmax(scores)
    elif head.activation == "sigmoid":
        scores = logistic(scores)
    scores = _without_background(head, scores)
    if head.objectness is None:
        return scores
    objectness = entries[:, head.objectness, None]
    return np.asarray((objectness if head.activation == "none" else logistic(objectness)) * scores)


def _spread_scores(
    head: BoxesHead, scores: NDArray[np.float32], indices: NDArray[Any]
) -> NDArray[np.float32]:
    """Return ``scores`` [n, 1] in the columns that ``indices`` name; what is no class has none."""
    spread = np.zeros((len(scores), head.classes), np.float32)
    classes = np.nan_to_num(indices.astype(np.float64), nan=-1) - (head.background == "first")
    known = np.flatnonzero((classes >= 0) & (classes < head.classes))
    spread[known, classes[known].astype(np.intp)] = scores[known, 0]
    return spread


def _listed_boxes(
    head: BoxesHead,
    values: NDArray[Any],
    anchors: "_Anchors",
    places: NDArray[np.intp],
    size: Size,
) -> NDArray[np.float64]:
    """Return centre x, y, width, height relative to the input, [n, 4], of the boxes ``places``."""
    numbers = values[:, head.boxes_at : head.boxes_at + _SIDES * head.bins].astype(np.float64)
    if head.bins > 1:
        shares = softmax(numbers.reshape(-1, head.bins))
        numbers = (shares @ np.arange(head.bins)).reshape(-1, _SIDES)
    if head.axes == "yx":
        numbers = numbers[:, [1, 0, 3, 2]]
    first, second = numbers[:, :2], numbers[:, 2:]
    if head.anchors:
        centres, sizes = anchors.at(places)
        if head.box == "distances":
            return _between(centres - first * sizes, centres + second * sizes)
        first = first * head.variances[0] * sizes + centres
        grown = second * head.variances[1]
        return np.concatenate([first, (grown if head.linear else np.exp(grown)) * sizes], axis=1)
    boxes = numbers if head.box == "centre" else _between(first, second)
    return boxes / (*size, *size) if head.unit == "pixels" else boxes


def _keypoints(head: BoxesHead, values: NDArray[Any], size: Size) -> NDArray[np.float64]:
    """Return the points of each box, [n, points, numbers]; the first two numbers relative to the input."""
    count, length = head.keypoints or (0, 2)
    row = values[:, head.points_at : head.points_at + count * length].astype(np.float64)
    points = row.reshape(len(values), count, length)
    if head.unit == "pixels":
        points[:, :, :2] /= size
    if head.axes == "yx":
        points[:, :, :2] = points[:, :, 1::-1]
    return points


#: Corners of a box, in halves of its width and height from its centre: clockwise, its upper left one first.
_CORNERS = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])


def _turned(
    head: BoxesHead, boxes: NDArray[np.float64], values: NDArray[Any], size: Size
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the upright boxes around ``boxes``, each turned by its angle, and their corners, [n, 4, 2].

    Pixels of the input are square, parts of it may be not.
    """
    angle = values[:, head.points_at, None].astype(np.float64)
    half = boxes[:, None, 2:] * size / 2 * _CORNERS
    x, y = half[:, :, 0], half[:, :, 1]
    turned = np.stack(
        [x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)], axis=2
    )
    corners = boxes[:, None, :2] + turned / size
    return _between(corners.min(axis=1), corners.max(axis=1)), corners


def _between(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([(low + high) / 2, high - low], axis=1)


class _Anchors:
    """The anchors of a head in an input of ``size``, made where they are asked for."""

    def __init__(self, head: BoxesHead, size: Size) -> None:
        self._head, self._size = head, size
        self._starts = np.cumsum([0, *(level.count for level in head.anchors)])

    def at(self, places: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return centres and sizes relative to the input, [2, n, 2]."""
        centres = np.empty((2, len(places), 2))
        levels = np.searchsorted(self._starts, places, side="right") - 1
        for number in np.unique(levels):
            of_level = levels == number
            inside = places[of_level] - self._starts[number]
            centres[:, of_level] = self._of_level(self._head.anchors[number], inside)
        return np.asarray(centres.clip(0, 1) if self._head.clip_anchors else centres)

    def _of_level(self, level: AnchorLevel, places: NDArray[np.intp]) -> Sequence[NDArray[Any]]:
        columns, rows = level.grid
        if self._head.sizes_first:
            shape = len(level.anchors), rows, columns
            anchor, row, column = np.unravel_index(places, shape)
        else:
            row, column, anchor = np.unravel_index(places, (rows, columns, len(level.anchors)))
        cells = np.stack([column, row], axis=1) + level.offset
        step = (
            np.divide(1, level.grid)
            if level.stride is None
            else level.stride / np.array(self._size)
        )
        return cells * step, np.array(level.anchors)[anchor] / self._size


#: No more candidates than this are kept, the best ones: without a limit a request could have a million
#: boxes compared with each other. Suppression among them is not changed by it: only better boxes suppress.
MAX_CANDIDATES = 30_000
#: What decoding takes at most beside what it finds: some arrays of a block, and places of its classes.
WORK_BYTES = 48 * _BLOCK_NUMBERS
# Of a candidate: four float64, a float32, an index.
_ENTRY_BYTES = 4 * 8 + 4 + 8
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Candidates:
    """One entry a box and class: boxes float64 [n, 4] (centre x, y, width, height), scores, classes.

    Boxes are relative to the network's input, as the first two numbers of each of their ``points``,
    [n, points, numbers]. All of these are finite. ``factors`` of masks are float32 [n, channels].
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float32]
    classes: NDArray[np.intp]
    points: NDArray[np.float64]
    factors: NDArray[np.float32]

    @property
    def n_bytes(self) -> int:
        arrays = self.boxes, self.scores, self.classes, self.points, self.factors
        return sum(array.nbytes for array in arrays)

    @classmethod
    def best(cls, parts: Sequence[Self], most: int = MAX_CANDIDATES) -> Self:
        """Return the best ``most`` of ``parts``; where scores are equal, earlier ones first."""
        if not parts:
            nothing = np.empty(0, np.float32), np.empty(0, np.intp)
            factors = np.empty((0, 0), np.float32)
            return cls(np.empty((0, 4)), *nothing, np.empty((0, 0, 2)), factors)
        scores = np.concatenate([part.scores for part in parts])
        order = np.argsort(-scores, kind="stable")[:most]
        boxes = np.concatenate([part.boxes for part in parts])[order]
        classes = np.concatenate([part.classes for part in parts])[order]
        points = np.concatenate([part.points for part in parts])[order]
        factors = np.concatenate([part.factors for part in parts])[order]
        return cls(boxes, scores[order], classes, points, factors)


def entry_bytes(detection: Detection) -> int:
    """Return what a candidate takes."""
    points = 0 if detection.points is None else math.prod(detection.points)
    channels = 0 if detection.masks is None else detection.masks.channels
    doubles, singles = np.dtype(np.float64).itemsize, np.dtype(np.float32).itemsize
    return _ENTRY_BYTES + points * doubles + channels * singles


def candidates(
    outputs: Mapping[str, NDArray[Any]],
    heads: tuple[AnyHead, ...],
    size: Size,
    threshold: float,
    most: int = MAX_CANDIDATES,
    multi_label: bool = True,
) -> Candidates:
    """Return the best ``most`` of what ``heads`` see whose score and objectness exceed ``threshold``.

    ``multi_label``: a box may be there for several classes, else for the best.

    ``outputs`` holds those of each head (models/detection/recipe.py); ``size`` is (width, height)
    of the network's input. Boxes and scores that are not finite are left out. Equal scores come in
    Darknet's order: by head, cell, anchor.
    """
    likely: list[Candidates] = []
    count = 0
    most_kept = most + most // 4  # before those that are not among the best are let go
    for head in heads:
        for sight in _sights(head, outputs, size, threshold):
            best = sight if multi_label else _of_best_class(sight)
            likely.append(_likely(best, threshold, most))
            count += len(likely[-1].scores)
            if count > most_kept:
                likely = [Candidates.best(likely, most)]
                count = len(likely[0].scores)
    return Candidates.best(likely, most)


def _sights(
    head: AnyHead, outputs: Mapping[str, NDArray[Any]], size: Size, threshold: float
) -> Iterator[_Sight]:
    if isinstance(head, DetectionHead):
        return _seen_in_cells(head, outputs[head.output], size, threshold)
    return _seen_in_list(head.listing, outputs, size, threshold)


def _of_best_class(sight: _Sight) -> _Sight:
    """Return ``sight`` without the scores of all classes but the best of each box."""
    scores = np.where(np.isfinite(sight.scores), sight.scores, -np.inf)
    rows, best = np.arange(len(scores)), scores.argmax(axis=1)
    single = np.full_like(sight.scores, -np.inf)
    single[rows, best] = scores[rows, best]
    return replace(sight, scores=single)


def _likely(sight: _Sight, threshold: float, most: int) -> Candidates:
    """Return the best ``most`` of ``sight`` with scores above ``threshold``."""
    boxes, scores, points = sight.boxes, sight.scores, sight.points
    with np.errstate(invalid="ignore", over="ignore"):
        sane = np.all(np.abs(boxes) < _LARGEST, axis=1)
        sane &= np.all(np.abs(points) < _LARGEST, axis=(1, 2))
        place, number = np.nonzero(
            (scores > np.float32(threshold)) & np.isfinite(scores) & sane[:, None]
        )
    best_scores = scores[place, number]
    if len(best_scores) > most:
        best = np.argsort(-best_scores, kind="stable")[:most]
        place, number, best_scores = place[best], number[best], best_scores[best]
    return Candidates(boxes[place], best_scores, number, points[place], sight.factors[place])
