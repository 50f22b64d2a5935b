"""write_onnx: what onnx reads back is the skeleton with its weights, in one file or in two."""

import errno
import math
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from models.errors import ModelError
from models.graphs.onnx_writer import check_place, declare, declared, skeleton_graph, write_onnx
from models.zoo import build
from tests.examples import over
from tests.models.nets import parsed
from tests.models.refusal import refuses

Weights = dict[str, NDArray[np.float32]]

shapes = st.lists(st.lists(st.integers(0, 40), max_size=4).map(tuple), max_size=6)


def skeleton(weights: Weights) -> onnx.ModelProto:
    """A model that declares ``weights`` among constants that it holds."""
    model = parsed("net (float[1] x) => (float[1] y) { y = Add(x, one) }")
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    axes = helper.make_tensor("axes", onnx.TensorProto.INT64, (2,), [2, 3])
    tensors = [declare(name, array.shape) for name, array in weights.items()]
    model.graph.initializer.extend([one, *tensors[::2], axes, *tensors[1::2]])
    model.metadata_props.add(key="who", value="we")
    return model


def drawn(dims: list[tuple[int, ...]]) -> Weights:
    generator = np.random.default_rng(1)
    return {
        f"w{i}": generator.standard_normal(shape, dtype=np.float32)
        for i, shape in enumerate(dims)
        if math.prod(shape)
    }


def check(model: onnx.ModelProto, source: onnx.ModelProto, weights: Weights) -> None:
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert set(held) == {tensor.name for tensor in source.graph.initializer}
    for name, array in weights.items():
        assert np.array_equal(held[name], array)
    assert held["one"].tolist() == [1.0]
    assert held["axes"].tolist() == [2, 3]
    assert list(model.graph.node) == list(source.graph.node)
    assert list(model.metadata_props) == list(source.metadata_props)
    assert list(model.opset_import) == list(source.opset_import)


@given(shapes)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, dims: list[tuple[int, ...]]
) -> None:
    path = tmp_path_factory.mktemp("net") / "m.onnx"
    weights = drawn(dims)
    source = skeleton(weights)
    before = source.SerializeToString(deterministic=True)
    assert declared(source) == {name: array.shape for name, array in weights.items()}
    write_onnx(source, weights, path)
    assert [path] == list(path.parent.iterdir())
    check(onnx.load(path), source, weights)
    written = path.read_bytes()
    write_onnx(source, weights, path)
    assert path.read_bytes() == written
    assert source.SerializeToString(deterministic=True) == before


@given(shapes)
def test_a_skeleton_is_a_graph_whose_weights_take_no_memory(dims: list[tuple[int, ...]]) -> None:
    source = skeleton(drawn(dims))
    constants = skeleton_graph(source).constants
    assert {name: constants[name].shape for name in declared(source)} == declared(source)
    assert not any(any(constants[name].strides) for name in declared(source))
    assert constants["axes"].tolist() == [2, 3]
    assert constants["one"].tolist() == [1.0]


@given(shapes)
def test_large_weights_lie_beside_the_model(
    tmp_path_factory: pytest.TempPathFactory, dims: list[tuple[int, ...]]
) -> None:
    path = tmp_path_factory.mktemp("net") / "m.onnx"
    weights = drawn(dims)
    source = skeleton(weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.graphs.onnx_writer.EXTERNAL_DATA_BYTES", 1)
        write_onnx(source, weights, path)
    data = path.with_name("m.onnx.data")
    assert data.is_file() == bool(weights)
    if weights:
        assert data.stat().st_size == sum(array.nbytes for array in weights.values())
    check(onnx.load(path), source, weights)


@over("order", ["C", "F", "mapped", "view"])
def test_arrays_of_any_order_in_memory(tmp_path: Path, order: str) -> None:
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    given = array
    if order == "F":
        given = np.asfortranarray(array)
    elif order == "view":
        given = np.repeat(array, 2, 2)[:, :, ::2]
    elif order == "mapped":
        array.tofile(tmp_path / "w")
        given = np.memmap(tmp_path / "w", np.float32, "r", shape=(3, 4, 5))
    write_onnx(skeleton({"w0": array}), {"w0": given}, tmp_path / "m.onnx")
    check(onnx.load(tmp_path / "m.onnx"), skeleton({"w0": array}), {"w0": array})


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    weights = drawn([(3, 4)])
    with refuses(ModelError, f"{tmp_path}/none/m.onnx: No such file"):
        write_onnx(skeleton(weights), weights, tmp_path / "none" / "m.onnx")
    with refuses(ModelError, f"{tmp_path}: Is a directory"):
        write_onnx(skeleton(weights), weights, tmp_path)
    assert list(tmp_path.iterdir()) == []
    steps: list[object] = []
    for place, said in ((tmp_path / "none" / "m.onnx", "No such file"), (tmp_path, "Is a direct")):
        with refuses(ModelError, place, said):  # before weights are drawn
            build("resnet18", place, 32, progress=lambda *step: steps.append(step))
    assert steps == []
    for place in (tmp_path / "m.onnx", Path(os.devnull)):
        check_place(place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("large", [False, True])
def test_an_interrupted_write_leaves_nothing_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    class Interrupted(dict[str, NDArray[np.float32]]):
        asked = 0

        def __getitem__(self, name: str) -> NDArray[np.float32]:
            self.asked += 1
            if self.asked > 2 * len(self):
                raise KeyboardInterrupt
            return super().__getitem__(name)

    weights = Interrupted(drawn([(3, 4), (5,)]))
    path, other = tmp_path / "m.onnx", tmp_path / "m.onnx.data"
    other.write_text("what was there before")
    if large:
        monkeypatch.setattr("models.graphs.onnx_writer.EXTERNAL_DATA_BYTES", 1)
    with pytest.raises(KeyboardInterrupt):
        write_onnx(skeleton(weights), weights, path)
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize("taken", [0, 1])
def test_no_model_is_left_with_the_weights_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Whichever of the two files the disk does not take, both are what they were."""
    monkeypatch.setattr("models.graphs.onnx_writer.EXTERNAL_DATA_BYTES", 1)
    old, new = drawn([(3, 4)]), {"w0": np.zeros((3, 4), np.float32)}
    path, sync = tmp_path / "m.onnx", os.fsync
    write_onnx(skeleton(old), old, path)

    def failing(descriptor: int) -> None:
        nonlocal taken
        if not taken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        taken -= 1
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with refuses(ModelError, f"{path}: Input/output error"):
        write_onnx(skeleton(new), new, path)
    check(onnx.load(path), skeleton(old), old)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_disk_that_is_full() -> None:
    weights = drawn([(3, 4)])
    with refuses(ModelError, "/dev/full: No space left"):
        write_onnx(skeleton(weights), weights, Path("/dev/full"))
