"""Non-maximum suppression: of boxes of a class that overlap, the best remains.

Upright boxes as Darknet does it. Rotated ones as Ultralytics does: each is the normal distribution that has
its centre and spread, and overlap is one less the Hellinger distance of two (arXiv 2106.06072).

Boxes are float64 [n, 4]: centre x, y, width, height, relative to the image. Inside, edges are [4, n],
each of left, top, right, bottom contiguous: NumPy is slow along short axes.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["greedy", "diou", "none"]
Numbers = NDArray[np.float64]

#: What comparing boxes takes for each of the class that has most of them: edges, and arrays of numbers.
SUPPRESSION_BYTES = 192


def suppress(
    boxes: Numbers,
    scores: NDArray[Any],
    classes: NDArray[Any],
    threshold: float,
    kind: Kind = "greedy",
    beta: float = 0.6,
) -> NDArray[np.intp]:
    """Return the indices of the boxes that remain, best score first; equal scores keep their order.

    A box goes when a better one of its class, which remains itself, overlaps it by more than
    ``threshold``: by their IoU, or for "diou" by IoU - (d / c) ** beta, where d is the square of the
    distance between the centres and c that of the diagonal of the box around both. "none": all remain.
    Memory is linear in n.
    """

    def remaining(indices: NDArray[np.intp]) -> NDArray[np.bool_]:
        return _remaining(_edges(boxes[indices]), threshold, beta if kind == "diou" else None)

    return _best_first(scores) if kind == "none" else _by_class(scores, classes, remaining)


def suppress_rotated(
    corners: Numbers, scores: NDArray[Any], classes: NDArray[Any], threshold: float
) -> NDArray[np.intp]:
    """As ``suppress``, of boxes with ``corners`` [n, 4, 2], one after the other, in square units.

    A box goes when any better one of its class overlaps it by more than ``threshold``, which may go itself.
    """

    def remaining(indices: NDArray[np.intp]) -> NDArray[np.bool_]:
        return _rotated_remaining(_spreads(corners[indices]), threshold)

    return _by_class(scores, classes, remaining)


def _best_first(scores: NDArray[Any]) -> NDArray[np.intp]:
    return np.argsort(-scores, kind="stable")


def _by_class(
    scores: NDArray[Any],
    classes: NDArray[Any],
    remaining: Callable[[NDArray[np.intp]], NDArray[np.bool_]],
) -> NDArray[np.intp]:
    """Return what remains; ``remaining`` says which of the boxes of a class do, best first."""
    order = _best_first(scores)
    kept = np.zeros(len(order), np.bool_)
    for number in np.unique(classes):
        indices = np.flatnonzero(classes[order] == number)
        kept[indices[remaining(order[indices])]] = True
    return order[kept]


def _edges(boxes: Numbers) -> Numbers:
    half = boxes[:, 2:] / 2
    return np.ascontiguousarray(
        np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1).T
    )


def _remaining(edges: Numbers, threshold: float, beta: float | None) -> NDArray[np.bool_]:
    """Return which boxes (one class, best first) remain; ``beta`` None: by IoU alone."""
    alive = np.ones(edges.shape[1], np.bool_)
    areas = (edges[2] - edges[0]) * (edges[3] - edges[1])
    for best in range(len(alive)):
        if not alive[best]:
            continue
        rest = slice(best + 1, None)
        iou = _overlap(edges[:, best], areas[best], edges[:, rest], areas[rest])
        near = np.flatnonzero(iou > threshold)  # the distance only makes it less
        if beta is not None and near.size:
            separation = _separation(edges[:, best], edges[:, rest][:, near])
            near = near[iou[near] - separation**beta > threshold]
        alive[rest][near] = False
    return alive


def _overlap(box: Numbers, area: float, others: Numbers, areas: Numbers) -> Numbers:
    """Return the IoU of ``box`` with each of ``others``; 0 where the union is empty."""
    width = np.minimum(box[2], others[2]) - np.maximum(box[0], others[0])
    height = np.minimum(box[3], others[3]) - np.maximum(box[1], others[1])
    common = np.maximum(width, 0) * np.maximum(height, 0)
    union = area + areas - common
    return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=union > 0))


def _separation(box: Numbers, others: Numbers) -> Numbers:
    """Return d / c of ``box`` and each of ``others``; 0 where c is."""
    width = np.maximum(box[2], others[2]) - np.minimum(box[0], others[0])
    height = np.maximum(box[3], others[3]) - np.minimum(box[1], others[1])
    diagonal = width**2 + height**2
    across = (box[0] + box[2] - others[0] - others[2]) / 2
    down = (box[1] + box[3] - others[1] - others[3]) / 2
    distance = across**2 + down**2
    return np.asarray(
        np.divide(distance, diagonal, out=np.zeros_like(distance), where=diagonal > 0)
    )


# Rotated boxes.


def _spreads(corners: Numbers) -> Numbers:
    """Return [5, n]: the centre x, y of each box, and the variances of x and y and their covariance."""
    centre = corners.mean(axis=1)
    along, down = corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0]
    spread = (along**2 + down**2) / 12
    both = (along[:, 0] * along[:, 1] + down[:, 0] * down[:, 1]) / 12
    return np.stack([centre[:, 0], centre[:, 1], spread[:, 0], spread[:, 1], both])


def _rotated_remaining(boxes: Numbers, threshold: float) -> NDArray[np.bool_]:
    """Return which of the ``_spreads`` (one class, best first) no better one overlaps."""
    alive = np.ones(boxes.shape[1], np.bool_)
    farthest = _distance(threshold)
    areas = _area(boxes)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for best in range(len(alive)):
            rest = slice(best + 1, None)
            distances = _distances(boxes[:, best], areas[best], boxes[:, rest], areas[rest])
            alive[rest][distances < farthest] = False
    return alive


def _distance(overlap: float) -> float:
    """Return the Bhattacharyya distance of two boxes that overlap so."""
    unlike = (1 - overlap) ** 2
    return -math.log1p(-unlike) if unlike < 1 else math.inf


def _area(boxes: Numbers) -> Numbers:
    """Return the determinants of their covariances."""
    return np.asarray(boxes[2] * boxes[3] - boxes[4] ** 2)


def _distances(box: Numbers, area: float, others: Numbers, areas: Numbers) -> Numbers:
    """Return the Bhattacharyya distance of ``box`` to each of ``others``; NaN where a box has no area."""
    x, y = others[:2] - box[:2, None]
    wide, high, both = others[2:] + box[2:, None]
    area_of_sums = wide * high - both**2
    between = (high * x**2 + wide * y**2 - 2 * both * x * y) / (4 * area_of_sums)
    return np.asarray(between + np.log(area_of_sums / (4 * np.sqrt(area * areas))) / 2)
