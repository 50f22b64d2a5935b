"""What counts as a parameter and as bytes of weights, wherever a file keeps them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.graphs.traits import count_parameters
from tests.models.nets import parsed, written
from tests.models.streamed import compiled


def quantised() -> onnx.ModelProto:
    """A convolution of 8 x 3 x 3 x 3 bytes between scales and zero points."""
    arrays: dict[str, NDArray[Any]] = {
        "w": np.ones((8, 3, 3, 3), np.int8),
        "s": np.array(0.05, np.float32),
        "scales": np.full(8, 0.05, np.float32),
        "z": np.array(3, np.uint8),
        "zeros": np.zeros(8, np.int8),
    }
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node(
                "QLinearConv", ["q", "s", "z", "w", "scales", "zeros", "s", "z"], ["r"]
            ),
            helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def as_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with its initializers as Constant nodes."""
    nodes = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
    ]
    nodes.extend(model.graph.node)
    graph = helper.make_graph(nodes, "g", list(model.graph.input), list(model.graph.output))
    return helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=9)


def dense() -> onnx.ModelProto:
    text = "g (float[1,32] x) => (float y) { y = Gemm<transB=1>(x, w, b) }"
    return parsed(text, {"w": (64, 32), "b": (64,)})


@pytest.mark.parametrize("lift", [False, True])
@pytest.mark.parametrize(
    ("model", "parameters", "n_bytes"),
    [(quantised(), 8 * 3 * 3 * 3, 8 * 3 * 3 * 3), (dense(), 64 * 33, 4 * 64 * 33)],
)
def test_weights_count_wherever_they_are(
    model: onnx.ModelProto, parameters: int, n_bytes: int, lift: bool, tmp_path: Path
) -> None:
    model = as_constant_nodes(model) if lift else model
    assert count_parameters(model) == parameters
    pack = compiled(written(model, tmp_path / "m.onnx"), tmp_path)
    assert pack.manifest.parameters == parameters
    assert pack.manifest.weight_bytes == n_bytes
