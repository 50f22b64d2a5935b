"""Average precision of boxes: how well a detector finds what is marked (as PASCAL VOC from 2010 on).

Boxes of a class are taken from the best score down. Each is compared with the object of its class in its
picture that it overlaps most; it hits if that is by a half or more and no better box has hit it.
Difficult objects count neither as found nor as missed. The average precision of a class is the area below
precision over recall, where precision is the best at that recall or a higher one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from models.detection.boxes import Box

#: From which overlap on a box hits an object.
HIT_OVERLAP = 0.5

Edges = tuple[float, float, float, float]


@dataclass(frozen=True)
class TrueObject:
    """An object that is there: class, x_min, y_min, x_max, y_max, whether it may be missed."""

    index: int
    edges: Edges
    difficult: bool = False


@dataclass
class _Class:
    """Of the boxes of a class scores and whether they hit; how many objects there are to hit."""

    scores: list[float] = field(default_factory=list)
    hits: list[bool] = field(default_factory=list)
    objects: int = 0


class MeanPrecision:
    """Counts pictures one after the other; boxes are of pixels."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}

    def add(self, seen: Sequence[Box], targets: Sequence[TrueObject]) -> None:
        """Count what was seen in a picture beside what is there."""
        for index in {box.index for box in seen} | {target.index for target in targets}:
            counted = self._classes.setdefault(index, _Class())
            there = [target for target in targets if target.index == index]
            counted.objects += sum(not target.difficult for target in there)
            boxes = [box for box in seen if box.index == index]
            self._count(counted, sorted(boxes, key=lambda box: -box.score), there)

    def _count(self, counted: _Class, boxes: list[Box], there: list[TrueObject]) -> None:
        taken = [False] * len(there)
        for box in boxes:
            overlaps = [overlap(box.edges, target.edges) for target in there]
            best = int(np.argmax(overlaps)) if overlaps else -1
            reaches = best >= 0 and overlaps[best] >= HIT_OVERLAP
            if reaches and there[best].difficult:
                continue
            counted.scores.append(box.score)
            counted.hits.append(reaches and not taken[best])
            if reaches:
                taken[best] = True

    def by_class(self) -> dict[int, float]:
        """Return the average precision of each class that has objects."""
        return {
            index: _area(np.array(counted.scores), np.array(counted.hits, bool), counted.objects)
            for index, counted in sorted(self._classes.items())
            if counted.objects
        }

    def mean(self) -> float:
        """Return the mean over classes that have objects; 0 where none has."""
        by_class = self.by_class()
        return sum(by_class.values()) / len(by_class) if by_class else 0.0


def overlap(one: Edges, other: Edges) -> float:
    """Return the area that two boxes share, as part of that of both; 0 where they have none."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    areas = sum((edges[2] - edges[0]) * (edges[3] - edges[1]) for edges in (one, other))
    return shared / (areas - shared)


def _area(scores: NDArray[np.float64], hits: NDArray[np.bool_], objects: int) -> float:
    order = np.argsort(-scores, kind="stable")
    hits_so_far = np.cumsum(hits[order])
    precision = hits_so_far / np.arange(1, len(hits_so_far) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    # Recall grows by one object at each hit.
    return float(best[hits[order]].sum() / objects)
