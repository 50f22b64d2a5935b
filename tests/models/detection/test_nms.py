"""Suppression against Darknet's loops, and what must hold for any boxes."""

from typing import Any, Literal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.detection.boxes import suppress
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
