"""Recipes of images and answers: what the file says of itself, what the user says, what fits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from models.compiler import CompileOptions, compile_onnx
from models.detection.recipe import Detection
from models.errors import CompileError, OnnxError, PackError
from models.graphs.metadata import DETECTION, LABELS, PREPROCESS, SIZES, write_metadata
from models.images.preprocess import Preprocess
from models.packs.manifest import Manifest
from models.packs.pack import open_pack
from models.packs.records.ports import Classification, SourceSizes
from models.records import read_record
from tests.examples import over
from tests.models.detector import (
    DETECTION_RECIPE,
    HEAD,
    HEIGHT,
    NAMES,
    RECIPE,
    SIZES_RECORD,
    WIDTH,
    square_finder,
)
from tests.models.nets import residual
from tests.models.packs.documents import read_document, write_document
from tests.models.refusal import refuses


def compiled(model: onnx.ModelProto, folder: Path, **options: Any) -> Manifest:
    onnx.save(model, folder / "m.onnx")
    pack = compile_onnx(folder / "m.onnx", folder / "repository" / "m", CompileOptions(**options))
    return open_pack(pack).manifest


def test_a_classifier_may_bring_its_labels(tmp_path: Path) -> None:
    model, labels = residual(), tuple("abcdefghij")
    write_metadata(model, {LABELS: labels})
    expected = Classification(output="logits", scores="logits", labels=labels)
    assert compiled(model, tmp_path).classification == expected


def test_labels_of_a_classifier_must_fit_its_scores(tmp_path: Path) -> None:
    model = residual()
    write_metadata(model, {LABELS: ["a", "b"]})
    with refuses(CompileError, "m.onnx", f"metadata {LABELS}", "2 labels", "[1, 10]"):
        compiled(model, tmp_path)


def test_labels_of_several_outputs(tmp_path: Path) -> None:
    """The refusal says what there is, not only an output whose size would fit."""
    model = residual()
    model.graph.node.append(helper.make_node("Identity", ["logits"], ["again"]))
    model.graph.output.append(helper.make_tensor_value_info("again", 1, (1, 10)))
    with refuses(CompileError, "10 labels", "one output", "'logits'", "'again'"):
        compiled(model, tmp_path, labels=tuple("abcdefghij"))


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    manifest = compiled(square_finder(), tmp_path)
    assert manifest.preprocess == RECIPE
    assert manifest.classification is None
    assert manifest.detection == replace(DETECTION_RECIPE, labels=NAMES)
    assert manifest.source_sizes == read_record(SourceSizes, SIZES_RECORD)


OTHER = Preprocess(size=(WIDTH, HEIGHT), scale=0.5)


def test_flags_override_the_file(tmp_path: Path) -> None:
    recipe = Detection(heads=(HEAD,), nms="diou", score_threshold=0.5)
    manifest = compiled(
        square_finder(), tmp_path, preprocess=OTHER, detection=recipe, labels=("a", "b", "c")
    )
    assert manifest.preprocess == OTHER
    assert manifest.detection == replace(recipe, labels=("a", "b", "c"))


def test_flags_alone_make_a_detector(tmp_path: Path) -> None:
    model = square_finder(described=False)
    with refuses(CompileError, "--detection", "--preprocess"):
        compiled(model, tmp_path, detection=DETECTION_RECIPE)
    manifest = compiled(model, tmp_path, detection=DETECTION_RECIPE, preprocess=RECIPE)
    assert (manifest.detection, manifest.source_sizes) == (DETECTION_RECIPE, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": ("a", "b")}, ["2 labels", "3 classes"]),
        ({"preprocess": Preprocess(size=(64, 64))}, ["[1, 3, 64, 64]", "[1, 3, 64, 96]"]),
        (
            {"detection": Detection(heads=(replace(HEAD, output="y"),))},
            ["heads.0", "'y'", "'found'"],
        ),
        (
            {"detection": Detection(heads=(replace(HEAD, classes=4),))},
            ["heads.0", "'found'", "[1, 8, 1, 1]", "[1, 9,"],
        ),
    ],
)
def test_recipes_that_do_not_fit(tmp_path: Path, options: dict[str, Any], words: list[str]) -> None:
    with refuses(CompileError, "m.onnx", *words):
        compiled(square_finder(), tmp_path, **options)


def with_entry(key: str, text: str) -> onnx.ModelProto:
    model = square_finder()
    for item in model.metadata_props:
        if item.key == key:
            item.value = text
    return model


@over(
    "key, text, words",
    [
        (PREPROCESS, "{", ["not JSON"]),
        (PREPROCESS, "[" * 100_000, ["not JSON"]),
        (PREPROCESS, "{}", ["size"]),
        (PREPROCESS, '{"size": [96, 64], "filter": "box"}', ["filter"]),
        (DETECTION, "[]", []),
        (DETECTION, '{"heads": []}', ["heads"]),
        (DETECTION, '{"heads": 1e999}', ["heads"]),
        (LABELS, '{"0": "cat"}', ["array"]),
        (LABELS, '["cat", 1]', ["1"]),
        (LABELS, '["\\ud800", "a", "b"]', []),
        (SIZES, '{"tool": "darknet", "layers": -1}', ["layers"]),
    ],
)
def test_metadata_that_is_broken_is_named(
    tmp_path: Path, key: str, text: str, words: list[str]
) -> None:
    with refuses(OnnxError, "m.onnx", f"metadata {key}", *words):
        compiled(with_entry(key, text), tmp_path)


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        (LABELS, '["a", "b"]', ["2 labels", "3 classes"]),
        (PREPROCESS, '{"size": [96, 96]}', ["[1, 3, 96, 96]", "[1, 3, 64, 96]", "--preprocess"]),
    ],
)
def test_metadata_that_do_not_fit_are_named(
    tmp_path: Path, key: str, text: str, words: list[str]
) -> None:
    with refuses(CompileError, "m.onnx", f"metadata {key}", *words):
        compiled(with_entry(key, text), tmp_path)


def test_a_batch_is_for_tensors(tmp_path: Path) -> None:
    """What the file says of one image says nothing of four."""
    model = square_finder()
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_value = 4
    concat = next(node for node in model.graph.node if node.op_type == "Concat")
    concat.input.remove("classes")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.node.append(helper.make_node("Identity", ["mask"], ["copy"]))
    manifest = compiled(model, tmp_path)
    assert (manifest.preprocess, manifest.detection) == (None, None)
    assert manifest.source_sizes is not None


def test_a_manifest_whose_head_is_missing(tmp_path: Path) -> None:
    compiled(square_finder(), tmp_path)
    folder = tmp_path / "repository" / "m" / "1"
    document = read_document(folder)
    document["detection"]["heads"][0]["output"] = "lost"
    write_document(folder, document)
    with refuses(PackError, folder / "manifest.json", "detection.heads.0", "'lost'", "'found'"):
        open_pack(tmp_path / "repository" / "m")
