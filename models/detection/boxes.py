"""From the outputs of a detector to boxes on the photograph."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.detection.decoding import ENTRY_BYTES, MAX_CANDIDATES, Candidates, candidates
from models.detection.nms import SUPPRESSION_BYTES, suppress
from models.detection.recipe import Detection
from models.images.placement import Size
from models.images.preprocess import Preprocess


@dataclass(frozen=True)
class Box:
    """One object: class index, its label (the index as text if unnamed), score from 0 to 1.

    ``edges`` are x_min, y_min, x_max, y_max in pixels of the image, (0, 0) its upper left corner.
    """

    index: int
    label: str
    score: float
    edges: tuple[float, float, float, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as responses show them."""
        return {
            "label": self.label,
            "index": self.index,
            "score": self.score,
            "box": list(self.edges),
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
    found = seen(outputs, detection, preprocess, limits)
    boxes = boxes_among(found, detection, preprocess, image, limits)
    return boxes.part(0, len(boxes))


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
        most = min(room_bytes // CANDIDATE_BYTES, most)
    return candidates(outputs, detection.heads, preprocess.size, score, most)


#: What one candidate takes, and its box, where all are of one class (``boxes_bytes``).
CANDIDATE_BYTES = 3 * ENTRY_BYTES + SUPPRESSION_BYTES


def boxes_bytes(found: Candidates) -> int:
    """Return what ``found`` and its boxes take, from above: while they are compared, or become edges."""
    largest = int(np.bincount(found.classes).max(initial=0))
    return max(3 * found.n_bytes + largest * SUPPRESSION_BYTES, 5 * found.n_bytes)


@dataclass(frozen=True)
class Boxes:
    """Boxes as arrays [n], best score first; edges are [n, 4]: as objects they take ten times as much."""

    edges: NDArray[np.float64]
    scores: NDArray[np.float32]
    classes: NDArray[np.intp]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.scores)

    def part(self, first: int, end: int) -> list[Box]:
        """Return boxes [first, end)."""
        some = slice(first, end)
        edges, scores = self.edges[some].tolist(), self.scores[some].tolist()
        return [
            Box(index, self._label(index), score, (edge[0], edge[1], edge[2], edge[3]))
            for index, score, edge in zip(self.classes[some].tolist(), scores, edges, strict=True)
        ]

    def _label(self, index: int) -> str:
        return self.labels[index] if self.labels else str(index)


def boxes_among(
    found: Candidates,
    detection: Detection,
    preprocess: Preprocess,
    image: Size,
    limits: BoxLimits,
) -> Boxes:
    """Return the boxes of what was ``seen`` in an image of size ``image``, best score first."""
    iou = detection.iou_threshold if limits.iou is None else limits.iou
    boxes = preprocess.placement(image).to_image(found.boxes)
    kept = suppress(boxes, found.scores, found.classes, iou, detection.nms, detection.beta)
    kept = kept[: limits.count]
    edges = _edges(boxes[kept], image, limits.clip)
    return Boxes(edges, found.scores[kept], found.classes[kept], detection.labels)


def _edges(boxes: NDArray[np.float64], image: Size, clip: bool) -> NDArray[np.float64]:
    half = boxes[:, 2:] / 2
    edges = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1) * (*image, *image)
    return np.asarray(edges.clip(0, (*image, *image)) if clip else edges)
