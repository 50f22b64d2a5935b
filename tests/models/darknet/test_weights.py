"""Weights files: what is written is what is read, and what is not a network's weights is named."""

import random
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.darknet.cfg import DarknetError, parse_cfg
from models.darknet.layers import DarknetNetwork
from models.darknet.network import build_network
from models.darknet.weights import read_weights
from tests.examples import examples, over
from tests.models.darknet.cfgs import cfg_text
from tests.models.darknet.imports import seeded_weights
from tests.models.darknet.random_cfg import RandomCfg
from tests.models.darknet.weights_file import NEW, OLD, TRANSPOSED, Header, write_weights

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


@given(seed=st.integers(0, 1 << 32), header=st.sampled_from(HEADERS))
@examples(7, many=400)
def test_what_is_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, seed: int, header: Header
) -> None:
    network = network_of(RandomCfg(seed).text)
    path = written(network, header, tmp_path_factory.mktemp("trip") / "w", seed)
    weights = read_weights(path, network)
    given = seeded_weights(network, seed)
    assert [*weights] == [*given]
    assert all(np.array_equal(weights[name], array) for name, array in given.items())


def test_arrays_are_mapped_and_read_only(small: DarknetNetwork, tmp_path: Path) -> None:
    for array in read_weights(written(small, NEW, tmp_path / "w"), small).values():
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
    start = len(header.content)
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


def test_a_network_without_weights_has_an_empty_body(tmp_path: Path) -> None:
    network = network_of("[net]\nwidth=8\nheight=8\nchannels=3\n[maxpool]\nsize=2\nstride=2\n")
    assert read_weights(written(network, NEW, tmp_path / "w"), network) == {}
