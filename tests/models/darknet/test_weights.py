"""Weights files: what is written is what is read, and what is not a network's weights is named."""

import random
import re
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.darknet.cfg import DarknetError, parse_cfg
from models.darknet.layers import DarknetNetwork
from models.darknet.network import build_network
from models.darknet.skeleton import skeleton
from models.darknet.weights import Header, export_weights, read_weights, write_weights
from models.graphs import onnx_writer
from models.graphs.metadata import write_metadata
from tests.examples import examples, over
from tests.models.darknet.cfgs import cfg_text
from tests.models.darknet.imports import seeded_weights
from tests.models.darknet.random_cfg import RandomCfg

OLD = Header(major=0, minor=1, revision=0, seen=7)
NEW = Header(major=0, minor=2, revision=5, seen=1 << 40)
TRANSPOSED = Header(major=1001, minor=1, revision=0, seen=7)
HEADERS = (OLD, NEW, TRANSPOSED)

SMALL = cfg_text(
    [
        ("net", {"width": "8", "height": "8", "channels": "3"}),
        (
            "convolutional",
            {"filters": "4", "size": "3", "batch_normalize": "1", "activation": "leaky"},
        ),
        ("maxpool", {"size": "2", "stride": "2"}),
        ("connected", {"output": "5", "activation": "linear"}),
        ("softmax", {}),
    ]
)


def network_of(text: str) -> DarknetNetwork:
    return build_network(parse_cfg(text, "small.cfg"), "small.cfg")


@pytest.fixture(scope="module")
def small() -> DarknetNetwork:
    return network_of(SMALL)


def written(network: DarknetNetwork, header: Header, path: Path, seed: int = 0) -> Path:
    write_weights(path, network, header, seeded_weights(network, seed))
    return path


def imported(network: DarknetNetwork, header: Header | None, weights: Path, path: Path) -> Path:
    """Write the ONNX file of ``network`` with the numbers of ``weights``."""
    model = skeleton(network, "small")
    if header:
        write_metadata(model, {"layerstream.darknet.header": header.model_dump()})
    onnx_writer.write_onnx(model, read_weights(weights, network)[1], path)
    return path


@given(seed=st.integers(0, 1 << 32), header=st.sampled_from(HEADERS))
@examples(7, many=400)
def test_import_and_export_keep_every_byte(
    tmp_path_factory: pytest.TempPathFactory, seed: int, header: Header
) -> None:
    folder = tmp_path_factory.mktemp("trip")
    network = network_of(RandomCfg(seed).text)
    first = written(network, header, folder / "first.weights", seed)
    found, weights = read_weights(first, network)
    assert found == header
    assert all(np.array_equal(weights[k], v) for k, v in seeded_weights(network, seed).items())
    export_weights(imported(network, header, first, folder / "n.onnx"), folder / "second.weights")
    assert (folder / "second.weights").read_bytes() == first.read_bytes()
    assert {path.name for path in folder.iterdir()} == {"first.weights", "n.onnx", "second.weights"}


def test_header_is_that_of_darknet(small: DarknetNetwork, tmp_path: Path) -> None:
    sizes = {}
    for header, start in ((OLD, "<iiiI"), (NEW, "<iiiQ"), (TRANSPOSED, "<iiiI")):
        content = written(small, header, tmp_path / "w").read_bytes()
        assert struct.unpack_from(start, content) == tuple(header.model_dump().values())
        sizes[header] = len(content) - struct.calcsize(start)
    numbers = 3 * 4 + 4 + 4 * 27 + 5 + 5 * small.layers[1].shape[0] * 9
    assert set(sizes.values()) == {4 * numbers}


def test_transposed_matrices_are_turned(small: DarknetNetwork, tmp_path: Path) -> None:
    plain = written(small, NEW, tmp_path / "plain").read_bytes()[20:]
    turned = written(small, TRANSPOSED, tmp_path / "turned").read_bytes()[16:]
    matrix = np.frombuffer(plain, "<f4")[-5 * 36 :].reshape(5, 36)
    assert np.array_equal(np.frombuffer(turned, "<f4")[-5 * 36 :].reshape(36, 5), matrix.T)
    assert plain[: -4 * matrix.size] == turned[: -4 * matrix.size]


def test_arrays_are_mapped_and_read_only(small: DarknetNetwork, tmp_path: Path) -> None:
    for array in read_weights(written(small, NEW, tmp_path / "w"), small)[1].values():
        assert not array.flags.owndata
        assert not array.flags.writeable


def refused(path: Path, network: DarknetNetwork) -> str:
    with pytest.raises(DarknetError) as caught:
        read_weights(path, network)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return message.removeprefix(f"{path}: ")


@over("header", HEADERS)
def test_a_cut_file_is_named(small: DarknetNetwork, tmp_path: Path, header: Header) -> None:
    whole = written(small, header, tmp_path / "whole").read_bytes()
    start = len(header.to_bytes())
    path = tmp_path / "cut"
    total = (len(whole) - start) // 4
    ends = [*random.Random(1).sample(range(len(whole)), 97), 0, start - 1, start]
    for end in ends:
        path.write_bytes(whole[:end])
        message = refused(path, small)
        found, rest = divmod(end - start, 4)
        if end < start:
            assert "too few for a header" in message
        elif rest:
            assert "not a multiple of 4" in message
        else:
            layer, kind = (0, "convolutional") if found < 124 else (2, "connected")
            assert f"expected {total} numbers, found {found}" in message
            assert f"ends in layer {layer} ({kind})" in message


