"""Ultralytics' detectors in the zoo: heads as exporters leave them, and what they say of themselves."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.graphs.metadata import DETECTION, PREPROCESS
from models.graphs.onnx_writer import declared
from models.images.preprocess import Preprocess
from models.photographs import photographs
from models.records import read_record
from models.zoo import ENTRIES, build
from models.zoo.entry import COCO
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Wanted
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import answers
from tests.models.streamed import compiled, same, streamed
from tests.models.zoo.test_zoo import with_weights_as_inputs

OUTPUTS = {"yolov5s": "rows", "yolov8n": "columns", "yolo11n": "columns"}
detectors = pytest.mark.parametrize("name", OUTPUTS)


@detectors
def test_shapes_are_those_that_onnx_infers(name: str) -> None:
    for side in (32, 96):
        skeleton = with_weights_as_inputs(ENTRIES[name].skeleton(side))
        (port,) = skeleton.graph.output
        promised = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
        boxes = sum((side // stride) ** 2 for stride in (8, 16, 32))
        assert promised == ([1, 3 * boxes, 85] if name == "yolov5s" else [1, 84, boxes])
        for dim in port.type.tensor_type.shape.dim:
            dim.Clear()
        inferred = onnx.shape_inference.infer_shapes(skeleton, strict_mode=True)
        found = inferred.graph.output[0].type.tensor_type.shape.dim
        assert [dim.dim_value for dim in found] == promised


@detectors
def test_skeletons_say_what_their_boxes_are(name: str) -> None:
    entry = ENTRIES[name]
    skeleton = entry.skeleton(96)
    entries = {item.key: json.loads(item.value) for item in skeleton.metadata_props}
    (head,) = entries[DETECTION]["heads"]
    kind = "yolov5" if name == "yolov5s" else "yolov8"
    assert entries[DETECTION]["labels"] == list(COCO)
    assert head == {"output": "output0", "kind": kind, "classes": 80}
    recipe = read_record(Preprocess, entries[PREPROCESS])
    assert (recipe.size, recipe.resize, recipe.pad_value) == ((96, 96), "letterbox", 114)
    shapes = declared(skeleton)
    assert entry.biases is not None
    assert {key: array.shape for key, array in entry.biases().items()}.items() <= shapes.items()


@pytest.mark.slow
@detectors
@pytest.mark.parametrize("width", [0.5, 1.0])
def test_detectors_stream(name: str, width: float, tmp_path: Path) -> None:
    source = tmp_path / f"{name}.onnx"
    summary = build(name, source, None if width == 1 else 96, width)
    pack = compiled(source, tmp_path)
    assert not [piece for piece in pack.manifest.pieces if piece.resident]
    assert pack.manifest.parameters == summary.parameters
    assert pack.manifest.preprocess is not None
    inputs = {"image": pack.manifest.preprocess.apply(photographs()[0])}
    expected = streamed(pack, inputs, "pre")
    same(streamed(pack, inputs), expected)
    (got,), (right,) = expected.values(), answers(source, inputs).values()
    assert np.abs(got - right).max() <= 1e-5 * np.abs(right).max()
    weights = Wanted(weight_bytes=pack.manifest.weight_bytes // 20)
    if width == 1:
        assert fit(Program.as_compiled(pack), ARCHITECTURES["auto"], weights).plan.ring_bytes > 0
