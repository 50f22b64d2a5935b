"""Packs on data sets: a network whose answer is the colour of a picture."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.datasets.samples import DataError, Marked, read_folder
from models.detection.boxes import Box
from models.images.preprocess import Color, Preprocess
from models.packs.pack import Pack, open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.evaluating.counters import Agreement, BoxTally, Scores, class_numbers, targets_of
from pipeline.evaluating.evaluate import evaluate
from pipeline.evaluating.results_file import FILE, read_results, save_result
from tests.models.nets import parsed, written

COLOURS = {"red": (200, 10, 0), "green": (10, 200, 0), "blue": (0, 10, 200)}
RECIPE = Preprocess(size=(4, 4))


def _pack(folder: Path, name: str, labels: tuple[str, ...], order: Color = "RGB") -> Pack:
    model = parsed(
        """g (float[1,3,4,4] x) => (float[1,3] y) {
            p = GlobalAveragePool(x)
            y = Flatten(p)
        }"""
    )
    source = written(model, folder / f"{name}.onnx")
    recipe = replace(RECIPE, color=order)
    options = CompileOptions(preprocess=recipe, labels=labels)
    return open_pack(compile_onnx(source, folder / "packs" / name, options))


def colour_folder(folder: Path) -> Path:
    """Three red pictures, one of them called blue, a green one, and a broken one."""
    for place, colour in (
        ("red/1", "red"),
        ("red/2", "red"),
        ("blue/3", "red"),
        ("green/4", "green"),
    ):
        path = folder / "set" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 7), COLOURS[colour]).save(path)
    (folder / "set" / "green" / "broken.png").write_bytes(b"no picture")
    return folder / "set"


def test_classes_are_counted(tmp_path: Path) -> None:
    pack = _pack(tmp_path, "colours", ("Red", "green", "BLUE"))
    seen: list[tuple[int, int]] = []
    found = evaluate(
        pack,
        read_folder(colour_folder(tmp_path)),
        CpuDevice(),
        step=lambda *done: seen.append(done),
    ).as_dict()
    assert found["samples"] == 4
    assert found["top1"] == 3 / 4
    assert "top5" not in found  # of three classes
    assert found["confusion"] == [
        {"truth": "Red", "answer": "Red", "count": 2},
        {"truth": "green", "answer": "green", "count": 1},
        {"truth": "BLUE", "answer": "Red", "count": 1},
    ]
    assert len(found["broken"]) == 1
    assert "broken.png" in found["broken"][0]
    assert seen == [(number, 5) for number in range(1, 6)]


def test_broken_samples_can_be_refused(tmp_path: Path) -> None:
    pack = _pack(tmp_path, "colours", tuple(COLOURS))
    with pytest.raises(DataError, match=r"broken\.png"):
        evaluate(pack, read_folder(colour_folder(tmp_path)), CpuDevice(), skip_broken=False)


def test_packs_agree_where_they_answer_the_same(tmp_path: Path) -> None:
    pack = _pack(tmp_path, "colours", ())
    other = _pack(tmp_path, "turned", (), order="BGR")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, colour in COLOURS.items():
        Image.new("RGB", (9, 7), colour).save(folder / f"{name}.png")
    found = evaluate(pack, read_folder(folder), CpuDevice(), other).as_dict()
    assert "top1" not in found
    # Red and blue change places, green does not.
    agreement = {"compared": 3, "top1": 1 / 3, "largest_difference": 200.0}
    assert found["agreement"] == pytest.approx(agreement)
    with pytest.raises(
        DataError, match=r"nothing is known .*, while .* classifies.*--against PACK"
    ):
        evaluate(pack, read_folder(folder), CpuDevice())


def test_packs_without_a_recipe_take_no_pictures(tmp_path: Path) -> None:
    source = written(
        parsed("g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }"), tmp_path / "m.onnx"
    )
    pack = open_pack(compile_onnx(source, tmp_path / "packs" / "m"))
    with pytest.raises(DataError, match="takes no pictures"):
        evaluate(pack, read_folder(colour_folder(tmp_path)), CpuDevice())


def test_classes_by_label_by_order_or_by_number() -> None:
    assert class_numbers(["a_b", "C"], ["c", "A B"], 2) == {"a_b": 1, "C": 0}
    assert class_numbers(["y", "x"], [], 2, ["x", "y"]) == {"y": 1, "x": 0}
    assert class_numbers(["2", "0"], [], 3, ["0", "2"]) == {"2": 2, "0": 0}
    with pytest.raises(DataError, match=r"no class of the model: 'z'; it has 'a', 'b'"):
        class_numbers(["a", "z"], ["a", "b"], 2)
    with pytest.raises(DataError, match="'3'"):
        class_numbers(["3"], [], 3)
    with pytest.raises(DataError, match=r"several classes .* have this name: 'crane'"):
        class_numbers(["dog", "crane"], ["crane", "dog", "Crane"], 3)


def test_the_five_best_count_where_there_are_more_classes() -> None:
    counted = Scores([str(number) for number in range(7)])
    for truth in (6, 5, 2, 1):
        counted.add(np.arange(7.0), truth)
    figures = counted.figures()
    assert figures["top1"] == 1 / 4
    assert figures["top5"] == 3 / 4
    assert Scores(["a"]).figures() == {}


def test_answers_with_nan_have_no_class_and_agree_with_none() -> None:
    counted, agreed = Scores(["a", "b"]), Agreement()
    for scores in ([np.nan, np.nan], [0.0, np.nan], [2.0, 1.0]):
        counted.add(np.array(scores), 0)
        agreed.add(np.array(scores), np.array(scores))
    assert counted.figures()["top1"] == agreed.figures()["top1"] == 1 / 3
    assert [cell["count"] for cell in counted.figures()["confusion"]] == [1]
    assert agreed.figures()["largest_difference"] == 0


def test_a_distance_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    """Scores may be infinite, as logarithms of zero are; what is said of them can be read again."""
    agreed = Agreement()
    agreed.add(np.array([1.0, -np.inf]), np.array([3.0, -np.inf]))
    assert agreed.figures() == {"compared": 1, "top1": 1.0, "largest_difference": 2.0}
    agreed.add(np.array([1.0, np.inf]), np.array([3.0, np.nan]))
    agreed.add(np.array([1.0, np.inf]), np.array([3.0, 4.0]))
    assert agreed.figures() == {"compared": 3, "top1": 2 / 3}
    pack = _pack(tmp_path, "colours", ())
    save_result(pack, {"dataset": "a", "samples": 3, "agreement": agreed.figures()})
    assert read_results(pack.folder)[0]["agreement"] == agreed.figures()


def test_packs_of_other_classes_are_refused_before_a_sweep(tmp_path: Path) -> None:
    model = parsed("g (float[1,3,4,4] x) => (float[1,48] y) { y = Flatten(x) }")
    source, steps = written(model, tmp_path / "flat.onnx"), list[object]()
    flat = compile_onnx(source, tmp_path / "packs" / "flat", CompileOptions(preprocess=RECIPE))
    packs = _pack(tmp_path, "colours", ()), open_pack(flat)
    data = read_folder(colour_folder(tmp_path))
    with pytest.raises(DataError, match="cannot be compared: they have 3 and 48 classes"):
        evaluate(packs[0], data, CpuDevice(), packs[1], step=lambda *done: steps.append(done))
    assert not steps


def test_samples_whose_answers_are_no_numbers_are_named(tmp_path: Path) -> None:
    """The network divides what a channel has by the same: of black pictures that is NaN."""
    model = parsed(
        """g (float[1,3,4,4] x) => (float[1,3] y) {
            p = GlobalAveragePool(x)
            d = Div(p, p)
            y = Flatten(d)
        }"""
    )
    folder = tmp_path / "pictures"
    for name, colour in (("white", (255, 255, 255)), ("black", (0, 0, 0))):
        (folder / name).mkdir(parents=True)
        Image.new("RGB", (4, 4), colour).save(folder / name / "1.png")
    source = written(model, tmp_path / "m.onnx")
    options = CompileOptions(preprocess=RECIPE, labels=("white", "black", "grey"))
    pack = open_pack(compile_onnx(source, tmp_path / "packs" / "m", options))
    found = evaluate(pack, read_folder(folder), CpuDevice()).as_dict()
    assert found["not_numbers"] == ["black/1.png"]
    assert found["top1"] == 1 / 2
    save_result(pack, found)
    assert read_results(pack.folder) == [found]


def test_boxes_are_counted_by_class() -> None:
    counted = BoxTally(["cell", "plate"])
    marks = [Marked("plate", (0, 0, 10, 10)), Marked("cell", (5, 5, 9, 9))]
    there = targets_of(marks, {"cell": 0, "plate": 1})
    counted.add([Box(1, "plate", 0.9, (0, 0, 10, 9))], there)
    assert counted.figures() == {"pictures": 1, "map50": 0.5, "ap50": {"cell": 0.0, "plate": 1.0}}


def test_results_are_kept_by_subject(tmp_path: Path) -> None:
    pack = _pack(tmp_path, "colours", tuple(COLOURS))
    assert read_results(pack.folder) == []
    first = {"dataset": "a", "data": "x", "samples": 4, "top1": 0.5}
    save_result(pack, first)
    save_result(pack, first | {"dataset": "b", "top1": 0.25})
    save_result(pack, first | {"top1": 0.75})
    assert [item["top1"] for item in read_results(pack.folder)] == [0.25, 0.75]
    assert open_pack(pack.folder).manifest == pack.manifest  # it is still a pack
    wrong = ({"top1": "all"}, {"samples": None}, {"agreement": {"top1": 2}}, {"confusion": [1]})
    documents = [json.dumps([first | fields]) for fields in wrong]
    for text in ("{", "[1]", json.dumps(first), *documents):
        (pack.folder / FILE).write_text(text)
        with pytest.raises(DataError, match=FILE):
            read_results(pack.folder)
    (pack.folder / FILE).unlink()
    os.mkfifo(pack.folder / FILE)  # no process will ever write to it
    with pytest.raises(DataError, match="not a file"):
        read_results(pack.folder)
