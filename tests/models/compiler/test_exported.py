"""A detector's file as its exporter writes it is all that is needed: it has names, letterbox and heads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.exported import ExportedRecipes, exported_preprocess, exported_recipes
from models.detection.boxes import Box, BoxLimits, find_boxes
from models.detection.heads import ListedHead
from models.detection.recipe import Detection
from models.errors import CompileError, OnnxError
from models.graphs.exported import ExporterMetadata, read_exported
from models.images.preprocess import Preprocess
from models.network.fields import Array
from models.packs.manifest import Manifest
from models.packs.pack import open_pack
from models.packs.records.ports import Classification
from models.segmentation import Segmentation
from tests.examples import over
from tests.models.exporters import (
    FILES,
    NAMES,
    NET,
    Exported,
    metadata,
    model_of,
    network,
    with_entries,
)
from tests.models.nets import parsed
from tests.models.refusal import refuses
from tests.models.streamed import streamed

LETTERBOX = Preprocess(size=NET, resize="letterbox", filter="opencv", scale=1 / 255, pad_value=114)
#: Halved, it lies in the middle of a letterbox, 16 pixels below the upper edge.
PHOTOGRAPH = 192, 64


def compiled(model: onnx.ModelProto, folder: Path, **options: Any) -> tuple[Manifest, list[str]]:
    """The manifest, and what a user is warned of."""
    warnings: list[str] = []
    onnx.save(model, folder / "m.onnx")
    options = {"warn": warnings.append, **options}
    pack = compile_onnx(folder / "m.onnx", folder / "repository" / "m", CompileOptions(**options))
    return open_pack(pack).manifest, warnings


def on_photograph(exported: Exported, points: Any) -> Any:
    """Points [..., 2] in parts of the input as pixels of the photograph."""
    if exported.stretched:
        return points * PHOTOGRAPH
    return (points * NET - (0, 16)) * 2


def expected(exported: Exported) -> list[tuple[Any, ...]]:
    """Score, best class, edges and points of each box above the usual threshold, best first."""
    rows = [
        (score, index, *on_photograph(exported, edges.reshape(2, 2)).ravel().tolist(), points)
        for edges, scores, points in zip(
            exported.boxes, exported.scores, exported.points, strict=True
        )
        for index, score in [max(enumerate(scores.tolist()), key=lambda pair: pair[1])]
        if score > 0.25
    ]
    return sorted(rows, key=lambda row: -row[0])


def points_of(box: Box) -> Any:
    return np.array(box.keypoints or box.corners or np.empty((0, 2)))


def check(
    name: str, preprocess: Preprocess | None, detection: Detection | None, outputs: Any
) -> None:
    """Compare the recipes of file ``name`` with its letterbox, and ``outputs`` with its rows."""
    exported = FILES[name]
    assert detection is not None
    assert preprocess is not None
    resize = "stretch" if exported.stretched else "letterbox"
    assert (preprocess.size, preprocess.resize, preprocess.filter) == (NET, resize, "opencv")
    assert preprocess.scale == pytest.approx(1 / 255)
    assert exported.stretched or preprocess.pad_value == 114
    assert detection.labels == NAMES
    assert (detection.nms == "none") == (detection.heads[0].kind in ("yolov10", "boxes"))
    limits = BoxLimits(iou=1.0, clip=False)  # all of them
    boxes = find_boxes(outputs, detection, preprocess, PHOTOGRAPH, limits)
    rows = expected(exported)
    assert len(boxes) == len(rows) > 20
    for box, (score, index, *edges, points) in zip(boxes, rows, strict=True):
        assert (box.label, box.index) == (NAMES[index], index)
        assert box.score == pytest.approx(score, rel=1e-5)
        np.testing.assert_allclose(box.edges, edges, rtol=1e-4, atol=2e-3)
        assert (box.corners is not None) == ("-obb" in name)
        assert (box.keypoints is not None) == ("-pose" in name)
        assert (box.mask is not None) == ("-seg" in name)
        got = points_of(box)
        np.testing.assert_allclose(got[:, :2], on_photograph(exported, points[:, :2]), atol=2e-3)
        np.testing.assert_allclose(got[:, 2:], points[:, 2:], rtol=1e-5)


@over("name", FILES)
def test_recipes_follow_from_metadata_and_outputs(name: str) -> None:
    exported, warnings = FILES[name], list[str]()
    entries = {key: str(value) for key, value in exported.entries.items()}
    read = read_exported(entries, warnings.append)
    assert read is not None
    forms = {key: (array.dtype.name, array.shape) for key, array in exported.outputs.items()}
    inputs = {"images": Array(dtype="float32", shape=(1, 3, NET[1], NET[0]))}
    recipes = exported_recipes(read, inputs, forms, None, warnings.append)
    assert not warnings
    check(name, recipes.preprocess, recipes.detection, exported.outputs)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "yolo26n-pose")) for name in FILES],
)
def test_a_pack_finds_boxes_without_a_recipe(name: str, tmp_path: Path) -> None:
    manifest, warnings = compiled(model_of(FILES[name]), tmp_path)
    assert not warnings
    assert manifest.verb == "detect"
    inputs = {"images": np.zeros((1, 3, NET[1], NET[0]), np.float32)}
    outputs = streamed(open_pack(tmp_path / "repository" / "m"), inputs)
    check(name, manifest.preprocess, manifest.detection, outputs)


YOLOV8 = FILES["yolov8n"]


def yolov8(**entries: object) -> onnx.ModelProto:
    return with_entries(network(YOLOV8.outputs), metadata("detect", **entries))


def test_lengths_that_the_file_leaves_open_are_those_of_its_exporter(tmp_path: Path) -> None:
    model = with_entries(network(YOLOV8.outputs, ("batch", 3, "height", "width")), YOLOV8.entries)
    manifest, _ = compiled(model, tmp_path)
    assert manifest.preprocess == LETTERBOX
    (port,) = manifest.inputs
    assert port.shape == (1, 3, 64, 96)
    assert compiled(model, tmp_path, force=True, shapes={"images": (1, 3, 32, 64)})[
        0
    ].preprocess == (replace(LETTERBOX, size=(64, 32)))


def test_recipes_of_the_user_come_first(tmp_path: Path) -> None:
    stretched = Preprocess(size=NET, scale=0.5)
    manifest, _ = compiled(yolov8(), tmp_path, preprocess=stretched, labels=("a", "b", "c"))
    assert manifest.preprocess == stretched
    assert manifest.detection is not None
    assert manifest.detection.labels == ("a", "b", "c")
    head = ListedHead(output="output0", kind="yolov8", classes=3)
    recipe = Detection(heads=(head,), score_threshold=0.6)
    manifest, _ = compiled(yolov8(), tmp_path, detection=recipe, force=True)
    assert manifest.preprocess == LETTERBOX
    assert manifest.detection == replace(recipe, labels=NAMES)


def test_names_are_left_to_a_users_head_of_another_count(tmp_path: Path) -> None:
    head = ListedHead(output="output0", kind="yolov8", classes=2, extra=1)
    manifest, _ = compiled(yolov8(), tmp_path, detection=Detection(heads=(head,)))
    assert manifest.detection is not None
    assert manifest.detection.labels == ()


HOSTILE = {
    "deep lists": "[" * 100_000,
    "deep signs": "-" * 100_000 + "1",
    "a long sum": "1+" * 100_000 + "1",
    "a call": "__import__('os').system('true')",
    "a long text": "'" + "a" * 300_000 + "'",
    "a large number": "9" * 100_000,
    "no text": "\0",
    "half a character": "{0: '\\ud800'}",
    "a gap": "{0: 'a', 2: 'b'}",
    "other keys": "{'a': 0}",
    "nothing": "{}",
    "lists": "{0: ['a']}",
    "a number": "3",
    "JSON": '{"0": "cat"}',
}


@over("text", HOSTILE)
def test_names_that_are_none_are_skipped(text: str) -> None:
    warnings: list[str] = []
    exported = read_exported({"names": HOSTILE[text], "task": "detect"}, warnings.append)
    assert exported is not None
    assert exported.labels == ()
    (warning,) = warnings
    assert warning.startswith("metadata names: ")
    assert warning.endswith("; left out")
    assert warning.isprintable()
    assert len(warning) < 120


@over(
    "key, text",
    [
        ("imgsz", "[640]"),
        ("imgsz", "[0, 640]"),
        ("imgsz", "['a', 'b']"),
        ("imgsz", "[1e9, 1]"),
        ("channels", "-3"),
        ("kpt_shape", "[17, 4]"),
        ("kpt_shape", "[100000, 3]"),
        ("task", "not a word"),
    ],
)
def test_other_entries_that_are_none_are_skipped(key: str, text: str) -> None:
    warnings: list[str] = []
    good = {name: str(value) for name, value in metadata("pose").items()}
    assert read_exported({**good, key: text}, warnings.append) is not None
    (warning,) = warnings
    assert warning.startswith(f"metadata {key}: ")


def test_a_detector_whose_names_are_none_numbers_its_classes(tmp_path: Path) -> None:
    manifest, (warning,) = compiled(yolov8(names="{0: person}"), tmp_path)
    assert warning == f"{tmp_path / 'm.onnx'}: metadata names: not a Python literal; left out"
    assert manifest.detection is not None
    assert (manifest.detection.classes, manifest.detection.labels) == (3, ())
    assert manifest.preprocess == LETTERBOX


@over(
    "task, entries, words",
    [
        (
            "detect",
            {"names": {0: "one"}},
            "task 'detect', 1 names: no recipe for outputs 'output0'",
        ),
        ("depth", {}, "task 'depth', 3 names: no recipe"),
        ("pose", {}, "task 'pose', 3 names: no recipe"),
        ("segment", {}, "task 'segment', 3 names: no recipe"),
    ],
)
def test_what_the_graph_is_not_is_a_warning(task: str, entries: dict[str, Any], words: str) -> None:
    warnings: list[str] = []
    texts = {key: str(value) for key, value in metadata(task, **entries).items()}
    read = read_exported(texts, warnings.append)
    assert read is not None
    forms = {"output0": ("float32", (1, 7, 40))}
    assert exported_recipes(read, {}, forms, None, warnings.append) == ExportedRecipes()
    (warning,) = warnings
    assert words in warning
    assert "it answers tensors" in warning


def test_an_input_that_is_no_picture_is_a_warning(tmp_path: Path) -> None:
    model = with_entries(network(YOLOV8.outputs, (1, 6, 64, 96)), YOLOV8.entries)
    manifest, (warning,) = compiled(model, tmp_path)
    assert "inputs are 'images' float32[1, 6, 64, 96]" in warning
    assert (manifest.preprocess, manifest.detection) == (None, None)


def classifier() -> onnx.ModelProto:
    return network({"output0": np.array([[0.2, 0.7, 0.1]], np.float32)})


def classifier_of_squares() -> onnx.ModelProto:
    return network({"output0": np.array([[0.2, 0.7, 0.1]], np.float32)}, (1, 3, 64, 64))


def test_a_classifier_has_names_and_the_middle_of_the_picture(tmp_path: Path) -> None:
    entries = metadata("classify", imgsz=[64, 64])
    manifest, warnings = compiled(with_entries(classifier_of_squares(), entries), tmp_path)
    assert not warnings
    assert manifest.verb == "classify"
    assert manifest.preprocess == Preprocess(
        size=(64, 64), resize="crop", resize_size=(64,), crop_rounding="even", scale=1 / 255
    )
    assert manifest.classification is not None
    assert manifest.classification.labels == NAMES


@over("names, labels", [(NAMES, NAMES), (("road",), ("background", "road")), (("a",) * 256, ())])
def test_pixels_have_classes(names: tuple[str, ...], labels: tuple[str, ...]) -> None:
    """YOLO26-sem: what the exporter writes is the best class of each pixel."""
    inputs = {"images": Array(dtype="float32", shape=(1, 3, 64, 96))}
    exported = ExporterMetadata(labels=names, task="semantic")
    outputs = {"output0": ("uint8", (1, 64, 96))}
    recipes = exported_recipes(exported, inputs, outputs, None, pytest.fail)
    assert recipes.segmentation == Segmentation(output="output0")
    assert (recipes.preprocess, recipes.labels) == (LETTERBOX, labels)
    warnings: list[str] = []
    odd = exported_recipes(
        exported, inputs, {"output0": ("float32", (1, 1, 64, 96))}, None, warnings.append
    )
    assert (odd, len(warnings)) == (ExportedRecipes(), 1)


def test_a_classifier_of_another_exporter_has_only_names(tmp_path: Path) -> None:
    """YOLOv5 writes no task, and its classifiers take pictures with a mean and deviation."""
    model = with_entries(classifier(), {"stride": 32, "names": list(NAMES)})
    manifest, warnings = compiled(model, tmp_path)
    assert not warnings
    assert manifest.preprocess is None
    expected = Classification(output="output0", scores="logits", labels=NAMES)
    assert manifest.classification == expected
    model = with_entries(classifier(), {"names": ["a", "b"]})
    manifest, (warning,) = compiled(model, tmp_path, force=True)
    assert "metadata names: 2 of 3 scores; left out" in warning


def test_a_picture_of_one_channel(tmp_path: Path) -> None:
    model = with_entries(network(YOLOV8.outputs, (1, 1, 64, 96)), metadata("detect", channels=1))
    manifest, _ = compiled(model, tmp_path)
    assert manifest.preprocess is not None
    assert manifest.preprocess.color == "GRAY"


def test_a_batch_is_for_tensors(tmp_path: Path) -> None:
    output = np.repeat(YOLOV8.outputs["output0"], 4, axis=0)
    model = with_entries(network({"output0": output}, (4, 3, 64, 96)), metadata("detect", batch=4))
    manifest, warnings = compiled(model, tmp_path)
    assert (manifest.preprocess, manifest.detection) == (None, None)
    assert not warnings


def test_a_file_of_another_exporter_says_nothing(tmp_path: Path) -> None:
    model = with_entries(network(YOLOV8.outputs), {"task": "detect", "description": "mine"})
    manifest, warnings = compiled(model, tmp_path)
    assert (manifest.preprocess, manifest.detection, warnings) == (None, None, [])


def test_lengths_stay_open_without_an_exporter(tmp_path: Path) -> None:
    model = network(YOLOV8.outputs, (1, 3, "height", "width"))
    with refuses(OnnxError, "dimension 2 (height) is dynamic"):
        compiled(model, tmp_path)
    with refuses(OnnxError, "dimension 2 (height) is dynamic"):
        compiled(with_entries(model, {"names": list(NAMES), "stride": 32}), tmp_path)


@over(
    "task, is_detr, resize",
    [
        ("detect", None, "letterbox"),
        ("obb", None, "letterbox"),
        ("detect", True, "stretch"),
        ("classify", None, "stretch"),  # to rows and columns that differ
        (None, None, "letterbox"),
    ],
)
def test_how_a_picture_becomes_the_input(
    task: str | None, is_detr: bool | None, resize: str
) -> None:
    inputs = {"images": Array(dtype="float32", shape=(1, 3, 64, 96))}
    preprocess = exported_preprocess(ExporterMetadata(task=task, is_detr=is_detr), inputs)
    assert preprocess is not None
    assert (preprocess.size, preprocess.resize) == (NET, resize)
    for shape in ((3, 64, 96), (2, 3, 64, 96), (1, 64, 96, 3), (1, 3, -1, 96)):
        other = {"images": Array(dtype="float32", shape=shape)}
        assert exported_preprocess(ExporterMetadata(task=task), other) is None
    bytes_ = {"images": Array(dtype="uint8", shape=(1, 3, 64, 96))}
    assert exported_preprocess(ExporterMetadata(task=task), bytes_) is None


@pytest.mark.slow
def test_calibration_needs_no_recipe_either(tmp_path: Path) -> None:
    """Eight bits are calibrated on pictures that become the input as the exporter says."""
    text = """g (float[1,3,64,96] images) => (float y) {
        a = Conv<kernel_shape=[3,3]>(images, w)
        b = Relu(a)
        y = GlobalAveragePool(b)
    }"""
    model = with_entries(parsed(text, {"w": (8, 3, 3, 3)}), metadata("detect"))
    pictures = [Image.fromarray(np.full((40, 50, 3), shade, np.uint8)) for shade in (9, 90, 200)]
    _, warnings = compiled(model, tmp_path, calibrate=lambda: pictures)
    assert any("task 'detect'" in warning for warning in warnings)
    with refuses(CompileError, "--calibrate needs --preprocess"):
        compiled(
            parsed(text, {"w": (8, 3, 3, 3)}), tmp_path, calibrate=lambda: pictures, force=True
        )
