"""A softmax along any axis is one along rows: the same bits, in memory that the plan counts."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.compiler import CompileOptions
from models.compiler.optimising.along_rows import AlongRows
from models.graphs.graph import Graph, ValueTypes
from models.graphs.text import from_text
from models.graphs.writer import model_of
from models.network.fields import Array
from models.packs.target import host_target
from models.zoo.builder import SkeletonBuilder
from tests.models.nets import answers, filled
from tests.models.streamed import compiled, streamed

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=5).map(tuple)


def softmax(
    shape: tuple[int, ...], axis: int, operator: str = "Softmax", version: int = 13
) -> Graph:
    sizes = ", ".join(map(str, shape))
    return from_text(
        f'<ir_version: 8, opset_import: ["" : {version}]> g (float[{sizes}] x) => (float[{sizes}] y) '
        f"{{ y = {operator} <axis = {axis}> (x) }}"
    )


def run(graph: Graph, x: np.ndarray) -> np.ndarray:
    model = model_of(graph)
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    answer: np.ndarray = session.run(None, {"x": x})[0]
    return answer


@given(shape=SHAPES, data=st.data(), operator=st.sampled_from(["Softmax", "LogSoftmax"]))
def test_any_axis_gives_the_same_bits(
    shape: tuple[int, ...], data: st.DataObject, operator: str
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(1).normal(0, 30, shape).astype(np.float32)
    original = softmax(shape, axis, operator)
    rewritten = AlongRows(original).run()
    np.testing.assert_array_equal(run(rewritten, x), run(original, x))
    behind = shape[axis % len(shape) + 1 :]
    assert len(rewritten.nodes) == (3 if np.prod(behind) > 1 else 1)
    assert rewritten.values.keys() == {"x", *rewritten.makers}


def test_before_version_13_numbers_lie_side_by_side() -> None:
    original = softmax((2, 3, 4), 1, version=11)
    assert AlongRows(original).run() is original


def test_a_name_that_is_taken_is_not_taken_again() -> None:
    graph = from_text(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) '
        '{ "y/rows" = Softmax <axis = 0> (x) y = Softmax <axis = 0> ("y/rows") z = Relu ("y/rows") }'
    )
    x, image = np.ones((2, 3), np.float32), Array(dtype="float32", shape=(2, 3))
    typed = graph.with_types(ValueTypes({**graph.values, "y/rows": image}, {}))
    np.testing.assert_array_equal(run(AlongRows(typed).run(), x), run(graph, x))


@pytest.mark.parametrize("axis", [1, 3])
def test_a_pack_takes_no_memory_beside_its_plan(axis: int, tmp_path: Path) -> None:
    source = tmp_path / "source.onnx"
    onnx.save(model_of(softmax((1, 16, 4, 1024), axis)), source)
    pack = compiled(source, tmp_path)
    assert [piece.scratch_bytes for piece in pack.manifest.pieces] == [0] * (3 if axis == 1 else 1)
    x = np.random.default_rng(1).standard_normal((1, 16, 4, 1024), np.float32)
    (got,) = streamed(pack, {"x": x}).values()
    (expected,) = answers(source, {"x": x}).values()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
@pytest.mark.parametrize("of_block", [1, 2])
def test_channels_of_one_block_need_no_transposes(of_block: int, tmp_path: Path) -> None:
    """As in the head of a YOLOv8: weights of distances, which a convolution adds up."""
    channels = of_block * host_target().block
    b = SkeletonBuilder("head", 16)
    x = b.conv(b.softmax(b.conv(b.image, channels, 3), 1), 32, 1)
    source = tmp_path / "source.onnx"
    onnx.save(filled(b.model(x)), source)
    pack = compiled(source, tmp_path, CompileOptions(force=True))
    found = [layer.operator for layer in pack.manifest.layers]
    assert found.count("Softmax") == 1
    assert ("Transpose" in found) == (of_block > 1)
    assert found.count("ReorderOutput") == of_block  # for the answer, and for what is not blocked
    (port,) = pack.manifest.inputs
    inputs = {port.name: np.random.default_rng(1).standard_normal(port.shape, np.float32)}
    (got,) = streamed(pack, inputs).values()
    (expected,) = answers(source, inputs).values()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
