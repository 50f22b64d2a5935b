"""``layerstream import-darknet`` and ``export-darknet``: what they write, print and refuse."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from models.graphs.metadata import DETECTION, LABELS
from tests.server.support import BAD, Cli

# A detector and a classifier of a few kilobytes.
DETECTOR = """[net]
width=64
height=64
channels=3
[convolutional]
batch_normalize=1
filters=8
size=3
stride=2
pad=1
activation=leaky
[maxpool]
size=2
stride=2
[convolutional]
filters=14
activation=linear
[yolo]
mask=1,2
anchors=4,5, 10,12, 20,30
num=3
classes=2
"""
CLASSIFIER = """[net]
width=16
height=16
channels=3
[connected]
output=4
activation=relu
[softmax]
"""


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    path = tmp_path / "detector.cfg"
    path.write_text(DETECTOR)
    return path


def arrays(path: Path) -> dict[str, bytes]:
    model = onnx.load(path)
    return {t.name: numpy_helper.to_array(t).tobytes() for t in model.graph.initializer}


def entries(path: Path) -> dict[str, Any]:
    return {item.key: json.loads(item.value) for item in onnx.load(path).metadata_props}


def test_import_says_what_it_wrote(cli: Cli, detector: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.onnx"
    document = cli("import-darknet", detector, "-o", output, "--json").document
    assert document == {
        "name": "detector",
        "file": str(output),
        "layers": 4,
        "weight_bytes": 4 * (4 * 8 + 8 * 27 + 14 + 14 * 8),
        "largest_layer_bytes": 4 * (4 * 8 + 8 * 27),
        "parameters": 2 * 8 + 8 * 27 + 14 + 14 * 8,
        "resolution": 64,
        "height": 64,
        "weights": "random",
    }
    onnx.checker.check_model(output, full_check=True)


def test_import_lists_layers(cli: Cli, detector: Path, tmp_path: Path) -> None:
    command = ("import-darknet", detector, "-o", tmp_path / "x.onnx", "--layers")
    document = cli(*command, "--json").document
    rows = document["layer_table"]
    assert [row["kind"] for row in rows] == ["convolutional", "maxpool", "convolutional", "yolo"]
    assert rows[0]["input"] == [3, 64, 64]
    assert rows[0]["output"] == rows[1]["input"] == [8, 32, 32]
    assert rows[0]["scratch_bytes"] == 4 * 32 * 32 * 9 * 3 // 2
    assert sum(row["weight_bytes"] for row in rows) == document["weight_bytes"]
    for row in rows:
        parts = ("filter", "input", "output", "scratch")
        assert row["total_bytes"] == sum(row[f"{part}_bytes"] for part in parts)
    shown = cli(*command)
    assert shown.code == 0
    for word in ("maxpool", "8x32x32", "4 layers", "random"):
        assert word in shown.out


def test_seeds_and_resolutions(cli: Cli, detector: Path, tmp_path: Path) -> None:
    made = {}
    for name, options in {
        "first": (),
        "again": (),
        "seed": ("--seed", 1),
        "larger": ("--resolution", 96),
    }.items():
        made[name] = tmp_path / f"{name}.onnx"
        assert cli("import-darknet", detector, "-o", made[name], *options).code == 0
    assert made["first"].read_bytes() == made["again"].read_bytes()
    first, seeded = arrays(made["first"]), arrays(made["seed"])
    assert first["layer0.weights"] != seeded["layer0.weights"]
    assert first == arrays(made["larger"])
    (image,) = onnx.load(made["larger"]).graph.input
    assert [dim.dim_value for dim in image.type.tensor_type.shape.dim] == [1, 3, 96, 96]


def test_weights_make_a_round_trip(cli: Cli, detector: Path, tmp_path: Path) -> None:
    random, again = tmp_path / "random.onnx", tmp_path / "again.onnx"
    weights, back = tmp_path / "x.weights", tmp_path / "back.weights"
    assert cli("import-darknet", detector, "-o", random).code == 0
    exported = json.loads(cli("export-darknet", random, "-o", weights, "--json").out)
    assert exported == {"file": str(weights), "bytes": weights.stat().st_size}
    # What Darknet's own training would leave: another version, and images that were seen.
    weights.write_bytes(b"\0\0\0\0\2\0\0\0\7\0\0\0\0\1\0\0\0\0\0\0" + weights.read_bytes()[20:])
    document = cli("import-darknet", detector, weights, "-o", again, "--json").document
    assert document["weights"] == "x.weights"
    assert arrays(random) == arrays(again)
    shown = cli("export-darknet", again, "-o", back)
    assert shown.code == 0
    assert str(back) in shown.out
    assert back.read_bytes() == weights.read_bytes()


def test_labels(cli: Cli, detector: Path, tmp_path: Path) -> None:
    labels, output = tmp_path / "labels.txt", tmp_path / "x.onnx"
    labels.write_text("cat\ndog\n")
    assert cli("import-darknet", detector, "-o", output, "--labels", labels).code == 0
    found = entries(output)
    assert found[LABELS] == found[DETECTION]["labels"] == ["cat", "dog"]
    output.unlink()
    labels.write_text("cat\ndog\nbird\n")
    result = cli("import-darknet", detector, "-o", output, "--labels", labels)
    result.refuses(BAD, "detector.cfg", "2 classes", "3 labels")
    assert not output.exists()


def test_a_classifier_of_one_resolution(cli: Cli, tmp_path: Path) -> None:
    cfg, output = tmp_path / "c.cfg", tmp_path / "c.onnx"
    cfg.write_text(CLASSIFIER)
    document = cli("import-darknet", cfg, "-o", output, "--json").document
    assert document["parameters"] == 4 * 16 * 16 * 3 + 4
    (scores,) = onnx.load(output).graph.output
    assert [dim.dim_value for dim in scores.type.tensor_type.shape.dim] == [1, 4]
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\n")
    cli("import-darknet", cfg, "-o", output, "--labels", labels).refuses(BAD, "4 classes, but 2")


def test_what_cannot_be_imported_is_refused(cli: Cli, detector: Path, tmp_path: Path) -> None:
    output, weights = tmp_path / "x.onnx", tmp_path / "x.weights"
    weights.write_bytes(bytes(20 + 4 * 100))
    bad = tmp_path / "bad.cfg"
    bad.write_text(DETECTOR.replace("filters=14", "filters=18"))
    for arguments, words in [
        ((tmp_path / "none.cfg",), ("none.cfg", "No such file")),
        ((bad,), ("bad.cfg: line 18: layer 3 [yolo]", "14 channels", "18")),
        ((detector, tmp_path / "none.weights"), ("none.weights", "No such file")),
        ((detector, weights), ("x.weights", "expected 374 numbers, found 101", "layer 0")),
        (
            (detector, "--resolution", 10**9),
            ("detector.cfg at 1000000000x", "1000000000x1000000000x3"),
        ),
    ]:
        cli("import-darknet", *arguments, "-o", output).refuses(BAD, *words)
        assert not output.exists()
    cli("import-darknet", detector, "-o", ".").refuses(BAD, "Is a directory")
    gone = tmp_path / "gone" / "x.onnx"
    cli("import-darknet", detector, "-o", gone).refuses(BAD, "gone", "No such file")
    cli("import-darknet", detector).refuses(BAD, "--output")


def test_inputs_are_never_replaced(cli: Cli, detector: Path, tmp_path: Path) -> None:
    model, weights = tmp_path / "x.onnx", tmp_path / "x.weights"
    assert cli("import-darknet", detector, "-o", model).code == 0
    assert cli("export-darknet", model, "-o", weights).code == 0
    kept = weights.read_bytes()
    for output in (detector, weights):
        cli("import-darknet", detector, weights, "-o", output).refuses(BAD, "would replace")
    assert (detector.read_text(), weights.read_bytes()) == (DETECTOR, kept)
    kept = model.read_bytes()
    cli("export-darknet", model, "-o", model).refuses(BAD, "would replace")
    cli("export-darknet", model, "-o", tmp_path).refuses(BAD, "Is a directory")
    assert model.read_bytes() == kept


def test_only_imported_networks_are_exported(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.weights"
    cli("export-darknet", tiny_onnx, "-o", output).refuses(BAD, "tiny.onnx", "Darknet")
    cli("export-darknet", tmp_path / "none.onnx", "-o", output).refuses(BAD, "none.onnx")
    assert not output.exists()
