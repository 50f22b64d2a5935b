"""Average precision of a detector, as Pascal VOC counts it since 2010: the area below the whole curve."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Edges = tuple[float, float, float, float]
#: Class, score, edges, best first.
Found = Sequence[tuple[int, float, Edges]]
#: Edges [n, 4] and classes [n].
Truth = tuple[NDArray[np.float32], NDArray[np.int64]]


def average_precisions(
    found: Sequence[Found], truth: Sequence[Truth], classes: int, overlap: float = 0.5
) -> list[float]:
    """Return the average precision of each class over images; 0 where nothing of a class is there."""
    return [_of_class(found, truth, number, overlap) for number in range(classes)]


def _of_class(found: Sequence[Found], truth: Sequence[Truth], number: int, overlap: float) -> float:
    hits: list[tuple[float, bool]] = []
    total = 0
    for seen, (edges, classes) in zip(found, truth, strict=True):
        there = edges[classes == number]
        total += len(there)
        free = np.ones(len(there), bool)
        for kind, score, box in seen:
            if kind == number:
                hits.append((score, _taken(np.asarray(box), there, free, overlap)))
    if not total or not hits:
        return 0.0
    right = np.cumsum([hit for _, hit in sorted(hits, key=lambda each: -each[0])])
    precision = right / np.arange(1, len(right) + 1)
    # Precision at a recall: the best at that recall or above.
    best = np.maximum.accumulate(precision[::-1])[::-1]
    steps = np.diff(right, prepend=0) / total
    return float(np.sum(steps * best))


def _taken(
    box: NDArray[np.float64], there: NDArray[np.float32], free: NDArray[np.bool_], overlap: float
) -> bool:
    """Return whether ``box`` is on the object that it overlaps most, which nobody took; take it."""
    if not len(there):
        return False
    low, high = np.maximum(box[:2], there[:, :2]), np.minimum(box[2:], there[:, 2:])
    inner = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = np.prod(box[2:] - box[:2]) + np.prod(there[:, 2:] - there[:, :2], axis=1)
    shared = inner / np.maximum(areas - inner, 1e-12)
    best = int(np.argmax(shared))
    if shared[best] < overlap or not free[best]:
        return False
    free[best] = False
    return True
