"""From the outputs of a detector to candidate boxes, the best of all its heads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from models.detection.grids import seen_in_cells
from models.detection.listed import seen_in_list
from models.detection.recipe import AnyHead, DetectionHead
from models.detection.sight import BLOCK_NUMBERS, Sight
from models.images.placement import Size

#: No more candidates than this are kept, the best ones: without a limit a request could have a million
#: boxes compared with each other. Suppression among them is not changed by it: only better boxes suppress.
MAX_CANDIDATES = 30_000
#: What decoding takes at most beside what it finds: some arrays of a block, and places of its classes.
WORK_BYTES = 48 * BLOCK_NUMBERS
#: Of a candidate: four float64, a float32, an index.
ENTRY_BYTES = 4 * 8 + 4 + 8
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
    def best(cls, parts: Sequence[Self], most: int = MAX_CANDIDATES) -> Self:
        """Return the best ``most`` of ``parts``; where scores are equal, earlier ones first."""
        if not parts:
            return cls(np.empty((0, 4)), np.empty(0, np.float32), np.empty(0, np.intp))
        scores = np.concatenate([part.scores for part in parts])
        order = np.argsort(-scores, kind="stable")[:most]
        boxes = np.concatenate([part.boxes for part in parts])[order]
        classes = np.concatenate([part.classes for part in parts])[order]
        return cls(boxes, scores[order], classes)


def candidates(
    outputs: Mapping[str, NDArray[Any]],
    heads: tuple[AnyHead, ...],
    size: Size,
    threshold: float,
    most: int = MAX_CANDIDATES,
) -> Candidates:
    """Return the best ``most`` of what ``heads`` see whose score and objectness exceed ``threshold``.

    ``outputs`` holds those of each head (models/detection/recipe.py); ``size`` is (width, height)
    of the network's input. Boxes and scores that are not finite are left out. Equal scores come in
    Darknet's order: by head, cell, anchor.
    """
    found: list[Candidates] = []
    count = 0
    held = most + most // 4  # before those that are not among the best are let go
    for head in heads:
        for sight in _sights(head, outputs, size, threshold):
            found.append(_likely(sight, threshold, most))
            count += len(found[-1].scores)
            if count > held:
                found = [Candidates.best(found, most)]
                count = len(found[0].scores)
    return Candidates.best(found, most)


def _sights(
    head: AnyHead, outputs: Mapping[str, NDArray[Any]], size: Size, threshold: float
) -> Iterator[Sight]:
    if isinstance(head, DetectionHead):
        return seen_in_cells(head, outputs[head.output], size, threshold)
    return seen_in_list(head.listing, outputs, size, threshold)


def _likely(sight: Sight, threshold: float, most: int) -> Candidates:
    """Return the best ``most`` of ``sight`` with scores above ``threshold``."""
    boxes, scores = sight.boxes, sight.scores
    with np.errstate(invalid="ignore", over="ignore"):
        sane = np.all(np.abs(boxes) < _LARGEST, axis=1)
        place, number = np.nonzero(
            (scores > np.float32(threshold)) & np.isfinite(scores) & sane[:, None]
        )
    found = scores[place, number]
    if len(found) > most:
        best = np.argsort(-found, kind="stable")[:most]
        place, number, found = place[best], number[best], found[best]
    return Candidates(boxes[place], found, number)
