"""Detectors on pictures with boxes, and beside each other: one that finds what is bright."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.datasets.samples import DataError, Dataset, read_folder
from models.datasets.voc import read_voc
from models.graphs.metadata import DETECTION, LABELS, write_metadata
from models.packs.pack import Pack, open_pack
from models.records import plain
from pipeline.devices.cpu import CpuDevice
from pipeline.evaluating.evaluate import evaluate
from pipeline.evaluating.results_file import read_results, save_result
from tests.models.detector import DETECTION_RECIPE, HEAD, NAMES, SCENES, square_finder
from tests.models.nets import written

_LAMP = NAMES[0]
# Where something is in the picture, and where nothing is.
_THERE, _NOWHERE = SCENES["grey"].square, (1, 1, 20, 20)


@pytest.fixture
def finder(tmp_path: Path) -> Pack:
    source = written(square_finder(), tmp_path / "finder.onnx")
    return open_pack(compile_onnx(source, tmp_path / "packs" / "finder"))


def _marked(folder: Path, *pictures: Sequence[tuple[str, tuple[int, int, int, int]]]) -> Dataset:
    """Return one picture after the other, each with objects: name, left, top, right, bottom."""
    for part in ("Annotations", "JPEGImages"):
        (folder / part).mkdir(parents=True)
    for number, objects in enumerate(pictures):
        SCENES["grey"].image().save(folder / "JPEGImages" / f"{number}.png")
        # VOC counts from 1.
        listed = "".join(
            f"<object><name>{name}</name><bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin>"
            f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
            for name, (x, y, right, bottom) in objects
        )
        text = f"<annotation>{listed}</annotation>"
        (folder / "Annotations" / f"{number}.xml").write_text(text)
    return read_voc(folder, "all")


def test_classes_that_the_model_does_not_have_are_left_out_and_named(
    finder: Pack, tmp_path: Path
) -> None:
    """Their pictures count: what is there of the other classes is found or missed all the same."""
    data = _marked(
        tmp_path / "set",
        [(_LAMP, _THERE), ("ghost", _NOWHERE)],
        [("Lamp", _NOWHERE), ("ghost", _THERE)],
        [("bat", _NOWHERE)],
    )
    found = evaluate(finder, data, CpuDevice()).as_dict()
    assert found["samples"] == found["pictures"] == 3
    assert found["broken"] == []
    assert found["left_out"] == {"ghost": 2, "bat": 1}
    # Of two lamps one is found, by one of three boxes with the same score.
    assert found["ap50"] == {_LAMP: pytest.approx(1 / 2)}
    assert found["map50"] == found["ap50"][_LAMP]
    save_result(finder, found)
    assert read_results(finder.folder) == [found]


def test_a_data_set_of_other_classes_is_refused_before_it_is_swept(
    finder: Pack, tmp_path: Path
) -> None:
    data, steps = _marked(tmp_path / "set", [("ghost", _THERE)]), list[object]()
    with pytest.raises(DataError, match="no class of the model: 'ghost'; it has 'lamp'"):
        evaluate(finder, data, CpuDevice(), step=lambda *done: steps.append(done))
    assert not steps
    found = evaluate(finder, data, CpuDevice(), finder).as_dict()
    assert "map50" not in found
    assert found["left_out"] == {"ghost": 1}
    assert found["agreement"]["map50"] == 1


def test_a_detector_of_other_classes_is_refused_before_a_sweep(
    finder: Pack, tmp_path: Path
) -> None:
    folder, steps = tmp_path / "pictures", list[object]()
    folder.mkdir()
    SCENES["tiny"].image().save(folder / "1.png")
    lamps = _of_lamps(tmp_path)
    for one, two in ((finder, lamps), (lamps, finder)):
        with pytest.raises(DataError, match=r"cannot be compared: they have [13] and [13] classes"):
            evaluate(
                one, read_folder(folder), CpuDevice(), two, step=lambda *done: steps.append(done)
            )
    assert not steps


def _of_lamps(folder: Path) -> Pack:
    """Return a detector of one class."""
    model = square_finder()
    (classes,) = (tensor for tensor in model.graph.initializer if tensor.name == "classes")
    classes.CopyFrom(numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "classes"))
    head = replace(HEAD, classes=1)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = head.planes
    detection = replace(DETECTION_RECIPE, heads=(head,))
    write_metadata(model, {DETECTION: plain(detection), LABELS: NAMES[:1]})
    source = written(model, folder / "lamps.onnx")
    return open_pack(compile_onnx(source, folder / "packs" / "lamps", CompileOptions(force=True)))
