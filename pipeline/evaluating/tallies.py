"""Figures of answers, counted sample by sample; no pack, no files."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.datasets.samples import Marked
from models.detection.boxes import Box
from models.detection.mean_precision import MeanPrecision, Seen, TrueObject

_BEST = 5


class Scores:
    """Classes that a classifier gives beside those that samples have: accuracy, confusion."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._count = self._first = self._among = 0
        self._confusion: Counter[tuple[int, int]] = Counter()

    def add(self, scores: NDArray[Any], truth: int) -> None:
        """Count one answer: scores of all classes, any shape. With NaN it has no class, and is wrong."""
        self._count += 1
        if np.isnan(scores).any():
            return
        order = np.argsort(-scores.ravel(), kind="stable")[:_BEST].tolist()
        self._first += order[0] == truth
        self._among += truth in order
        self._confusion[truth, order[0]] += 1

    def figures(self) -> dict[str, Any]:
        """Return accuracies from 0 to 1, and how often each class was taken for which; {} of no answers."""
        if not self._count:
            return {}
        return {
            "labelled": self._count,
            "top1": self._first / self._count,
            **({"top5": self._among / self._count} if len(self._names) > _BEST else {}),
            "confusion": [
                {"truth": self._names[truth], "answer": self._names[answer], "count": count}
                for (truth, answer), count in sorted(self._confusion.items())
            ],
        }


class Agreement:
    """Answers of two classifiers: how often their best class is the same, and how far scores are apart."""

    def __init__(self) -> None:
        self._count = self._same = 0
        self._largest = 0.0

    def add(self, scores: NDArray[Any], others: NDArray[Any]) -> None:
        """Count one answer of each; with NaN in one of them they do not agree."""
        self._count += 1
        if np.isnan(scores).any() or np.isnan(others).any():
            return
        self._same += int(scores.ravel().argmax()) == int(others.ravel().argmax())
        # Equal infinities, as the logarithms of zero that both give, are no distance apart.
        differ = scores != others
        apart = np.abs(scores[differ].astype(np.float64) - others[differ].astype(np.float64))
        self._largest = max(self._largest, float(apart.max(initial=0)))

    def figures(self) -> dict[str, Any]:
        """Return the part that agrees, and the largest difference of a score, where that is a number."""
        if not self._count:
            return {}
        apart = {"largest_difference": self._largest} if math.isfinite(self._largest) else {}
        return {"compared": self._count, "top1": self._same / self._count, **apart}


class BoxTally:
    """Boxes of a detector beside objects that are there: average precision at an overlap of a half."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._precision = MeanPrecision()
        self._pictures = 0

    def add(self, boxes: Sequence[Box], there: Sequence[TrueObject]) -> None:
        """Count one picture."""
        self._pictures += 1
        self._precision.add([Seen(box.index, box.score, box.edges) for box in boxes], there)

    def figures(self) -> dict[str, Any]:
        """Return the mean over classes, and each class's; {} where there was nothing to find."""
        found = self._precision.by_class()
        if not found:
            return {}
        return {
            "pictures": self._pictures,
            "map50": self._precision.mean(),
            "ap50": {self._names[index]: value for index, value in found.items()},
        }


def targets_of(marks: Sequence[Marked], classes: Mapping[str, int]) -> list[TrueObject]:
    """Return ``marks`` with the numbers of their classes.

    Raises:
        KeyError: one has a class that is not among ``classes``.
    """
    return [TrueObject(classes[mark.name], mark.edges, mark.difficult) for mark in marks]


def targets_seen(boxes: Sequence[Box]) -> list[TrueObject]:
    """Return boxes of another detector as if they were there."""
    return [TrueObject(box.index, box.edges) for box in boxes]
