"""Large weights stay in the file; what is read through the references equals the whole message."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import helper, numpy_helper

from models.graphs.file import INSIDE_BYTES, copy_range, parse_onnx, reference
from models.graphs.onnx_reader import read_onnx
from models.graphs.onnx_writer import declare, declared, write_onnx

WEIGHTS = st.lists(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=1, max_dims=4, max_side=12),
        elements=st.floats(width=32),
    ),
    min_size=1,
    max_size=5,
)


def skeleton(weights: list[np.ndarray]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    named = {f"w{i}": weight for i, weight in enumerate(weights)}
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Sum", [*named], ["z"])],
        "net",
        [helper.make_tensor_value_info("x", 1, [1])],
        [helper.make_tensor_value_info("y", 1, [1])],
        [declare(name, weight.shape) for name, weight in named.items()],
    )
    return helper.make_model(graph), named


@given(WEIGHTS)
def test_written_weights_come_back(
    tmp_path_factory: pytest.TempPathFactory, weights: list[np.ndarray]
) -> None:
    path = tmp_path_factory.mktemp("written") / "net.onnx"
    model, named = skeleton(weights)
    assert declared(model) == {name: weight.shape for name, weight in named.items()}
    write_onnx(model, named, path)
    whole = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    for name, weight in named.items():
        np.testing.assert_array_equal(whole[name], weight)
    for tensor in read_onnx(path).graph.initializer:
        held = reference(tensor)
        assert (held is not None) == (named[tensor.name].nbytes > INSIDE_BYTES)
        if held is not None:
            target = path.with_suffix(".copy")
            with target.open("wb") as file:
                copy_range(held, file)
            assert target.read_bytes() == named[tensor.name].tobytes()


def test_weights_beyond_the_limit_go_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.graphs.onnx_writer.EXTERNAL_DATA_BYTES", 100)
    model, named = skeleton([np.arange(500, dtype=np.float32), np.ones(3, np.float32)])
    write_onnx(model, named, tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx.data").stat().st_size == 503 * 4
    for tensor in onnx.load(tmp_path / "net.onnx").graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), named[tensor.name])


def test_a_field_that_comes_twice_counts_once(tmp_path: Path) -> None:
    model, named = skeleton([np.arange(500, dtype=np.float32)])
    path = tmp_path / "net.onnx"
    write_onnx(model, named, path)
    small = onnx.ModelProto(graph=onnx.GraphProto(name="again"))
    path.write_bytes(path.read_bytes() + small.SerializeToString())
    parsed, ranges = parse_onnx(path)
    assert parsed.graph.name == "again"
    assert [held.length for held in ranges.values()] == [2000]


@given(st.integers(0, 400))
def test_a_file_that_ends_early_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, missing: int
) -> None:
    model, named = skeleton([np.arange(500, dtype=np.float32)])
    path = tmp_path_factory.mktemp("cut") / "net.onnx"
    write_onnx(model, named, path)
    path.write_bytes(path.read_bytes()[: -1 - missing])
    with pytest.raises(DecodeError):
        parse_onnx(path)
