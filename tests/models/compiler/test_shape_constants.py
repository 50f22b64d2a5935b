"""Shapes, axes and scales are constants that ONNX Runtime must see while it infers shapes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from models.compiler import compile_onnx
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack

NODES = {
    "Reshape": (["x", "c"], np.array([1, -1])),
    "Unsqueeze": (["x", "c"], np.array([1])),
    "Slice": (["x", "c", "c", "c"], np.array([1])),
    "Pad": (["x", "c"], np.array([0, 0, 1, 1, 0, 0, 1, 1])),
    "Expand": (["x", "c"], np.array([1, 4, 8, 8])),
    "Tile": (["x", "c"], np.array([1, 1, 2, 2])),
    "Resize": (["x", "", "c"], np.array([1, 1, 2, 2], np.float32)),
}


@pytest.mark.parametrize("kind", sorted(NODES))
def test_a_node_whose_shape_is_an_initializer_compiles(kind: str, tmp_path: Path) -> None:
    inputs, constant = NODES[kind]
    if kind == "Slice":
        inputs = ["x", "s", "e", "c"]
    constants = {"c": constant, "s": np.array([1]), "e": np.array([3])}
    used = [
        numpy_helper.from_array(constants[n], n) for n in dict.fromkeys(inputs) if n in constants
    ]
    nodes = [
        helper.make_node(kind, inputs, ["y"], name=kind),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    source = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        used,
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(source, opset_imports=[opset], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    pack = open_pack(compile_onnx(path, tmp_path / "m"))
    x = np.random.default_rng(0).standard_normal((1, 4, 8, 8), np.float32)
    results = [
        ort.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for file in (path, pack.model_path)
    ]
    assert np.array_equal(*results)


def test_nodes_that_no_output_needs_are_left_out(tmp_path: Path) -> None:
    """ONNX Runtime keeps them; a piece of nothing but them would have no outputs."""
    generator = np.random.default_rng(0)
    weights = {
        name: generator.standard_normal((channels, 16, 3, 3), np.float32)
        for name, channels in (("w", 16), ("unused", 112))
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["y"], name="used"),
            helper.make_node("Conv", ["x", "unused"], ["z"], name="dead"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 6, 6])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    manifest = open_pack(compile_onnx(path, tmp_path / "m")).manifest
    assert all(piece.outputs for piece in manifest.pieces)
    assert manifest.weight_bytes == weights["w"].nbytes


def test_cropping_a_thin_strip_does_not_enlarge_it_first() -> None:
    """Resized before it is cropped, this strip would take ten gigabytes."""
    strip = Image.new("RGB", (1, 1_000_000), (10, 20, 30))
    tensor = Preprocess(size=(16, 16), resize="crop").apply(strip)
    assert tensor.shape == (1, 3, 16, 16)
    assert (tensor[0, :, 0, 0] == (10, 20, 30)).all()
