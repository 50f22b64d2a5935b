"""The shipped detector of blood cells, and how it was made small."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from benchmarks.training.folding import fold, shorten
from models.cells import FOLDER
from models.detection.boxes import BoxLimits, find_boxes
from models.zoo.patchnet import patchnet_ssdlite
from tests.models.nets import answers, filled, written
from tests.models.streamed import compiled, streamed

IMAGE = np.random.default_rng(0).standard_normal((1, 3, 32, 32), np.float32)


@pytest.mark.slow
def test_the_shipped_detector_finds_cells(tmp_path: Path) -> None:
    pack = compiled(FOLDER / "detector.onnx", tmp_path)
    manifest = pack.manifest
    assert manifest.preprocess is not None
    assert manifest.detection is not None
    assert pack.weights_path.stat().st_size < 1.1 * (FOLDER / "detector.onnx").stat().st_size
    picture = Image.open(FOLDER / "cells.jpg").convert("RGB")
    outputs = streamed(pack, {"image": manifest.preprocess.apply(picture)})
    boxes = find_boxes(
        outputs, manifest.detection, manifest.preprocess, picture.size, BoxLimits(0.4)
    )
    found = Counter(box.label for box in boxes)
    assert found["WBC"] == 1
    assert found["RBC"] > 12
    assert found["Platelets"] >= 1


def test_folding_keeps_answers_and_what_is_shared(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "budget": 4096,
        "image": (32, 32, 3),
        "margin": 4,
        "classes": 3,
        "shared": True,
    }
    model = filled(patchnet_ssdlite(32, **options))
    before = written(model, tmp_path / "before.onnx")
    count = len(model.graph.initializer)
    fold(model)
    shorten(model)
    onnx.checker.check_model(model, full_check=True)
    after = written(model, tmp_path / "after.onnx")
    assert not any(node.op_type == "BatchNormalization" for node in model.graph.node)
    assert len(model.graph.initializer) < 0.6 * count
    assert after.stat().st_size < before.stat().st_size
    (was,), (now,) = (answers(path, {"image": IMAGE}).values() for path in (before, after))
    np.testing.assert_allclose(now, was, rtol=1e-4, atol=1e-4)
