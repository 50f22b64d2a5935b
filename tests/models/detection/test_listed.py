"""Boxes that networks decode themselves, as YOLOv5 and YOLOv8 list them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.detection.boxes import Box, BoxLimits, find_boxes
from models.detection.candidates import MAX_CANDIDATES, candidates
from models.detection.heads import ListedHead
from models.detection.recipe import Detection, head_fault, read_detection
from models.errors import ModelError
from models.images.preprocess import Preprocess
from tests.models.refusal import refuses

NET = (96, 64)
HEADS = {
    "yolov5": ListedHead(output="a", kind="yolov5", classes=3),
    "yolov8": ListedHead(output="a", kind="yolov8", classes=3),
}
SHAPES = {"yolov5": (1, 40, 8), "yolov8": (1, 7, 40)}
either = pytest.mark.parametrize("name", HEADS)


def listed(name: str, rows: list[list[float]]) -> dict[str, NDArray[np.float32]]:
    """Return the output of rows x, y, width, height, objectness, classes; yolov8 has their product."""
    array = np.array(rows, np.float32)
    if name == "yolov8":
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.concatenate([array[:, :4], array[:, 4:5] * array[:, 5:]], axis=1).T
    return {"a": np.ascontiguousarray(array[None])}


def drawn(count: int, seed: int = 0) -> list[list[float]]:
    generator = np.random.default_rng(seed)
    boxes = generator.random((count, 4)) * [90, 60, 30, 20] + [3, 2, 1, 1]
    rows: list[list[float]] = np.concatenate([boxes, generator.random((count, 4))], axis=1).tolist()
    return rows


@either
def test_every_class_above_the_threshold_is_a_candidate(name: str) -> None:
    rows = drawn(5000)  # more than one block
    found = candidates(listed(name, rows), (HEADS[name],), NET, 0.4)
    expected = sorted(
        (x / 96, y / 64, w / 96, h / 64, number, objectness * likely)
        for x, y, w, h, objectness, *classes in rows
        for number, likely in enumerate(classes)
        if objectness * likely > 0.4
    )
    got = np.column_stack([found.boxes, found.classes, found.scores])
    np.testing.assert_allclose(sorted(got.tolist()), expected, rtol=1e-6)
    assert np.all(np.diff(found.scores) <= 0)


@either
def test_a_box_may_have_only_its_best_class(name: str) -> None:
    rows = drawn(50)
    rows[0][5:] = [0.9, float("nan"), 0.8]  # of an output with nonsense in it
    outputs = listed(name, rows)
    recipe = Preprocess(size=NET)
    limits = BoxLimits(score=0.1, iou=1, clip=False)
    several, single = (
        find_boxes(outputs, Detection(heads=(HEADS[name],), multi_label=many), recipe, NET, limits)
        for many in (True, False)
    )
    best_of_box: dict[tuple[float, ...], Box] = {}
    for box in several:  # best score first
        best_of_box.setdefault(box.edges, box)
    assert len(several) > len(best_of_box)
    assert single == list(best_of_box.values())


@either
def test_boxes_are_pixels_of_the_photograph(name: str) -> None:
    """A letterbox: 192 x 64 pixels lie in 96 x 32 of 96 x 64, 16 below the upper edge."""
    outputs = listed(
        name, [[48, 32, 20, 10, 0.9, 0.1, 0.8, 0.0], [48, 32, 21, 10, 0.8, 0.0, 0.7, 0.0]]
    )
    detection = Detection(heads=(HEADS[name],), labels=("ant", "bee", "cat"))
    recipe = Preprocess(size=NET, resize="letterbox")
    (box,) = find_boxes(outputs, detection, recipe, (192, 64), BoxLimits())
    assert box.label == "bee"
    assert box.score == pytest.approx(0.72)
    assert box.edges == pytest.approx((76, 22, 116, 42))


@either
def test_nonsense_is_left_out(name: str) -> None:
    bad = [float("nan"), float("inf"), float("-inf"), 3e38]
    rows = [[*[value] * 4, 0.9, 0.9, 0.9, 0.9] for value in bad[:3]]
    rows += [[5, 5, 2, 2, value, value, 0.5, value] for value in bad]
    rows += [[9, 9, 2, 2, 0.9, 0.0, 0.9, float("nan")]]
    found = candidates(listed(name, rows), (HEADS[name],), NET, 0.2)
    assert np.isfinite(found.scores).all()
    assert np.isfinite(found.boxes).all()
    assert [9 / 96, 9 / 64] in found.boxes[:, :2].tolist()  # one class of several is not a number


@either
def test_everything_is_few_candidates(name: str) -> None:
    found = candidates(listed(name, drawn(12_000)), (HEADS[name],), NET, 0.0)
    assert len(found.scores) == MAX_CANDIDATES


@either
def test_recipe_is_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "detection.toml"
    path.write_text(f'[[heads]]\noutput = "a"\nkind = "{name}"\nclasses = 3\n')
    assert read_detection(path) == Detection(heads=(HEADS[name],))
    path.write_text(path.read_text() + "anchors = [[1, 2]]\n")
    with refuses(ModelError, path, "head 1: anchors: no such key"):
        read_detection(path)
    path.write_text('[[heads]]\noutput = "a"\nclasses = 3\n')
    with refuses(ModelError, path, "head 1: kind: missing"):
        read_detection(path)


@either
@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        ("float32", lambda shape: shape[::-1]),
        ("float16", lambda shape: shape),
        ("float32", lambda shape: (2, *shape[1:])),
        ("float32", lambda shape: (*shape, 1)),
        ("float32", lambda shape: (1, *(0 if size == 40 else size for size in shape[1:]))),
    ],
)
def test_heads_must_fit_the_outputs(name: str, dtype: str, change: Any) -> None:
    detection = Detection(heads=(HEADS[name],))
    assert head_fault(detection, {"a": ("float32", SHAPES[name])}) is None
    fault = str(head_fault(detection, {"a": (dtype, change(SHAPES[name]))}))
    wanted = "[1, boxes, 8]" if name == "yolov5" else "[1, 7, boxes]"
    assert all(word in fault for word in ("heads.0", name, "3 classes", wanted))
