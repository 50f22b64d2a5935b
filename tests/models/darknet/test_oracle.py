"""The importer against an interpreter of Darknet's files that shares nothing with it."""

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.darknet.weights import Header
from tests.examples import over, thinned
from tests.models.darknet.cfgs import SMALL, ZOO, cfg_text, shrunken, zoo_text
from tests.models.darknet.imports import (
    TOLERANCE,
    Draw,
    answer_of_onnxruntime,
    calibrated_weights,
    import_text,
    seeded_weights,
)
from tests.models.darknet.oracle import ACTIVATIONS, Options, evaluate
from tests.models.darknet.random_cfg import RandomCfg

CONV = {"filters": "8", "size": "3", "pad": "1", "activation": "leaky", "batch_normalize": "1"}


def agree(
    text: str, folder: Path, draw: Draw = seeded_weights, header: Header | None = None
) -> None:
    imported = import_text(text, folder, draw, header)
    assert imported.error(answer_of_onnxruntime(imported)) < TOLERANCE


def small(*sections: tuple[str, Options]) -> str:
    """Return a cfg: an image of 12 rows and 16 columns, a convolution, and ``sections``."""
    net = ("net", {"width": "16", "height": "12", "channels": "3"})
    return cfg_text([net, ("convolutional", CONV), *sections])


@pytest.mark.parametrize("name", SMALL)
def test_small_networks(name: str, tmp_path: Path) -> None:
    agree(SMALL[name].read_text(), tmp_path, calibrated_weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_networks_of_the_zoo_made_smaller(name: str, tmp_path: Path) -> None:
    text = shrunken(zoo_text(name), 16, 2 * ZOO[name].multiple)
    agree(text, tmp_path, calibrated_weights)


@pytest.mark.parametrize("seed", thinned(range(60), 4))
def test_random_networks(seed: int, tmp_path: Path) -> None:
    agree(RandomCfg(seed).text, tmp_path)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        *itertools.product(["convolutional"], ACTIVATIONS),
        *thinned(itertools.product(["shortcut", "connected"], ACTIVATIONS), 3),
    ],
)
def test_activations(activation: str, kind: str, tmp_path: Path) -> None:
    own = {
        "convolutional": {**CONV, "filters": "32"},
        "shortcut": {"from": "-2"},
        "connected": {"output": "64", "batch_normalize": "1"},
    }[kind]
    sections = [("convolutional", CONV)] if kind == "shortcut" else []
    agree(small(*sections, (kind, own | {"activation": activation})), tmp_path)


SHORTCUTS = [
    {"weights_type": weights_type, "weights_normalization": normalization}
    for weights_type in ("per_feature", "per_layer", "per_channel")
    for normalization in ("none", "relu", "avg_relu", "softmax")
]


@pytest.mark.parametrize(
    ("count", "weights"), thinned(itertools.product([2, 1, 3], [{}, *SHORTCUTS]), 2)
)
def test_shortcuts_from_several_layers(count: int, weights: Options, tmp_path: Path) -> None:
    sources = ",".join(str(-2 - number) for number in range(count))
    options = {"from": sources, "activation": "leaky", **weights}
    agree(small(*[("convolutional", CONV)] * 3, ("shortcut", options)), tmp_path)


YOLO = {"anchors": "1,2,3,4,5,6,7,8,9,1", "num": "5", "classes": "2"}

