"""What passes write instead of nodes is of the model's own operator set, whichever that is."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.helper import make_node

from tests.models.nets import answers, written
from tests.models.streamed import compiled, same, streamed

_SCALES = np.array([1, 1, 2, 2], np.float32)
_NONE = np.zeros(0, np.float32)


def resized(channels: int, *others: str, **attributes: str) -> list[onnx.NodeProto]:
    """Return nodes that make an image of ``channels`` twice as large, and read it again."""
    weights = "one" if channels == 1 else "many"
    resize = make_node("Resize", ["a", *others], ["b"], **attributes)
    return [make_node("Conv", ["x", weights], ["a"]), resize, make_node("Sigmoid", ["b"], ["y"])]


def filled(operator: str, **attributes: Any) -> list[onnx.NodeProto]:
    """Return convolutions of channels that four does not divide, with ``operator`` between them."""
    return [
        make_node("Conv", ["x", "odd"], ["a"]),
        make_node(operator, ["a"], ["b"], **attributes),
        make_node("Conv", ["b", "end"], ["y"]),
    ]


# By name: the operator sets, and the nodes.
CASES = {
    "repeated": (range(11, 20), resized(16, "region", "scales", mode="nearest")),
    "to a size": (range(11, 20), resized(16, "region", "region", "sizes", mode="nearest")),
    "one channel": (range(11, 20), resized(1, "region", "scales", mode="linear")),
    "as once": ((10,), resized(16, "scales", mode="nearest")),
    "filled": (range(6, 20), filled("Sigmoid")),
    "filled, bounded": ((6, 10), filled("Clip", min=0.0, max=1.0)),
}


def model_of(nodes: list[onnx.NodeProto], opset: int) -> onnx.ModelProto:
    generator = np.random.default_rng(4)
    shapes = {"one": (1, 8, 1, 1), "many": (16, 8, 1, 1), "odd": (58, 8, 1, 1)}
    shapes |= {"end": (16, 58, 1, 1)}
    weights = {
        name: (generator.standard_normal(shape) / 4).astype(np.float32)
        for name, shape in shapes.items()
    }
    channels = next(
        c for name, c in (("one", 1), ("many", 16), ("odd", 16)) if name in nodes[0].input
    )
    sizes = np.array([1, channels, 18, 14], np.int64)
    constants: dict[str, NDArray[Any]] = {
        **weights,
        "region": _NONE,
        "scales": _SCALES,
        "sizes": sizes,
    }
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 8, 9, 7])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in read],
    )
    imports = [helper.make_opsetid("", opset)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=imports, ir_version=8)
    )


def check(name: str, opset: int, folder: Path) -> None:
    source = written(model_of(CASES[name][1], opset), folder / f"m{opset}.onnx")
    inputs = {"x": np.random.default_rng(5).standard_normal((1, 8, 9, 7)).astype(np.float32)}
    same(streamed(compiled(source, folder), inputs), answers(source, inputs), 1e-5, 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_oldest_operator_set(name: str, tmp_path: Path) -> None:
    check(name, CASES[name][0][0], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_operator_set(name: str, tmp_path: Path) -> None:
    for opset in CASES[name][0]:
        check(name, opset, tmp_path)
