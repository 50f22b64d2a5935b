"""Non-maximum suppression as Darknet does it: of boxes of a class that overlap, the best remains.

Boxes are float64 [n, 4]: centre x, y, width, height, relative to the image. Inside, edges are [4, n], each
of left, top, right, bottom contiguous: NumPy is slow along short axes.
"""

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
    order = np.argsort(-scores, kind="stable")
    if kind == "none":
        return order
    kept = np.zeros(len(order), np.bool_)
    for number in np.unique(classes):
        places = np.flatnonzero(classes[order] == number)
        edges = _edges(boxes[order[places]])
        kept[places[_remaining(edges, threshold, beta if kind == "diou" else None)]] = True
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
            apart = _apart(edges[:, best], edges[:, rest][:, near])
            near = near[iou[near] - apart**beta > threshold]
        alive[rest][near] = False
    return alive


def _overlap(box: Numbers, area: float, others: Numbers, areas: Numbers) -> Numbers:
    """Return the IoU of ``box`` with each of ``others``; 0 where the union is empty."""
    width = np.minimum(box[2], others[2]) - np.maximum(box[0], others[0])
    height = np.minimum(box[3], others[3]) - np.maximum(box[1], others[1])
    common = np.maximum(width, 0) * np.maximum(height, 0)
    union = area + areas - common
    return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=union > 0))


def _apart(box: Numbers, others: Numbers) -> Numbers:
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
