"""Average precision, against cases worked out by hand and against a plain count over all thresholds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.detection.boxes import Box
from models.detection.mean_precision import Edges, MeanPrecision, TrueObject, overlap
from tests.examples import over

LEFT, RIGHT, FAR = (0.0, 0.0, 10.0, 10.0), (20.0, 0.0, 30.0, 10.0), (50.0, 50.0, 60.0, 60.0)
NEARLY = (0.0, 0.0, 10.0, 8.0)  # 0.8 of LEFT
HALF = (0.0, 0.0, 10.0, 5.0)
LESS = (0.0, 0.0, 10.0, 4.9)


def box(index: int, score: float, edges: Edges) -> Box:
    return Box(index, str(index), score, edges)


def _mean(seen: list[Box], there: list[TrueObject]) -> float:
    counted = MeanPrecision()
    counted.add(seen, there)
    return counted.mean()


CASES = {
    "all found": (
        [box(0, 0.9, LEFT), box(0, 0.8, RIGHT)],
        [TrueObject(0, LEFT), TrueObject(0, RIGHT)],
        1.0,
    ),
    "one of two found": ([box(0, 0.9, LEFT)], [TrueObject(0, LEFT), TrueObject(0, RIGHT)], 0.5),
    "a wrong one first": ([box(0, 0.9, FAR), box(0, 0.8, LEFT)], [TrueObject(0, LEFT)], 0.5),
    "a wrong one last": ([box(0, 0.9, LEFT), box(0, 0.8, FAR)], [TrueObject(0, LEFT)], 1.0),
    "seen twice": (
        [box(0, 0.9, LEFT), box(0, 0.8, NEARLY), box(0, 0.7, RIGHT)],
        [TrueObject(0, LEFT), TrueObject(0, RIGHT)],
        (1 + 2 / 3) / 2,
    ),
    "just enough": ([box(0, 0.9, HALF)], [TrueObject(0, LEFT)], 1.0),
    "just too little": ([box(0, 0.9, LESS)], [TrueObject(0, LEFT)], 0.0),
    "another class": ([box(1, 0.9, LEFT)], [TrueObject(0, LEFT)], 0.0),
    "mean of two classes": ([box(0, 0.9, LEFT)], [TrueObject(0, LEFT), TrueObject(1, RIGHT)], 0.5),
    "a difficult one missed": (
        [box(0, 0.9, LEFT)],
        [TrueObject(0, LEFT), TrueObject(0, RIGHT, True)],
        1.0,
    ),
    "a difficult one found": (
        [box(0, 0.9, RIGHT), box(0, 0.8, LEFT)],
        [TrueObject(0, LEFT), TrueObject(0, RIGHT, True)],
        1.0,
    ),
    "nothing there": ([box(0, 0.9, LEFT)], [], 0.0),
    "nothing seen": ([], [TrueObject(0, LEFT)], 0.0),
}


@over("name", CASES)
def test_average_precision_of_cases_by_hand(name: str) -> None:
    seen, there, expected = CASES[name]
    assert _mean(seen, there) == pytest.approx(expected)


def test_pictures_are_apart() -> None:
    counted = MeanPrecision()
    counted.add([box(0, 0.9, LEFT)], [TrueObject(0, RIGHT)])
    counted.add([box(0, 0.8, RIGHT)], [TrueObject(0, LEFT)])
    assert counted.by_class() == {0: 0.0}


BOX = st.tuples(*[st.integers(0, 6)] * 4).map(
    lambda t: (float(t[0]), float(t[1]), float(t[0] + t[2]), float(t[1] + t[3]))
)


@settings(max_examples=100, deadline=None)
@given(one=BOX, other=BOX)
def test_overlap_is_of_pixels(one: Edges, other: Edges) -> None:
    def pixels(box: Edges) -> np.ndarray:
        plane = np.zeros((13, 13), bool)
        plane[int(box[1]) : int(box[3]), int(box[0]) : int(box[2])] = True
        return plane

    a, b = pixels(one), pixels(other)
    together = (a | b).sum()
    assert overlap(one, other) == pytest.approx((a & b).sum() / together if together else 0.0)


@settings(max_examples=60, deadline=None)
@given(
    hits=st.lists(st.booleans(), max_size=8),
    missed=st.integers(0, 3),
)
def test_area_is_that_below_the_curve(hits: list[bool], missed: int) -> None:
    """Each box is far from the others: it hits its own object, or there is none for it."""
    boxes = [(100.0 * i, 0.0, 100.0 * i + 10, 10.0) for i in range(len(hits) + missed)]
    seen = [box(0, 1 - i / 100, boxes[i]) for i in range(len(hits))]
    there = [TrueObject(0, boxes[i]) for i, hit in enumerate(hits) if hit]
    there += [TrueObject(0, each) for each in boxes[len(hits) :]]
    found = np.cumsum(hits)
    points = (
        [(found[i] / len(there), found[i] / (i + 1)) for i in range(len(hits))] if there else []
    )
    steps = sorted({0.0, *(recall for recall, _ in points)})
    area = sum(
        (high - low) * max(precision for recall, precision in points if recall >= high)
        for low, high in itertools.pairwise(steps)
    )
    assert _mean(seen, there) == pytest.approx(area)
