"""From the outputs of a detector to boxes on the photograph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.detection.candidates import MAX_CANDIDATES, Candidates, candidates, entry_bytes
from models.detection.masks import BoxMask, BoxMasks
from models.detection.recipe import Detection
from models.detection.suppression import SUPPRESSION_BYTES, suppress, suppress_rotated
from models.images.placement import Size
from models.images.preprocess import Preprocess

# Boxes on the photograph.

Points = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Box:
    """One object: class index, its label ("class 12" if it has no name), score from 0 to 1.

    ``edges`` are x_min, y_min, x_max, y_max in pixels of the image, (0, 0) its upper left corner;
    ``keypoints`` x, y and perhaps how visible each is. Of a rotated box ``corners`` are its four,
    clockwise, and ``edges`` those of the upright one around it. ``mask``: what of the box is the object.
    None: the model has none.
    """

    index: int
    label: str
    score: float
    edges: tuple[float, float, float, float]
    keypoints: Points | None = None
    corners: Points | None = None
    mask: BoxMask | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as responses show them."""
        mask = self.mask and self.mask.as_dict()
        more = {"keypoints": self.keypoints, "corners": self.corners, "mask": mask}
        return {
            "label": self.label,
            "index": self.index,
            "score": self.score,
            "box": list(self.edges),
            **{name: value for name, value in more.items() if value is not None},
        }


@dataclass(frozen=True)
class BoxLimits:
    """What a request asks for; None takes the default of the model, or all boxes."""

    score: float | None = None
    iou: float | None = None
    count: int | None = None
    clip: bool = True


def find_boxes(
    outputs: Mapping[str, NDArray[Any]],
    detection: Detection,
    preprocess: Preprocess,
    image: Size,
    limits: BoxLimits | None = None,
) -> list[Box]:
    """Return what the detector sees in an image of size ``image`` (width, height), best score first.

    ``outputs`` are those of the network for the tensor that ``preprocess`` made of the image.
    """
    limits = limits or BoxLimits()
    candidates = seen(outputs, detection, preprocess, limits)
    prototypes = prototypes_in(outputs, detection)
    boxes = boxes_among(candidates, detection, preprocess, image, limits, prototypes)
    return boxes.part(0, len(boxes))


def prototypes_in(
    outputs: Mapping[str, NDArray[Any]], detection: Detection
) -> NDArray[np.float32] | None:
    """Return the prototypes of masks among ``outputs``, [channels, rows, columns]; None: there are none."""
    return None if detection.masks is None else outputs[detection.masks.output][0]


def seen(
    outputs: Mapping[str, NDArray[Any]],
    detection: Detection,
    preprocess: Preprocess,
    limits: BoxLimits,
    room_bytes: int | None = None,
) -> Candidates:
    """Return what of the detector's ``outputs`` becomes boxes: all that is needed of them.

    ``room_bytes``: of more than have room there while they are compared, the best.
    """
    score = detection.score_threshold if limits.score is None else limits.score
    most = MAX_CANDIDATES
    if room_bytes is not None:
        most = min(room_bytes // candidate_bytes(detection), most)
    size, heads = preprocess.size, detection.heads
    return candidates(outputs, heads, size, score, most, detection.multi_label)


def candidate_bytes(detection: Detection) -> int:
    """Return what one candidate takes, and its box, where all are of one class (``boxes_bytes``)."""
    n_bytes = entry_bytes(detection)
    return max(3 * n_bytes + SUPPRESSION_BYTES, 5 * n_bytes)


def boxes_bytes(found: Candidates) -> int:
    """Return what ``found`` and its boxes take, from above: while they are compared, or become edges."""
    largest = int(np.bincount(found.classes).max(initial=0))
    return max(3 * found.n_bytes + largest * SUPPRESSION_BYTES, 5 * found.n_bytes)


@dataclass(frozen=True)
class Boxes:
    """Boxes as arrays [n], best score first; edges are [n, 4]: as objects they take ten times as much.

    ``points``: key points of each, or corners where boxes are rotated, [n, points, numbers], in pixels.
    ``masks``: None: they have none.
    """

    edges: NDArray[np.float64]
    scores: NDArray[np.float32]
    classes: NDArray[np.intp]
    points: NDArray[np.float64]
    detection: Detection
    masks: BoxMasks | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def part(self, first: int, end: int) -> list[Box]:
        """Return boxes [first, end), but those that have masks and no pixel of an object."""
        some = slice(first, end)
        edges, scores = self.edges[some].tolist(), self.scores[some].tolist()
        classes, points = self.classes[some].tolist(), map(self._named, self.points[some].tolist())
        rows = zip(classes, scores, edges, points, strict=True)
        return [
            Box(
                index,
                self._label(index),
                score,
                (edge[0], edge[1], edge[2], edge[3]),
                *named,
                None if self.masks is None else self.masks.mask(row),
            )
            for row, (index, score, edge, named) in enumerate(rows, first)
            if self.masks is None or self.masks.has_object(row)
        ]

    def _label(self, index: int) -> str:
        labels = self.detection.labels
        return labels[index] if labels else f"class {index}"

    def _named(self, points: Points) -> tuple[Points | None, Points | None]:
        """Return ``points`` as key points or as corners."""
        if self.detection.points is None:
            return None, None
        return (None, points) if self.detection.is_rotated else (points, None)


def boxes_among(
    candidates: Candidates,
    detection: Detection,
    preprocess: Preprocess,
    image: Size,
    limits: BoxLimits,
    prototypes: NDArray[np.float32] | None = None,
) -> Boxes:
    """Return the boxes of what was ``seen`` in an image of size ``image``, best score first.

    ``prototypes``: of masks, if the detector has any; they are kept.
    """
    placement = preprocess.placement(image)
    boxes = placement.to_image(candidates.boxes)
    kept = _remaining(candidates, boxes, detection, preprocess.size, limits)
    kept = kept[: limits.count]
    edges = _pixel_edges(boxes[kept], image, limits.clip)
    points = candidates.points[kept]
    points[:, :, :2] = placement.points_to_image(points[:, :, :2]) * image
    if limits.clip and not detection.is_rotated:  # cut corners would be those of another box
        points[:, :, :2] = points[:, :, :2].clip(0, image)
    scores, classes = candidates.scores[kept], candidates.classes[kept]
    masks = None
    if prototypes is not None:
        corners = placement.points_to_input(edges.reshape(-1, 2, 2) / image)
        masks = BoxMasks(
            prototypes,
            candidates.factors[kept],
            corners.reshape(-1, 4),
            _edges(candidates.boxes[kept]),
            preprocess.size,
        )
    return Boxes(edges, scores, classes, points, detection, masks)


def _remaining(
    candidates: Candidates,
    boxes: NDArray[np.float64],
    detection: Detection,
    size: Size,
    limits: BoxLimits,
) -> NDArray[np.intp]:
    """Return which remain of ``candidates``, which are ``boxes`` of the image; ``size``: of the input."""
    iou = detection.iou_threshold if limits.iou is None else limits.iou
    scores, classes = candidates.scores, candidates.classes
    if detection.is_rotated and detection.nms != "none":
        return suppress_rotated(candidates.points * size, scores, classes, iou)
    return suppress(boxes, scores, classes, iou, detection.nms, detection.beta)


def _pixel_edges(boxes: NDArray[np.float64], image: Size, clip: bool) -> NDArray[np.float64]:
    edges = _edges(boxes) * (*image, *image)
    return np.asarray(edges.clip(0, (*image, *image)) if clip else edges)


def _edges(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
