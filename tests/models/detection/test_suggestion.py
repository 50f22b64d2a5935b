"""The error of a head that does not fit names what there is, and a head that fits it."""

import tomllib

import pytest

from models.detection.heads import Forms
from models.detection.recipe import Detection, head_fault
from models.detection.suggestion import suggested_head
from models.records import read_record
from tests.examples import over


def floats(**shapes: tuple[int, ...]) -> Forms:
    return {name: ("float32", shape) for name, shape in shapes.items()}


RANKED = floats(output0=(1, 300, 6))
TORCHVISION: Forms = {
    "boxes": ("float32", (-1, 4)),
    "labels": ("int64", (-1,)),
    "scores": ("float32", (-1,)),
}
#: Outputs, classes, and the head that fits.
FORMS: dict[str, tuple[Forms, int, str]] = {
    "yolov8": (floats(output0=(1, 84, 8400)), 80, 'kind = "yolov8", output = "output0"'),
    "yolov5": (floats(output0=(1, 25200, 85)), 80, 'kind = "yolov5", output = "output0"'),
    "yolo26": (RANKED, 80, 'kind = "yolov10", output = "output0"'),
    "nms": (floats(output0=(-1, 6)), 80, 'kind = "yolov10", output = "output0"'),
    "seg": (
        floats(output0=(1, 116, 8400), output1=(1, 32, 160, 160)),
        80,
        'kind = "yolov8", output = "output0", masks = {output = "output1", channels = 32}',
    ),
    "pose": (
        floats(output0=(1, 56, 8400)),
        1,
        'kind = "yolov8", output = "output0", keypoints = [17, 3]',
    ),
    "obb": (
        floats(output0=(1, 85, 8400)),
        80,
        'kind = "yolov8", output = "output0", rotated = true',
    ),
    "numbered": (
        floats(output0=(1, 300, 7)),
        15,
        'kind = "boxes", boxes = "output0", scores = "output0", boxes_at = 1, index_at = 5, '
        'scores_at = 6, unit = "pixels"',
    ),
    "ranked seg": (
        floats(output0=(1, 300, 38)),
        80,
        'kind = "yolov10", output = "output0", extra = 32',
    ),
    "RT-DETR": (
        floats(output0=(1, 300, 84)),
        80,
        'kind = "boxes", boxes = "output0", scores = "output0", scores_at = 4, box = "centre"',
    ),
    "torchvision": (
        TORCHVISION,
        90,
        'kind = "boxes", boxes = "boxes", scores = "scores", indices = "labels", unit = "pixels", '
        'background = "first"',
    ),
    "DETR": (
        floats(logits=(1, 100, 92), pred_boxes=(1, 100, 4)),
        91,
        'kind = "boxes", boxes = "pred_boxes", scores = "logits", box = "centre", '
        'activation = "softmax", background = "last"',
    ),
    "Conditional DETR": (
        floats(logits=(1, 300, 91), pred_boxes=(1, 300, 4)),
        91,
        'kind = "boxes", boxes = "pred_boxes", scores = "logits", box = "centre", '
        'activation = "sigmoid"',
    ),
    "SSD": (
        floats(scores=(1, 3000, 21), boxes=(1, 3000, 4)),
        20,
        'kind = "boxes", boxes = "boxes", scores = "scores", background = "first"',
    ),
    "mmdeploy": (
        {"dets": ("float32", (1, -1, 5)), "labels": ("int64", (1, -1))},
        80,
        'kind = "boxes", boxes = "dets", scores = "dets", scores_at = 4, indices = "labels", '
        'unit = "pixels"',
    ),
    "other count": (
        floats(output0=(1, 9, 8400)),
        80,
        'kind = "yolov8", output = "output0", classes = 5',
    ),
}


@over("name", FORMS)
def test_what_is_suggested_fits(name: str) -> None:
    outputs, classes, expected = FORMS[name]
    keys = suggested_head(outputs, classes)
    assert keys == expected
    head = {"classes": classes, **tomllib.loads(f"head = {{{keys}}}")["head"]}
    assert head_fault(read_record(Detection, {"heads": [head]}), outputs) is None


@pytest.mark.parametrize(
    "outputs", [floats(y=(1, 255, 13, 13)), floats(y=(1, 1000)), {"y": ("int64", (1, 4, 80))}, {}]
)
def test_nothing_is_suggested_for_other_outputs(outputs: Forms) -> None:
    assert suggested_head(outputs, 80) is None


def test_the_error_names_the_outputs_and_what_fits() -> None:
    wrong = read_record(
        Detection, {"heads": [{"kind": "yolov8", "output": "output0", "classes": 80}]}
    )
    assert head_fault(wrong, RANKED) == (
        "detection.heads.0: output 'output0' is float32[1, 300, 6]; yolov8 with 80 classes needs "
        'float32[1, 84, boxes]; what fits: kind = "yolov10", output = "output0"'
    )
    fault = str(head_fault(wrong, TORCHVISION))
    assert "no such output; there are: 'boxes' float32[-1, 4], 'labels' int64[-1]" in fault
    assert 'what fits: kind = "boxes"' in fault
    assert "fits" not in str(head_fault(wrong, floats(output0=(1, 255, 13, 13))))
