"""What counts as a parameter and as bytes of weights, wherever a file keeps them; what operators say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.graphs.onnx_reader import read_graph
from models.graphs.ranges import FileRange, mapped
from models.graphs.text import from_text
from models.graphs.traits import Traits, count_parameters, infinite_weights, read_traits
from tests.examples import over
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
    source = written(model, tmp_path / "m.onnx")
    assert count_parameters(read_graph(source).graph) == parameters
    pack = compiled(source, tmp_path)
    assert pack.manifest.parameters == parameters
    assert pack.manifest.weight_bytes == n_bytes


def test_bytes_of_several_weights() -> None:
    """Sizes say how many a byte has; where nothing says them the bytes are what can be counted."""
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[1,64] x) => (float[1,8] y) <uint8[8,2,16] w, float[16] s> {
        y = com.microsoft.MatMulNBits<K=64, N=8, bits=4, block_size=32>(x, w, s)
    }"""
    graph = from_text(text)
    arrays: dict[str, NDArray[Any]] = {
        "w": np.zeros((8, 2, 16), np.uint8),
        "s": np.ones(16, np.float32),
    }
    graph = replace(graph, constants=arrays)
    assert count_parameters(graph) == 64 * 8
    node = graph.nodes[0].with_attributes(K=None)
    assert count_parameters(replace(graph, nodes=(node,))) == 8 * 2 * 16


@pytest.mark.parametrize("is_mapped", [False, True])
def test_weights_that_are_no_numbers(is_mapped: bool, tmp_path: Path) -> None:
    """Of layers alone: a mask has infinities. More are looked at than are held at a time."""
    arrays: dict[str, NDArray[Any]] = {
        "w": np.zeros((5, 300_000), np.float32),
        "v": np.zeros((5, 5), np.float16),
        "m": np.full((1, 5), -np.inf, np.float32),
    }
    arrays["w"].reshape(-1)[[0, 1, (1 << 20) - 1, 1 << 20, -1]] = np.nan
    if is_mapped:
        (tmp_path / "w.data").write_bytes(b"abcd" + arrays["w"].tobytes())
        arrays["w"] = mapped(FileRange(tmp_path / "w.data", 4, 6_000_000), np.float32, (5, 300_000))
    graph = from_text(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (float[1,300000] x) => (float[1,5] y) { a = Gemm<transB=1>(x, w)\n b = MatMul(a, v)
            y = Add(b, m) }"""
    )
    (text,) = infinite_weights(replace(graph, constants=arrays))
    assert text == "weights 'w': 5 of 1500000 are NaN or infinite"


@over(
    "text, traits",
    [
        ("(float[4] x) => (float[4] y) { y = Relu(x) }", Traits()),
        (
            "(float[4] x) => (float[4] y) { y = RandomUniformLike(x) }",
            Traits("'y' (RandomUniformLike)"),
        ),
        ("(float[4] x) => (float[4] y) { y = Dropout(x) }", Traits()),
        ("(float[4] x, bool t) => (float[4] y) { y = Dropout(x, , t) }", Traits("'y' (Dropout)")),
        ("(float[4] x) => (int64[4] y) { y = Cast<to=7>(x) }", Traits(jumps=True)),
        ("(float[4] x) => (double[4] y) { y = Cast<to=11>(x) }", Traits()),
        ("(float[4] x) => (bfloat16[4] y) { y = Cast<to=16>(x) }", Traits(half=True)),
        ("(bfloat16[4] x) => (float[4] y) { y = Cast<to=1>(x) }", Traits(half=True)),
        ("(float16[4] x) => (float16[4] y) { y = Relu(x) }", Traits(half=True)),
        ("(float[4] x) => (float[4] y) <float16[1] w = {1}> { y = Relu(x) }", Traits(half=True)),
        (
            "(float[4] x, float s) => (uint8[4] y) { y = QuantizeLinear(x, s) }",
            Traits(jumps=True, quantised=True),
        ),
        (
            """(float[4] x, bool c) => (y) { y = If(c) <
                then_branch = t () => (float[4] p) { p = Floor(x) },
                else_branch = e () => (float[4] q) <float16[1] w = {1}> { q = Neg(x) }> }""",
            Traits(jumps=True, half=True),
        ),
        (
            """(int64 n) => (bool y) <double two = {2.5}, int64[2] four = {4, 5}> {
                d = Cast<to=11>(n)
                y = Equal(two, d)
                z = Equal(n, four)
            }""",
            Traits(jumps=True, compared=(("n", 2.5),)),
        ),
    ],
)
def test_traits(text: str, traits: Traits, tmp_path: Path) -> None:
    assert read_traits(written(parsed(f"g {text}"), tmp_path / "m.onnx")) == traits
