"""Heads to boxes: Darknet's formulas, and heads that hold nonsense."""

import tracemalloc
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from models.detection.boxes import (
    Box,
    BoxLimits,
    boxes_among,
    boxes_bytes,
    candidate_bytes,
    find_boxes,
)
from models.detection.candidates import MAX_CANDIDATES, Candidates, candidates
from models.detection.heads import DetectionHead, ListedHead
from models.detection.recipe import Detection, head_fault, read_detection
from models.errors import ModelError
from models.images.preprocess import Preprocess
from models.records import FieldError, plain, read_record
from tests.examples import over
from tests.models.detection import box_oracle as oracle
from tests.models.refusal import refuses

NET = (96, 64)
ANCHORS = ((10.0, 14.0), (23.0, 27.0))
CELLS = ((1.3, 1.7), (3.2, 2.4))
HEADS: dict[str, DetectionHead] = {
    f"{name}-{'activated' if done else 'raw'}": replace(head, activated=done)
    for done in (True, False)
    for name, head in {
        "yolo": DetectionHead(output="a", kind="yolo", anchors=ANCHORS, classes=3),
        "scaled": DetectionHead(output="a", kind="yolo", anchors=ANCHORS, classes=3, scale_x_y=1.2),
        "new": DetectionHead(
            output="a", kind="yolo", anchors=ANCHORS, classes=3, scale_x_y=2.0, new_coords=True
        ),
        "region": DetectionHead(output="a", kind="region", anchors=CELLS, classes=3),
        "region without softmax": DetectionHead(
            output="a", kind="region", anchors=CELLS, classes=3, softmax=False
        ),
    }.items()
}
WAYS = tuple(product(("greedy", "diou"), ("letterbox", "stretch")))


def values(
    head: DetectionHead, generator: np.random.Generator, rows: int, columns: int
) -> NDArray[Any]:
    """What such a layer may give: numbers from 0 to 1 where they are activated, any other elsewhere."""
    shape = (1, len(head.anchors) * (5 + head.classes), rows, columns)
    raw = generator.normal(0, 1.5, shape).astype(np.float32)
    if head.activated or head.new_coords:
        planes = raw.reshape(len(head.anchors), 5 + head.classes, rows, columns)
        planes[:, :2] = generator.random(planes[:, :2].shape)
        planes[:, 4:] = generator.random(planes[:, 4:].shape)
    return raw


def agrees(found: list[Box], expected: list[tuple[int, float, tuple[float, ...]]]) -> None:
    """Check the same objects; those of almost equal score in any order."""
    assert len(found) == len(expected) > 0
    rows = sorted((box.index, box.score, *box.edges) for box in found)
    right = sorted((number, score, *edges) for number, score, edges in expected)
    np.testing.assert_allclose(rows, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "nms", "resize"),
    [(name, *way) for name, way in zip(HEADS, cycle(WAYS))],
)
def test_boxes_are_darknets(
    name: str, nms: Literal["greedy", "diou"], resize: Literal["letterbox", "stretch"]
) -> None:
    """Two heads of different grids together, images wide and tall."""
    generator = np.random.default_rng(7)
    head = HEADS[name]
    detection = Detection(heads=(head, replace(head, output="b")), nms=nms, score_threshold=0.2)
    recipe = Preprocess(size=NET, resize=resize)
    for image in ((301, 97), (45, 160), (96, 64), (3, 1)):
        outputs = {"a": values(head, generator, 4, 6), "b": values(head, generator, 3, 2)}
        found = find_boxes(outputs, detection, recipe, image, BoxLimits(clip=False))
        letterbox = resize == "letterbox"
        agrees(found, oracle.detect(outputs, detection, NET, image, letterbox))


@over("name", HEADS)
def test_a_request_has_its_own_limits(name: str) -> None:
    head = HEADS[name]
    outputs = {"a": values(head, np.random.default_rng(1), 5, 5)}
    detection = Detection(heads=(head,), labels=("ant", "bee", "cat"))
    recipe = Preprocess(size=NET)
    limited = replace(detection, score_threshold=0.05, iou_threshold=0.7)
    own = find_boxes(outputs, detection, recipe, (50, 50), BoxLimits(score=0.05, iou=0.7))
    assert own == find_boxes(outputs, limited, recipe, (50, 50))
    assert own[:3] == find_boxes(outputs, detection, recipe, (50, 50), BoxLimits(0.05, 0.7, 3))
    assert {(box.index, box.label) for box in own} <= {(0, "ant"), (1, "bee"), (2, "cat")}
    for box in own:
        x_min, y_min, x_max, y_max = box.edges
        assert 0 <= x_min <= x_max <= 50
        assert 0 <= y_min <= y_max <= 50


