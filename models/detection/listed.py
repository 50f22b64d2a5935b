"""From lists of boxes and scores to what a detector sees: SSD, RetinaNet, YOLOv5, DETR and their kin."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.detection.recipe import AnchorLevel, BoxesHead
from models.detection.sight import BLOCK_NUMBERS, Sight, logistic, softmax
from models.images.placement import Size

_SIDES = 4
# Of logits: what single precision may be wrong by. Who passes is looked at exactly.
_MARGIN = 0.01


def seen_in_list(
    head: BoxesHead, outputs: Mapping[str, NDArray[Any]], size: Size, threshold: float
) -> Iterator[Sight]:
    """Yield what may have a score above ``threshold``; ``size``: (width, height) of the input."""
    boxes = _Table(head, outputs[head.boxes])
    scores = _Table(head, outputs[head.scores], head.is_single)
    indices = None if head.indices is None else outputs[head.indices].reshape(-1)
    # Of networks that list as many as they find it may be nonsense.
    count = min(len(each) for each in (boxes, scores, indices) if each is not None)
    step = max(1, BLOCK_NUMBERS // max(boxes.numbers, scores.numbers, head.classes))
    anchors = _Anchors(head, size)
    for start in range(0, count, step):
        end = min(start + step, count)
        entries = scores.rows(start, end)
        with np.errstate(invalid="ignore", over="ignore"):
            places = _likely(head, entries, threshold)
            if not len(places):
                continue
            found = _scores(head, entries[places])
            if indices is not None:
                found = _spread(head, found, indices[start:end][places])
            values = boxes.rows(start, end)[places]
            yield Sight(_boxes(head, values, anchors, places + start, size), found)


class _Table:
    """An output as rows of ``numbers`` in the order of the boxes, copied where they are asked for."""

    def __init__(self, head: BoxesHead, output: NDArray[Any], is_single: bool = False) -> None:
        listed = head.rows(output.shape, is_single)
        assert listed is not None
        self._count, self.numbers = listed
        self._planes: NDArray[Any] | None = None
        if head.layout == "planes":
            _, planes, rows, columns = output.shape
            shape = planes // self.numbers, self.numbers, rows, columns
            self._planes = output.reshape(shape).transpose(2, 3, 0, 1)
        elif head.layout == "columns":
            self._rows = output[0].T
        else:
            self._rows = output.reshape(-1, self.numbers)

    def __len__(self) -> int:
        return self._count

    def rows(self, first: int, end: int) -> NDArray[Any]:
        """Return rows [first, end)."""
        if self._planes is None:
            return np.asarray(self._rows[first:end])
        row, column, anchor = np.unravel_index(np.arange(first, end), self._planes.shape[:3])
        return np.asarray(self._planes[row, column, anchor])


def _likely(head: BoxesHead, entries: NDArray[Any], threshold: float) -> NDArray[np.intp]:
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
    if head.background is None or head.indices is not None:
        return scores
    return np.asarray(scores[:, 1:] if head.background == "first" else scores[:, :-1])


def _scores(head: BoxesHead, entries: NDArray[Any]) -> NDArray[np.float32]:
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


def _spread(
    head: BoxesHead, scores: NDArray[np.float32], indices: NDArray[Any]
) -> NDArray[np.float32]:
    """Return ``scores`` [n, 1] in the columns that ``indices`` name; what is no class has none."""
    spread = np.zeros((len(scores), head.classes), np.float32)
    classes = np.nan_to_num(indices.astype(np.float64), nan=-1) - (head.background == "first")
    known = np.flatnonzero((classes >= 0) & (classes < head.classes))
    spread[known, classes[known].astype(np.intp)] = scores[known, 0]
    return spread


def _boxes(
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


def _between(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([(low + high) / 2, high - low], axis=1)


class _Anchors:
    """The anchors of a head in an input of ``size``, made where they are asked for."""

    def __init__(self, head: BoxesHead, size: Size) -> None:
        self._head, self._size = head, size
        self._starts = np.cumsum([0, *(level.count for level in head.anchors)])

    def at(self, places: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return centres and sizes relative to the input, [2, n, 2]."""
        found = np.empty((2, len(places), 2))
        levels = np.searchsorted(self._starts, places, side="right") - 1
        for number in np.unique(levels):
            of_level = levels == number
            inside = places[of_level] - self._starts[number]
            found[:, of_level] = self._of_level(self._head.anchors[number], inside)
        return np.asarray(found.clip(0, 1) if self._head.clip_anchors else found)

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
