"""Files with the inputs, outputs and metadata that exporters of detectors write; numbers are drawn.

Facts of the formats: ``engine/exporter.py`` and ``nn/modules/head.py`` of ultralytics 8.3 and 8.4,
``export.py`` of YOLOv5. Inputs are 64 x 96 pixels, so that rows and columns cannot be confused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

#: Width and height of the input.
NET = 96, 64
NAMES = ("person", "bicycle", "car")
BOXES = 40

Outputs = dict[str, NDArray[np.float32]]


def network(outputs: Outputs, shape: tuple[Any, ...] = (1, 3, 64, 96)) -> onnx.ModelProto:
    """Return a network with input "images" of ``shape`` that answers ``outputs``, whatever it sees."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["bright"], keepdims=0),
        helper.make_node("Mul", ["bright", "none"], ["still"]),
    ]
    constants = {"none": np.float32(0)}
    for name, array in outputs.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        constants[f"{name}_drawn"] = array  # type: ignore[assignment]
        nodes.append(helper.make_node("Cast", ["still"], [f"{name}_still"], to=kind))
        nodes.append(helper.make_node("Add", [f"{name}_drawn", f"{name}_still"], [name]))
    graph = helper.make_graph(
        nodes,
        "exported",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in outputs.items()
        ],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def with_entries(model: onnx.ModelProto, entries: Mapping[str, object]) -> onnx.ModelProto:
    """Return ``model`` with ``entries`` in its metadata, each as ``str`` writes it."""
    for key, value in entries.items():
        model.metadata_props.add(key=key, value=str(value))
    return model


def metadata(task: str, **others: object) -> dict[str, object]:
    """Return what ultralytics writes; ``others`` are other values, or entries that later versions add."""
    return {
        "description": "Ultralytics YOLOv8n model trained on coco.yaml",
        "author": "Ultralytics",
        "date": "2026-11-20T10:00:00.000000",
        "version": "8.4.100",
        "license": "AGPL-3.0 License (https://ultralytics.com/license)",
        "docs": "https://docs.ultralytics.com",
        "stride": 32,
        "task": task,
        "batch": 1,
        "imgsz": [NET[1], NET[0]],
        "names": dict(enumerate(NAMES)),
        "args": {"batch": 1, "half": False, "dynamic": False, "simplify": True, "nms": False},
        "channels": 3,
        **others,
    }


def drawn(*shape: int) -> NDArray[np.float64]:
    return np.random.default_rng([11, *shape]).random(shape)


def _centres() -> NDArray[np.float64]:
    """Centres and sizes in pixels, [boxes, 4]."""
    return drawn(BOXES, 4) * (80, 50, 30, 20) + (8, 7, 2, 2)


def _output(*columns: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.ascontiguousarray(np.concatenate(columns, axis=1)[None].astype(np.float32))


@dataclass(frozen=True)
class Exported:
    """A file: its outputs, entries of its metadata, and what of each box its rows hold.

    ``boxes``: left, top, right, bottom in parts of the input. ``scores``: [boxes, classes], 0 of what a
    row does not say. ``points``: x, y and perhaps a third number, the first two in parts of the input.
    """

    outputs: Outputs
    entries: Mapping[str, object]
    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    stretched: bool = False
    points: NDArray[np.float64] = field(default_factory=lambda: np.empty((BOXES, 0, 2)))


def _edges(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate(
        [boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], axis=1
    )


SIDES = (*NET, *NET)
SCORES = drawn(BOXES, len(NAMES))
BEST = np.where(SCORES.max(axis=1, keepdims=True) == SCORES, SCORES, 0)
RANKS = np.stack([SCORES.max(axis=1), SCORES.argmax(axis=1)], axis=1)
MASKS = drawn(1, 32, 16, 24).astype(np.float32)
PROTOTYPES = {"output1": MASKS}


def _by_class(task: str, *more: NDArray[np.float64], **fields: Any) -> Exported:
    """Return rows by number: centre, size, a score a class, and ``more``."""
    others = {"output1": MASKS} if task == "segment" else {}
    points = fields.pop("points", np.empty((BOXES, 0, 2)))
    boxes = fields.pop("boxes", _edges(_centres()) / SIDES)
    output = np.ascontiguousarray(_output(_centres(), SCORES, *more).transpose(0, 2, 1))
    entries = metadata(task, **fields)
    return Exported({"output0": output, **others}, entries, boxes, SCORES, points=points)


def _ranked(task: str, *more: NDArray[np.float64], **fields: Any) -> Exported:
    """Return rows by box: corners, score, class, and ``more``."""
    others = {"output1": MASKS} if task == "segment" else {}
    points = fields.pop("points", np.empty((BOXES, 0, 2)))
    boxes = _edges(_centres())
    entries = metadata(task, **fields)
    outputs = {"output0": _output(boxes, RANKS, *more), **others}
    return Exported(outputs, entries, boxes / SIDES, BEST, points=points)


def _keypoints() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Five points a box as rows have them, and in parts of the input."""
    points = drawn(BOXES, 5, 3) * (*NET, 1)
    return points.reshape(BOXES, -1), points / (*NET, 1)


def _rotated() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Angles [boxes, 1], corners [boxes, 4, 2] and upright edges in parts of the input."""
    angle = (drawn(BOXES, 1) - 0.25) * np.pi
    x, y, w, h = _centres().T
    cos, sin = np.cos(angle[:, 0]), np.sin(angle[:, 0])
    corners = np.array(
        [
            [x + (a * w * cos - b * h * sin) / 2, y + (a * w * sin + b * h * cos) / 2]
            for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))
        ]
    ).transpose(2, 0, 1)
    edges = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    return angle, corners / NET, edges / SIDES


