"""Suppression against Darknet's loops and a definition, and what must hold for any boxes."""

import math
from typing import Any, Literal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.detection.suppression import suppress, suppress_rotated
from tests.examples import over
from tests.models.detection import box_oracle as oracle

KINDS = st.sampled_from(["greedy", "diou"])
# Numbers that binary fractions hold exactly, so that ties and equal overlaps do come up.
NUMBERS = st.integers(0, 64).map(lambda value: value / 64)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float32], NDArray[np.intp]]:
    """Boxes, scores, classes; some boxes of no size, some equal."""
    count = draw(st.integers(0, 25))
    boxes = draw(st.lists(st.tuples(*[NUMBERS] * 4), min_size=count, max_size=count))
    scores = draw(st.lists(st.integers(1, 8), min_size=count, max_size=count))
    classes = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    return (
        np.array(boxes, np.float64).reshape(-1, 4),
        np.array(scores, np.float32) / np.float32(8),
        np.array(classes, np.intp),
    )


def found(box: NDArray[np.float64], classes: int = 0) -> oracle.Found:
    x, y, w, h = box.tolist()
    return oracle.Found(x, y, w, h, [0.0] * classes)


def measure(a: NDArray[np.float64], b: NDArray[np.float64], kind: str, beta: float) -> float:
    if kind == "greedy":
        return oracle.iou(found(a), found(b))
    return oracle.diou(found(a), found(b), beta)


@given(scene=scenes(), threshold=st.floats(0, 1), kind=KINDS, beta=st.floats(0.1, 3))
def test_what_remains_does_not_overlap(
    scene: Any, threshold: float, kind: Literal["greedy", "diou"], beta: float
) -> None:
    """An antichain; and everything that went was overlapped by something better that remains."""
    boxes, scores, classes = scene
    kept = suppress(boxes, scores, classes, threshold, kind, beta).tolist()
    assert scores[kept].tolist() == sorted(scores[kept].tolist(), reverse=True)
    for i in range(len(boxes)):
        same = [j for j in kept if classes[j] == classes[i]]
        better = [j for j in same if (-scores[j], j) < (-scores[i], i)]
        largest = max((measure(boxes[j], boxes[i], kind, beta) for j in better), default=-1.0)
        # Sums in another order may round the other way.
        assert largest <= threshold + 1e-9 if i in kept else largest > threshold - 1e-9


@given(scene=scenes(), threshold=st.floats(0, 1), kind=KINDS)
def test_a_second_time_changes_nothing(
    scene: Any, threshold: float, kind: Literal["greedy", "diou"]
) -> None:
    boxes, scores, classes = scene
    kept = suppress(boxes, scores, classes, threshold, kind)
    again = suppress(boxes[kept], scores[kept], classes[kept], threshold, kind)
    assert again.tolist() == list(range(len(kept)))


@over("kind", ["greedy", "diou"])
@over("seed", range(10))
def test_as_the_loops_do(kind: Literal["greedy", "diou"], seed: int) -> None:
    generator = np.random.default_rng(seed)
    boxes = np.concatenate([generator.random((60, 2)), generator.uniform(0, 0.6, (60, 2))], axis=1)
    scores = generator.random(60, np.float32)
    classes = generator.integers(0, 3, 60)
    slow = [found(box, 3) for box in boxes]
    for box, score, number in zip(slow, scores.tolist(), classes.tolist(), strict=True):
        box.probabilities[number] = score
    oracle.suppress(slow, 3, 0.4, kind, 0.6)
    expected = {i for i, box in enumerate(slow) if any(box.probabilities)}
    assert set(suppress(boxes, scores, classes, 0.4, kind, 0.6).tolist()) == expected


@given(scene=scenes(), threshold=st.floats(0, 1), count=st.integers(0, 25))
def test_the_worst_boxes_decide_nothing(scene: Any, threshold: float, count: int) -> None:
    """Without them the others remain or go all the same: why candidates may be limited."""
    boxes, scores, classes = scene
    best = np.argsort(-scores, kind="stable")[:count]
    kept = suppress(boxes, scores, classes, threshold)
    fewer = best[suppress(boxes[best], scores[best], classes[best], threshold)]
    assert fewer.tolist() == [i for i in kept.tolist() if i in best]


