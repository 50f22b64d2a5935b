"""Channels that four does not divide: filled up where no result shows it, and interpolated as planes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler.analysis.graph import NCHWC_DOMAIN
from models.packs.pack import Pack
from models.packs.target import host_target
from tests.models.nets import answers, written
from tests.models.streamed import compiled, same, streamed

# Of every text: x goes in, y comes out; weights by name and shape.
NETWORKS = {
    "residual, of each channel by itself": (
        """a = Conv<pads=[1,1,1,1]>(x, w0, b0)  r = Relu(a)
        d = Conv<pads=[1,1,1,1], group=22>(r, w1, b1)  p = Conv(d, w2, b2)  s = Add(p, r)
        m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(s)  y = Conv(m, w3, b3)""",
        {"w0": (22, 3, 3, 3), "w1": (22, 1, 3, 3), "w2": (22, 22, 1, 1), "w3": (7, 22, 1, 1)},
    ),
    "gate": (
        """a = Conv(x, w0, b0)  h = HardSwish(a)  d = Conv<pads=[2,2,2,2], group=74>(h, w1, b1)
        g = GlobalAveragePool(d)  f = Conv(g, w2, b2)  e = Relu(f)  i = Conv(e, w3, b3)
        k = HardSigmoid(i)  n = Mul(d, k)  y = Conv(n, w4, b4)""",
        {
            "w0": (74, 3, 1, 1),
            "w1": (74, 1, 5, 5),
            "w2": (18, 74, 1, 1),
            "w3": (74, 18, 1, 1),
            "w4": (24, 74, 1, 1),
        },
    ),
    "read by all": (
        """a = Conv(x, w0, b0)  s = Sigmoid(a)  y = Conv<pads=[1,1,1,1]>(s, w1, b1)""",
        {"w0": (50, 3, 3, 3), "w1": (33, 50, 3, 3)},
    ),
}


def network(text: str, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    head = (
        '<ir_version: 8, opset_import: ["" : 17]> net (float[1,3,24,20] x) => (float[a,b,c,d] y) {'
    )
    model = parse_model(f"{head}{text}}}")
    generator = np.random.default_rng(7)
    biases = {f"b{name[1:]}": shape[:1] for name, shape in shapes.items()}
    for name, shape in {**shapes, **biases}.items():
        array = generator.standard_normal(shape).astype(np.float32) / 4
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return onnx.shape_inference.infer_shapes(model)


def operators(pack: Pack) -> list[onnx.NodeProto]:
    return [node for data in pack.graphs for node in onnx.load_from_string(data).graph.node]


@pytest.mark.parametrize("name", NETWORKS)
def test_all_convolutions_are_blocked(name: str, tmp_path: Path) -> None:
    source = written(network(*NETWORKS[name]), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    kinds = {node.domain for node in operators(pack) if "Conv" in node.op_type}
    assert kinds == {NCHWC_DOMAIN} or host_target().block == 1
    inputs = {"x": np.random.default_rng(5).standard_normal((1, 3, 24, 20)).astype(np.float32)}
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "a = Conv(x, w0, b0)  y = Conv<group=18>(a, w1, b1)",
        "a = Conv(x, w0, b0)  f = Log(a)  d = Conv<group=18>(f, w1, b1)  y = Conv(d, w2, b2)",
        "a = Conv(x, w0, b0)  e = Softmax<axis=1>(a)  d = Conv<group=18>(e, w1)  y = Conv(d, w2, b2)",
    ],
    ids=["an output", "no number of zero", "all channels at once"],
)
def test_what_somebody_sees_is_not_filled(text: str, tmp_path: Path) -> None:
    shapes = {"w0": (18, 3, 1, 1), "w1": (18, 1, 3, 3), "w2": (4, 18, 1, 1)}
    source = written(network(text, shapes), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    assert any(node.domain != NCHWC_DOMAIN for node in operators(pack) if "Conv" in node.op_type)
    inputs = {"x": np.random.default_rng(5).random((1, 3, 24, 20), np.float32)}
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


@pytest.mark.parametrize("behind", ["y = Concat<axis=1>(u, u)", "y = Sigmoid(u)"])
def test_an_interpolated_channel_takes_the_memory_of_one(behind: str, tmp_path: Path) -> None:
    text = f"""a = Conv(x, w0, b0)  f = Constant<value_floats=[1.0,1.0,4.0,4.0]>()
        u = Resize<mode="linear">(a, , f)  {behind}"""
    source = written(network(text, {"w0": (1, 3, 3, 3)}), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    assert "Upsample" not in {node.op_type for node in operators(pack)}
    largest = max(value.n_bytes for value in pack.manifest.values)
    assert largest <= 2 * 4 * 88 * 72
    inputs = {"x": np.random.default_rng(5).standard_normal((1, 3, 24, 20)).astype(np.float32)}
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)