def _detr(*columns: NDArray[np.float64], scores: NDArray[np.float64], **fields: Any) -> Exported:
    """Return rows by box: centre and size in parts of the input, and ``columns``."""
    boxes = _centres() / SIDES
    outputs = {"output0": _output(boxes, *columns)}
    return Exported(outputs, metadata("detect", **fields), _edges(boxes), scores, stretched=True)


def _yolov5(*more: NDArray[np.float64], **others: NDArray[np.float32]) -> Exported:
    objectness = drawn(BOXES, 1) / 2 + 0.5
    outputs = {"output0": _output(_centres(), objectness, SCORES, *more), **others}
    entries = {"stride": 32, "names": dict(enumerate(NAMES))}
    return Exported(outputs, entries, _edges(_centres()) / SIDES, objectness * SCORES)


def _all() -> dict[str, Exported]:
    rows, keypoints = _keypoints()
    angle, corners, upright = _rotated()
    coefficients = drawn(BOXES, 32)
    nms = {"batch": 1, "nms": True, "conf": 0.25}
    turned = _output(_centres(), RANKS, angle)
    return {
        "yolov8n": _by_class("detect"),
        "yolo11n, 8.4": _by_class("detect", end2end=False, head="Detect"),
        "yolov8n-seg": _by_class("segment", coefficients),
        "yolov8n-pose": _by_class("pose", rows, kpt_shape=[5, 3], points=keypoints),
        "yolov8n-obb": _by_class("obb", angle, points=corners, boxes=upright),
        "yolov8n, nms=True": _ranked("detect", args=nms),
        "yolov10n, 8.3": _ranked("detect"),
        "yolo26n": _ranked("detect", end2end=True, head="Detect"),
        "yolo26n-seg": _ranked("segment", coefficients, end2end=True, head="Segment26"),
        "yolo26n-pose": _ranked(
            "pose", rows, end2end=True, head="Pose26", kpt_shape=(5, 3), points=keypoints
        ),
        "yolo26n-obb": Exported(
            {"output0": turned}, metadata("obb", end2end=True), upright, BEST, points=corners
        ),
        "rtdetr-l, 8.3": _detr(
            SCORES, scores=SCORES, description="Ultralytics rtdetr-l model trained on coco.yaml"
        ),
        "best, RT-DETR, 8.3": _detr(SCORES, scores=SCORES),
        "rtdetr-l, 8.4": _detr(RANKS, scores=BEST, end2end=False, head="RTDETRDecoder"),
        "best, RT-DETR, before heads had names": _detr(RANKS, scores=BEST, end2end=False),
        "yolov5s": _yolov5(),
        "yolov5s-seg": _yolov5(coefficients, **PROTOTYPES),
    }


FILES = _all()


def model_of(exported: Exported) -> onnx.ModelProto:
    return with_entries(network(exported.outputs), exported.entries)