def test_equal_scores_keep_their_order() -> None:
    boxes = np.array([[0.5, 0.5, 0.2, 0.2]] * 3)
    assert suppress(boxes, np.full(3, 0.5), np.zeros(3), 0.5).tolist() == [0]
    assert suppress(boxes, np.full(3, 0.5), np.arange(3), 0.5).tolist() == [0, 1, 2]


def test_distance_spares_what_stands_apart() -> None:
    """Two halves of one place overlap by a third; their distance makes DIoU spare the second."""
    boxes = np.array([[0.4, 0.5, 0.4, 0.4], [0.6, 0.5, 0.4, 0.4]])
    scores, classes = np.array([0.9, 0.8]), np.zeros(2)
    assert suppress(boxes, scores, classes, 0.3, "greedy").tolist() == [0]
    assert suppress(boxes, scores, classes, 0.3, "diou").tolist() == [0, 1]


# Rotated boxes.


def turned(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corners [n, 4, 2] of boxes [n, 5]: centre, width, height, angle."""
    x, y, width, height, angle = boxes.T
    cos, sin = np.cos(angle), np.sin(angle)
    ends = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    corners = [
        [
            x + (a * width * cos - b * height * sin) / 2,
            y + (a * width * sin + b * height * cos) / 2,
        ]
        for a, b in ends
    ]
    return np.array(corners).transpose(2, 0, 1)


def likeness(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """One less the Hellinger distance of the distributions of two rotated boxes, with matrices."""
    spreads = []
    for *_, width, height, angle in (one, other):
        rotation = np.array(
            [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        )
        spreads.append(rotation @ np.diag([width**2 / 12, height**2 / 12]) @ rotation.T)
    mean = (spreads[0] + spreads[1]) / 2
    offset = one[:2] - other[:2]
    areas = [np.linalg.det(spread) for spread in (*spreads, mean)]
    distance = offset @ np.linalg.inv(mean) @ offset / 8
    distance += math.log(areas[2] / math.sqrt(areas[0] * areas[1])) / 2
    return 1 - math.sqrt(max(1 - math.exp(-distance), 0))


@over("seed", range(6))
@over("threshold", [0.05, 0.3, 0.7, 0.9])
def test_rotated_boxes_go_where_any_better_one_of_their_class_is_like_them(
    seed: int, threshold: float
) -> None:
    generator = np.random.default_rng([3, seed])
    boxes = generator.random((25, 5)) * (80, 80, 60, 30, 3) + (0, 0, 2, 2, 0)
    scores, classes = generator.random(25, np.float32), generator.integers(0, 2, 25)
    expected = [
        i
        for i in np.argsort(-scores)
        if not any(
            scores[j] > scores[i]
            and classes[j] == classes[i]
            and likeness(boxes[j], boxes[i]) > threshold
            for j in range(25)
        )
    ]
    assert suppress_rotated(turned(boxes), scores, classes, threshold).tolist() == expected


def test_slanted_boxes_side_by_side_both_remain() -> None:
    """Ships at a pier: the upright boxes around them overlap by two thirds."""
    ships = np.array([[50, 50, 80, 8, math.pi / 4], [57, 43, 80, 8, math.pi / 4]])
    scores, classes = np.array([0.9, 0.8]), np.zeros(2)
    corners = turned(ships)
    low, high = corners.min(axis=1), corners.max(axis=1)
    around = np.concatenate([(low + high) / 2, high - low], axis=1)
    assert suppress(around, scores, classes, 0.6).tolist() == [0]
    assert suppress_rotated(corners, scores, classes, 0.6).tolist() == [0, 1]
    assert suppress_rotated(corners[[0, 0]], scores, classes, 0.6).tolist() == [0]


def test_rotated_boxes_without_an_area_hide_nothing() -> None:
    flat = turned(np.array([[5.0, 5, 9, 0, 1], [5, 5, 9, 0, 1], [5, 5, 9, 4, 1]]))
    scores = np.array([0.9, 0.8, 0.7])
    assert suppress_rotated(flat, scores, np.zeros(3), 0.5).tolist() == [0, 1, 2]
    assert suppress_rotated(flat[:0], scores[:0], np.zeros(0), 0.5).tolist() == []