def test_classes_without_labels_are_numbers() -> None:
    head = HEADS["yolo-activated"]
    outputs = {"a": values(head, np.random.default_rng(1), 5, 5)}
    found = find_boxes(outputs, Detection(heads=(head,)), Preprocess(size=NET), (9, 9))
    assert found
    assert all(box.label == f"class {box.index}" for box in found)


NUMBERS = st.sampled_from(
    [float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 1e-40, 89.0, 800.0, 0.0, 1.0, -7.0]
)


@pytest.mark.parametrize("name", HEADS)
@given(data=st.data())
def test_nonsense_is_left_out(name: str, data: st.DataObject) -> None:
    """Whatever a network gives, an answer is finite; no warning either."""
    head = HEADS[name]
    outputs = {"a": data.draw(arrays.arrays(np.float32, (1, head.planes, 2, 2), elements=NUMBERS))}
    detection = Detection(heads=(head,), nms="diou", score_threshold=0)
    recipe = Preprocess(size=NET, resize="letterbox")
    for clip in (True, False):
        for box in find_boxes(outputs, detection, recipe, (30, 200), BoxLimits(clip=clip)):
            assert np.isfinite([box.score, *box.edges]).all()


def test_all_boxes_of_all_classes_are_few_candidates() -> None:
    """A request may ask for everything a large detector has: the best of 650,000 remain."""
    head = DetectionHead(output="a", kind="yolo", anchors=((10, 10),) * 3, classes=80)
    generator = np.random.default_rng(0)
    outputs = {"a": generator.random((1, head.planes, 52, 52), np.float32)}
    found = candidates(outputs, (head,), (416, 416), 0.0)
    assert len(found.scores) == len(found.boxes) == len(found.classes) == MAX_CANDIDATES
    planes = outputs["a"].reshape(3, 85, 52 * 52)
    scores = np.sort((planes[:, 4:5] * planes[:, 5:]).ravel())[::-1]
    np.testing.assert_array_equal(found.scores, scores[:MAX_CANDIDATES])
    few = candidates(outputs, (head,), (416, 416), 0.0, most=700)
    np.testing.assert_array_equal(few.boxes, found.boxes[:700])
    assert boxes_bytes(few) <= 700 * candidate_bytes(Detection(heads=(head,)))


@over(
    "fields, word",
    [
        ({"heads": ()}, "heads"),
        ({"labels": ("a",)}, "1 labels for 3 classes"),
        ({"heads": (HEADS["yolo-raw"], DetectionHead(output="b", kind="yolo", anchors=ANCHORS, classes=4))},
         "3 and 4 classes"),
        ({"heads": (HEADS["yolo-raw"], HEADS["yolo-activated"])}, "two heads are of output 'a'"),
        ({"score_threshold": float("nan")}, "score_threshold"),
        ({"iou_threshold": 1.5}, "iou_threshold"),
        ({"beta": 0}, "beta"),
        ({"nms": "soft"}, "nms"),
    ],
)  # fmt: skip
def test_recipes_that_make_no_sense(fields: dict[str, Any], word: str) -> None:
    recipe = {"heads": (HEADS["yolo-raw"],), **fields}
    with pytest.raises(FieldError, match=word):
        read_record(Detection, {name: plain(value) for name, value in recipe.items()})


TOML = """
score_threshold = 0.3
[[heads]]
output = "a"
kind = "yolo"
anchors = [[10, 14], [23, 27]]
classes = 3
activated = false
"""


def test_recipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "detection.toml"
    path.write_text(TOML)
    expected = Detection(heads=(HEADS["yolo-raw"],), score_threshold=0.3)
    assert read_detection(path) == expected


