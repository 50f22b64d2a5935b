"""Every activation as ONNX Runtime computes it, over more than the range that networks use."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from models.darknet.section_layers import ACTIVATIONS
from models.darknet.skeleton import skeleton
from models.graphs.onnx_writer import write_onnx
from tests.models.darknet.oracle_activations import ACTIVATIONS as EXACT
from tests.models.darknet.test_geometry import network


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values(activation: str, tmp_path: Path) -> None:
    points = np.concatenate(
        [np.linspace(-50, 50, 1001), np.linspace(-3, 3, 1001), [0, -2, -1, 1, 6]]
    )
    net = f"width={points.size}\nheight=1\nchannels=1"
    model = skeleton(network(f"[conv]\nactivation={activation}", net), "x")
    unchanged = {"layer0.weights": np.ones((1, 1, 1, 1), np.float32)}
    write_onnx(model, unchanged | {"layer0.biases": np.zeros(1, np.float32)}, tmp_path / "x.onnx")
    session = ort.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    image = points.astype(np.float32).reshape(1, 1, 1, -1)
    (values,) = session.run(None, {"image": image})
    expected = EXACT[activation](image.astype(np.float64))
    assert np.all(np.abs(values - expected) <= 2e-6 * np.maximum(np.abs(image), 1))