SECTIONS: dict[str, list[tuple[str, Options]]] = {
    "shortcut to fewer channels": [
        ("convolutional", {**CONV, "filters": "5"}),
        ("shortcut", {"from": "-2"}),
    ],
    "shortcut to more channels": [
        ("convolutional", {**CONV, "filters": "11"}),
        ("shortcut", {"from": "-2"}),
    ],
    "shortcut from a larger map": [
        ("convolutional", {**CONV, "filters": "11", "stride": "2"}),
        ("shortcut", {"from": "-2"}),
    ],
    "sam": [("convolutional", CONV), ("sam", {"from": "-2", "activation": "logistic"})],
    "scale_channels": [
        ("avgpool", {}),
        ("convolutional", {**CONV, "size": "1", "activation": "logistic"}),
        ("scale_channels", {"from": "-3", "activation": "leaky"}),
    ],
    "scale_channels of pixels": [
        ("convolutional", {**CONV, "filters": "1", "activation": "logistic"}),
        ("scale_channels", {"from": "-2", "scale_wh": "1"}),
    ],
    "maximum over depth": [("maxpool", {"maxpool_depth": "1", "out_channels": "2"})],
    "maxpool with strides": [("maxpool", {"size": "3", "stride_x": "2", "stride_y": "1"})],
    "maxpool without padding": [("maxpool", {"size": "3", "stride": "2", "padding": "0"})],
    "maxpool with odd padding": [("maxpool", {"size": "4", "stride": "1", "padding": "3"})],
    "maxpool that drops a column": [("maxpool", {"size": "1", "stride": "3"})],
    "softmax in groups": [("softmax", {"groups": "4", "temperature": "2.5"})],
    "dilation": [("convolutional", {**CONV, "dilation": "3"})],
    "strides": [("convolutional", {**CONV, "stride_x": "3", "stride_y": "2"})],
    "one stride": [("convolutional", {**CONV, "stride": "2", "stride_x": "1"})],
    "even kernel": [("convolutional", {**CONV, "size": "4"})],
    "padding": [("convolutional", {**CONV, "pad": "0", "padding": "2"})],
    "groups": [("convolutional", {**CONV, "filters": "12", "groups": "4"})],
    "route of groups": [
        ("convolutional", CONV),
        ("route", {"layers": "-1,0", "groups": "4", "group_id": "2"}),
    ],
    "halves of routes": [
        ("convolutional", {**CONV, "filters": "12"}),
        ("route_lhalf", {"layers": "-1,0"}),
        ("route_lhalf", {"layers": "-1"}),
    ],
    "shared weights": [
        ("convolutional", CONV),
        ("convolutional", {**CONV, "share_index": "-1", "dilation": "2", "stride": "2"}),
        ("convolutional", {**CONV, "share_index": "2", "activation": "relu"}),
    ],
    "upsample": [("upsample", {"stride": "3", "scale": "0.5"})],
    "reorg": [("reorg", {"stride": "2"})],
    "crop": [("crop", {"crop_width": "9", "crop_height": "7"})],
    "crop as it is": [("crop", {"crop_width": "9", "crop_height": "7", "noadjust": "1"})],
    "connected twice": [
        ("dropout", {}),
        ("connected", {"output": "20", "activation": "relu", "batch_normalize": "1"}),
        ("connected", {"output": "7"}),
        ("softmax", {}),
        ("cost", {"type": "sse"}),
    ],
    "two kinds of detections": [
        ("convolutional", {"filters": "21", "activation": "linear"}),
        ("yolo", {**YOLO, "mask": "1,2,4", "scale_x_y": "1.2"}),
        ("route", {"layers": "0"}),
        ("convolutional", {"filters": "14", "activation": "linear"}),
        ("yolo", {**YOLO, "mask": "0,3", "new_coords": "1", "scale_x_y": "2"}),
        ("route", {"layers": "0"}),
        ("convolutional", {"filters": "7", "activation": "linear"}),
        ("region", {"anchors": "1,2", "num": "1", "classes": "2"}),
    ],
    "more anchors than their number": [
        ("convolutional", {"filters": "14", "activation": "linear"}),
        ("yolo", {**YOLO, "num": "3", "mask": "2,4"}),
    ],
    "region": [
        ("convolutional", {"filters": "24", "activation": "linear"}),
        ("region", {"anchors": "1,2,.3,4,5,6.5", "num": "3", "classes": "3", "softmax": "1"}),
    ],
}  # fmt: skip


@over("name", SECTIONS)
def test_sections(name: str, tmp_path: Path) -> None:
    agree(small(*SECTIONS[name]), tmp_path)


@over("resolution", [10, 32, 45])
def test_another_resolution_keeps_the_part_that_is_cropped(resolution: int, tmp_path: Path) -> None:
    net = ("net", {"width": "32", "height": "32", "channels": "3"})
    crop = ("crop", {"crop_width": "27", "crop_height": "21"})
    text = cfg_text([net, crop, ("convolutional", CONV), ("avgpool", {})])
    imported = import_text(text, tmp_path, resolution=resolution)
    assert imported.error(answer_of_onnxruntime(imported)) < TOLERANCE
    again = import_text(canonical(imported.onnx), tmp_path)
    assert np.array_equal(imported.expected, again.expected)


def canonical(model: Path) -> str:
    """Return the cfg in the metadata of ``model``."""
    entries = {item.key: item.value for item in onnx.load(model).metadata_props}
    text = json.loads(entries["layerstream.darknet.cfg"])
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("seed", thinned(range(20), 3))
def test_the_text_in_the_metadata_is_the_same_network(seed: int, tmp_path: Path) -> None:
    imported = import_text(RandomCfg(seed).text, tmp_path)
    again = import_text(canonical(imported.onnx), tmp_path)
    assert imported.error(again.expected) == 0


@pytest.mark.parametrize("major", [0, 1001])
def test_matrices_of_both_orders(major: int, tmp_path: Path) -> None:
    agree(small(*SECTIONS["connected twice"]), tmp_path, header=Header(major=major))


def test_the_first_layer_may_look_at_the_image_only(tmp_path: Path) -> None:
    net = {"width": "8", "height": "8", "channels": "4"}
    agree(
        cfg_text([("net", net), ("reorg", {"stride": "2"}), ("route", {"layers": "0"})]), tmp_path
    )


def test_the_oracle_by_hand() -> None:
    """A depthwise convolution of ones, shifted, pooled, on an image one can add up."""
    text = cfg_text(
        [
            ("net", {"width": "4", "height": "2", "channels": "1"}),
            ("convolutional", {"filters": "1", "size": "3", "pad": "1", "activation": "leaky"}),
            ("maxpool", {"size": "2", "stride": "2"}),
        ]
    )
    numbers = np.array([-20, *[1] * 9], "<f4").tobytes()
    image = np.arange(8.0).reshape(1, 2, 4)
    # Sums of neighbours: 10 18 24 18 in both rows; minus 20, those below zero count a tenth.
    (pooled,) = evaluate(text, bytes(4) + b"\1\0\0\0" + bytes(8) + numbers, image)
    assert np.allclose(pooled, [[[-0.2, 4.0]]])
