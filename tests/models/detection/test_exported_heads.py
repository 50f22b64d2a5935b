"""Rows that exporters write today, against NumPy: ranked boxes, key points, angles, unused numbers."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.detection.boxes import Box, BoxLimits, find_boxes
from models.detection.heads import BoxesHead, ListedHead
from models.detection.recipe import Detection, head_fault
from models.images.preprocess import Preprocess
from models.records import read_record
from tests.examples import over

#: Width and height of the input; a photograph lies in it 16 pixels below the upper edge, halved.
NET, PHOTOGRAPH = (96, 64), (192, 64)
LETTERBOX = Preprocess(size=NET, resize="letterbox")
LABELS = ("ant", "bee", "cat")
THRESHOLD = 0.3


def drawn(*shape: int) -> NDArray[np.float64]:
    return np.random.default_rng([7, *shape]).random(shape)


def on_photograph(points: NDArray[Any]) -> NDArray[np.float64]:
    """Points [..., 2] of the input in pixels of the photograph."""
    return (np.asarray(points, np.float64) - (0, 16)) * 2


def detected(output: NDArray[Any], head: Any, **fields: Any) -> list[Box]:
    detection = read_record(
        Detection,
        {"heads": [head], "labels": LABELS, "nms": "none", "score_threshold": THRESHOLD, **fields},
    )
    forms = {"output0": ("float32", output.shape)}
    assert head_fault(detection, forms) is None
    outputs = {"output0": output.astype(np.float32)}
    return find_boxes(outputs, detection, LETTERBOX, PHOTOGRAPH, BoxLimits(clip=False))


def same(boxes: list[Box], expected: list[tuple[int, float, Any]]) -> None:
    """Class, score and edges of each, best score first."""
    assert expected
    order = sorted(expected, key=lambda row: -row[1])
    assert [box.index for box in boxes] == [index for index, _, _ in order]
    assert [box.label for box in boxes] == [LABELS[index] for index, _, _ in order]
    np.testing.assert_allclose([box.score for box in boxes], [row[1] for row in order], rtol=1e-6)
    got, edges = [box.edges for box in boxes], [np.ravel(row[2]) for row in order]
    np.testing.assert_allclose(got, edges, rtol=1e-4, atol=1e-3)


def ranked(extra: int = 0) -> NDArray[np.float64]:
    """Rows [30, 6 + extra]: corners in pixels, a score, a class, and numbers that follow."""
    low, size = drawn(30, 2) * (60, 40), drawn(2, 30, 2)[0] * (30, 20) + 1
    index = np.floor(drawn(30, 1) * 3)
    return np.concatenate(
        [low, low + size, drawn(3, 30)[0, :, None], index, drawn(30, extra)], axis=1
    )


@over("form, extra", [("listed", 0), ("listed", 32), ("boxes", 0), ("rows alone", 0)])
def test_ranked_rows_are_corners_score_and_class(form: str, extra: int) -> None:
    rows = ranked(extra)
    head: dict[str, Any] = {"output": "output0", "kind": "yolov10", "classes": 3, "extra": extra}
    if form != "listed":
        head = {"kind": "boxes", "boxes": "output0", "scores": "output0", "classes": 3}
        head |= {"scores_at": 4, "index_at": 5, "unit": "pixels"}
    boxes = detected(rows if form == "rows alone" else rows[None], head)
    expected = [
        (int(row[5]), row[4], on_photograph(row[:4].reshape(2, 2)))
        for row in rows
        if row[4] > THRESHOLD
    ]
    same(boxes, expected)


def test_a_class_that_is_none_has_no_box() -> None:
    rows = ranked()
    rows[:, 4] = 0.9
    rows[:4, 5] = (-1, 3, np.nan, 1e30)
    head = {"output": "output0", "kind": "yolov10", "classes": 3}
    assert len(detected(rows[None], head)) == 26


def test_rows_with_the_number_of_the_picture_first() -> None:
    """Seven numbers: picture, corners, class, score, as YOLOv7 writes with suppression inside."""
    six = ranked()
    rows = np.concatenate([np.zeros((30, 1)), six[:, :4], six[:, 5:6], six[:, 4:5]], axis=1)
    head = {"kind": "boxes", "boxes": "output0", "scores": "output0", "classes": 3}
    boxes = detected(rows, head | {"boxes_at": 1, "index_at": 5, "scores_at": 6, "unit": "pixels"})
    assert boxes == detected(six[None], {"output": "output0", "kind": "yolov10", "classes": 3})


def centred() -> NDArray[np.float64]:
    """Rows [40, 7]: centre, size in pixels, three probabilities."""
    boxes = drawn(40, 4) * (80, 50, 30, 20) + (8, 7, 2, 2)
    return np.concatenate([boxes, drawn(40, 3)], axis=1)


def around(row: NDArray[Any]) -> NDArray[np.float64]:
    """Upper left and lower right corner."""
    return np.array([row[:2] - row[2:4] / 2, row[:2] + row[2:4] / 2])


@over("count, length, extra", [(17, 3, 0), (5, 2, 0), (4, 3, 2)])
def test_key_points_follow_the_scores(count: int, length: int, extra: int) -> None:
    rows = centred()
    points = drawn(40, count, length) * (90, 60, 1)[:length]
    output = np.concatenate([rows, points.reshape(40, -1), drawn(40, extra)], axis=1).T[None]
    head = {"output": "output0", "kind": "yolov8", "classes": 3, "keypoints": (count, length)}
    boxes = detected(output, head | {"extra": extra})
    expected = [
        (index, score, on_photograph(around(row)), row_index)
        for row_index, row in enumerate(rows)
        for index, score in enumerate(row[4:7])
        if score > THRESHOLD
    ]
    same(boxes, [row[:3] for row in expected])
    order = [row[3] for row in sorted(expected, key=lambda row: -row[1])]
    for box, row_index in zip(boxes, order, strict=True):
        assert box.keypoints is not None
        assert box.corners is None
        got = np.array(box.keypoints)
        assert got.shape == (count, length)
        np.testing.assert_allclose(got[:, :2], on_photograph(points[row_index, :, :2]), atol=1e-3)
        np.testing.assert_allclose(got[:, 2:], points[row_index, :, 2:], rtol=1e-6)
        assert box.as_dict()["keypoints"] == box.keypoints


def test_key_points_end_where_the_photograph_does() -> None:
    rows = centred()[:1]
    rows[0, 4:] = (0.9, 0, 0)
    output = np.concatenate([rows, [[-50.0, 900.0, 0.5]]], axis=1).T[None].astype(np.float32)
    head = ListedHead(output="output0", kind="yolov8", classes=3, keypoints=(1, 3))
    recipe = Detection(heads=(head,))
    for clip, point in ((True, [0, 64, 0.5]), (False, [-100, 1768, 0.5])):
        (box,) = find_boxes(
            {"output0": output}, recipe, LETTERBOX, PHOTOGRAPH, BoxLimits(clip=clip)
        )
        assert box.keypoints == [point]
    output[0, -1] = np.nan  # JSON has no such number
    assert not find_boxes({"output0": output}, recipe, LETTERBOX, PHOTOGRAPH)


@over("kind", ["yolov8", "yolov10"])
def test_a_rotated_box_has_corners_and_an_upright_box_around_it(kind: str) -> None:
    rows, angle = centred(), (drawn(40, 1) - 0.25) * math.pi
    output = np.concatenate([rows, angle], axis=1).T[None]
    best = rows[:, 4:7].argmax(axis=1)
    if kind == "yolov10":
        score = rows[:, 4:7].max(axis=1)
        output = np.concatenate([rows[:, :4], score[:, None], best[:, None], angle], axis=1)[None]
    else:
        output[0, 4:7][np.arange(3)[:, None] != best] = 0
    boxes = detected(output, {"output": "output0", "kind": kind, "classes": 3, "rotated": True})
    corners, expected = {}, []
    for (x, y, w, h, *scores), (radians,) in zip(rows, angle, strict=True):
        along = np.array([math.cos(radians), math.sin(radians)]) * w / 2
        across = np.array([-math.sin(radians), math.cos(radians)]) * h / 2
        turned = np.array([-along - across, along - across, along + across, across - along])
        four = turned + np.array([x, y])
        if max(scores) > THRESHOLD:
            corners[round(max(scores), 5)] = on_photograph(four)
            edges = on_photograph(np.array([four.min(axis=0), four.max(axis=0)]))
            expected.append((int(np.argmax(scores)), max(scores), edges))
    same(boxes, expected)
    for box in boxes:
        assert box.corners is not None
        assert box.keypoints is None
        np.testing.assert_allclose(box.corners, corners[round(box.score, 5)], atol=1e-3)
        assert box.as_dict()["corners"] == box.corners


def test_overlap_is_that_of_rotated_boxes() -> None:
    """Two slanted boxes side by side, whose upright ones overlap by two thirds; and one of them again."""
    thin = [[50, 30, 40, 4, 0.9, 0, 0], [53, 27, 40, 4, 0.8, 0, 0], [50, 30, 40, 4, 0.7, 0, 0]]
    output = np.concatenate([np.array(thin), np.full((3, 1), math.pi / 4)], axis=1).T[None]
    head = {"output": "output0", "kind": "yolov8", "classes": 3, "rotated": True}
    for nms, count in (("greedy", 2), ("none", 3)):
        boxes = detected(output, head, nms=nms, iou_threshold=0.5)
        assert [box.score for box in boxes] == pytest.approx([0.9, 0.8, 0.7][:count])
    with pytest.raises(ValueError, match="compares upright boxes"):
        detected(output, head, nms="diou")


def test_points_may_have_an_output_with_the_boxes() -> None:
    outputs = {
        "boxes": np.array([[0.1, 0.2, 0.5, 0.6, 0.25, 0.5]], np.float32),
        "scores": np.array([[0.9]], np.float32),
    }
    head = BoxesHead(kind="boxes", boxes="boxes", scores="scores", classes=1, keypoints=(1, 2))
    assert (
        head_fault(Detection(heads=(head,)), {k: ("float32", v.shape) for k, v in outputs.items()})
        is None
    )
    (box,) = find_boxes(outputs, Detection(heads=(head,)), Preprocess(size=NET), (100, 100))
    assert box.keypoints == [[25, 50]]


@over(
    "head, words",
    [
        ({"kind": "yolov8", "keypoints": (17, 3)}, "17 key points needs float32[1, 58, boxes]"),
        ({"kind": "yolov8", "rotated": True}, "an angle needs float32[1, 8, boxes]"),
        ({"kind": "yolov8", "extra": 32}, "32 extra numbers needs float32[1, 39, boxes]"),
        ({"kind": "yolov10"}, "yolov10 with 3 classes needs float32[1, boxes, 6]"),
    ],
)
def test_a_row_of_another_length_is_refused(head: dict[str, Any], words: str) -> None:
    detection = read_record(Detection, {"heads": [{"output": "output0", "classes": 3, **head}]})
    assert words in str(head_fault(detection, {"output0": ("float32", (1, 9, 40))}))


@over(
    "head, words",
    [
        ({"kind": "yolov8", "keypoints": (4, 2), "rotated": True}, "no key points"),
        ({"kind": "yolov8", "keypoints": (4, 4)}, "keypoints"),
        ({"kind": "boxes", "rotated": True}, "by its centre"),
        ({"kind": "boxes", "indices": "b", "index_at": 5}, "not both"),
        ({"kind": "boxes", "index_at": 5, "activation": "softmax"}, "softmax"),
        (
            {
                "kind": "boxes",
                "box": "offsets",
                "anchors": [{"grid": (1, 1), "stride": 8}],
                "keypoints": (1, 2),
            },
            "without anchors",
        ),
    ],
)
def test_what_no_recipe_can_say(head: dict[str, Any], words: str) -> None:
    names = {"boxes": "a", "scores": "a"} if head["kind"] == "boxes" else {"output": "a"}
    with pytest.raises(ValueError, match=words):
        read_record(Detection, {"heads": [{"classes": 3, **names, **head}]})


def test_points_are_of_one_head() -> None:
    heads = [
        {"kind": "yolov8", "output": name, "classes": 1, "keypoints": (1, 2)} for name in ("a", "b")
    ]
    with pytest.raises(ValueError, match="one head alone"):
        read_record(Detection, {"heads": heads})