@over(
    "old, new, words",
    [
        ("classes = 3", "classes = 0", ["head 1: classes"]),
        ("classes = 3", "", ["head 1: classes"]),
        ("[10, 14]", "[10, 0]", ["head 1: anchors 1 2"]),
        ("[10, 14]", "[10, inf]", ["head 1: anchors 1 2"]),
        ("[10, 14]", "[10]", ["head 1: anchors 1"]),
        ("kind =", "sort =", ["head 1: "]),
        ('"yolo"', '"ssd"', ["head 1: kind"]),
        ("0.3", "2", ["score_threshold"]),
        ("[[heads]]", "[[heads", ["not TOML"]),
    ],
)
def test_recipe_that_is_wrong_is_named(
    tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    path = tmp_path / "detection.toml"
    path.write_text(TOML.replace(old, new))
    with refuses(ModelError, path, *words):
        read_detection(path)


@over(
    "outputs, words",
    [
        ({"a": ("float32", (1, 16, 4, 4))}, None),
        ({"b": ("float32", (1, 16, 4, 4))}, ["heads.0", "'a'", "'b'"]),
        ({"a": ("float16", (1, 16, 4, 4))}, ["heads.0", "'a'", "float16", "float32"]),
        ({"a": ("float32", (1, 18, 4, 4))}, ["[1, 18, 4, 4]", "[1, 16,"]),
        ({"a": ("float32", (2, 16, 4, 4))}, ["[2, 16, 4, 4]"]),
        ({"a": ("float32", (1, 16, 0, 4))}, ["[1, 16, 0, 4]"]),
        ({"a": ("float32", (1, 16, -1, 4))}, ["[1, 16, -1, 4]"]),
        ({"a": ("float32", (1, 16, 16))}, ["[1, 16, 16]"]),
    ],
)
def test_heads_must_fit_the_outputs(outputs: Any, words: list[str] | None) -> None:
    fault = head_fault(Detection(heads=(HEADS["yolo-raw"],)), outputs)
    assert (fault is None) == (words is None)
    for word in words or []:
        assert word in str(fault)


@pytest.mark.parametrize(
    ("classes", "points"), [pytest.param(1, 0, marks=pytest.mark.slow), (80, 0), (80, 17)]
)
def test_boxes_take_no_more_than_is_said(classes: int, points: int) -> None:
    """Of candidates that overlap little, so that all remain: more than any photograph has."""
    rng = np.random.default_rng(0)
    count = 4000
    boxes = np.concatenate([rng.random((count, 2)), np.full((count, 2), 0.004)], axis=1)
    scores = rng.random(count).astype(np.float32)
    found = Candidates(
        boxes,
        scores,
        rng.integers(0, classes, count),
        rng.random((count, points, 3)),
        rng.random((count, 2 * points)).astype(np.float32),
    )
    head = DetectionHead(output="x", kind="yolo", anchors=((1.0, 1.0),), classes=classes)
    detection = Detection(heads=(head,), nms="diou")
    few = Candidates(
        found.boxes[:9], found.scores[:9], found.classes[:9], found.points[:9], found.factors[:9]
    )
    boxes_among(few, detection, Preprocess(size=NET), (640, 480), BoxLimits())  # imports, too
    tracemalloc.start()
    try:
        made = boxes_among(found, detection, Preprocess(size=NET), (640, 480), BoxLimits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(made) > count // 2
    assert found.n_bytes + peak <= boxes_bytes(found)


def test_rotated_boxes_stay_within_boxes_bytes() -> None:
    rng = np.random.default_rng(0)
    shape = np.array([[0, 0], [0.004, 0.001], [0.003, 0.003], [-0.001, 0.002]])
    corners = rng.random((800, 1, 2)) + shape
    candidates = Candidates(
        np.concatenate([corners.mean(axis=1), np.full((800, 2), 0.004)], axis=1),
        rng.random(800).astype(np.float32),
        np.zeros(800, np.intp),
        corners,
        np.empty((800, 0), np.float32),
    )
    head = ListedHead(output="x", kind="yolov8", classes=1, rotated=True)
    detection = Detection(heads=(head,))
    tracemalloc.start()
    try:
        boxes = boxes_among(candidates, detection, Preprocess(size=NET), (640, 480), BoxLimits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(boxes) > 400
    assert candidates.n_bytes + peak <= boxes_bytes(candidates)