def test_a_longer_file_is_named(small: DarknetNetwork, tmp_path: Path) -> None:
    whole = written(small, NEW, tmp_path / "whole").read_bytes()
    path = tmp_path / "long"
    for extra in (*range(1, 20), 4000):
        path.write_bytes(whole + bytes(extra))
        message = refused(path, small)
        assert ("not a multiple of 4" if extra % 4 else "weights of another network") in message


def test_weights_of_another_network_are_named(small: DarknetNetwork, tmp_path: Path) -> None:
    other = network_of(SMALL.replace("filters=4", "filters=5"))
    message = refused(written(other, NEW, tmp_path / "larger"), small)
    assert re.search(r"expected \d+ numbers, found \d+: .* another network", message)
    message = refused(written(small, NEW, tmp_path / "smaller"), other)
    assert re.search(r"expected \d+ numbers, found \d+: it ends in layer 2 \(connected\)", message)


@over(
    "start",
    [
        b"[net]\nwidth=8\nheight=8\n",
        struct.pack("<iiiQ", -1, 2, 5, 0),
        b"\x08\x0a\x12\x07pytorch" * 4,
    ],
)
def test_a_header_that_is_none_is_named(
    small: DarknetNetwork, tmp_path: Path, start: bytes
) -> None:
    path = tmp_path / "w"
    path.write_bytes(start + bytes(4000))
    assert "is none of Darknet's" in refused(path, small)


def test_what_is_no_file_is_named(small: DarknetNetwork, tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "missing", small)
    assert "not a file" in refused(tmp_path, small)


def test_seen_fits_its_field() -> None:
    with pytest.raises(ValueError, match="seen=4294967296 does not fit"):
        Header(major=0, minor=1, revision=0, seen=1 << 32)


def test_a_network_without_weights_has_an_empty_body(tmp_path: Path) -> None:
    network = network_of("[net]\nwidth=8\nheight=8\nchannels=3\n[maxpool]\nsize=2\nstride=2\n")
    assert read_weights(written(network, NEW, tmp_path / "w"), network) == (NEW, {})


def test_failed_writes_leave_nothing(small: DarknetNetwork, tmp_path: Path) -> None:
    path = written(small, NEW, tmp_path / "w")
    before = path.read_bytes()
    weights = seeded_weights(small)
    del weights[small.layers[2].arrays[0].name]
    with pytest.raises(KeyError):
        write_weights(path, small, OLD, weights)
    assert path.read_bytes() == before
    with pytest.raises(DarknetError, match="No such file"):
        written(small, NEW, tmp_path / "missing" / "w")
    with pytest.raises(DarknetError, match="directory"):
        written(small, NEW, tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["w"]


def test_without_a_header_the_newest_is_written(small: DarknetNetwork, tmp_path: Path) -> None:
    first = written(small, Header(), tmp_path / "first")
    export_weights(imported(small, None, first, tmp_path / "n.onnx"), tmp_path / "second")
    content = (tmp_path / "second").read_bytes()
    assert content == first.read_bytes()
    assert struct.unpack_from("<iiiQ", content) == (0, 2, 5, 0)


def test_weights_beside_the_model_are_exported(
    small: DarknetNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(small, Header(), tmp_path / "first")
    monkeypatch.setattr(onnx_writer, "EXTERNAL_DATA_BYTES", 1)
    model = imported(small, None, first, tmp_path / "n.onnx")
    export_weights(model, tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == first.read_bytes()
    (tmp_path / "n.onnx.data").write_bytes(b"short")
    with pytest.raises(DarknetError, match=r"n.onnx: weight 'layer0\."):
        export_weights(model, tmp_path / "third")
    assert not (tmp_path / "third").exists()


def without_metadata(model: onnx.ModelProto) -> None:
    del model.metadata_props[:]


def without_a_weight(model: onnx.ModelProto) -> None:
    del model.graph.initializer[-1]


def with_another_shape(model: onnx.ModelProto) -> None:
    model.graph.initializer[-1].dims.append(1)


def with_another_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[-1].data_type = onnx.TensorProto.INT32


def set_metadata(model: onnx.ModelProto, key: str, text: str) -> None:
    for item in model.metadata_props:
        if item.key == key:
            item.value = text


@over(
    "damage, message",
    [
        (without_metadata, "does not come from Darknet"),
        (without_a_weight, "weight 'layer2.* is missing"),
        (with_another_shape, r"weight 'layer2.* is not float32\["),
        (with_another_type, r"weight 'layer2.* is not float32\["),
        (lambda m: set_metadata(m, "layerstream.darknet.cfg", "["), "metadata: "),
        (lambda m: set_metadata(m, "layerstream.darknet.cfg", "7"), "is not a text"),
        (
            lambda m: set_metadata(m, "layerstream.darknet.cfg", '"[nut]"'),
            "layerstream.darknet.cfg",
        ),
        (
            lambda m: set_metadata(m, "layerstream.darknet.header", '{"major": -1}'),
            "metadata: .*major",
        ),
    ],
)
def test_models_that_cannot_be_exported_are_named(
    small: DarknetNetwork, tmp_path: Path, damage: object, message: str
) -> None:
    path = imported(small, NEW, written(small, NEW, tmp_path / "w"), tmp_path / "n.onnx")
    model = onnx.load(path)
    assert callable(damage)
    damage(model)
    onnx.save(model, path)
    with pytest.raises(DarknetError, match=f"n.onnx: .*{message}|n.onnx: {message}") as caught:
        export_weights(path, tmp_path / "out")
    assert str(caught.value).isprintable()
    assert not (tmp_path / "out").exists()


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(DarknetError, match="No such file"):
        export_weights(tmp_path / "missing", tmp_path / "out")
    (tmp_path / "text").write_text("[net]")
    with pytest.raises(DarknetError, match=r"text: (not an ONNX model|does not come)"):
        export_weights(tmp_path / "text", tmp_path / "out")
