"""The zoo's Darknet families are the networks of the published cfg files, which a clone does not have."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from models import zoo
from models.darknet.cfg import Section, format_cfg, parse_cfg, read_cfg
from models.darknet.importer import random_weights
from models.darknet.layers import DarknetLayer, DarknetNetwork
from models.darknet.network import build_network, source_sizes
from models.darknet.skeleton import skeleton
from models.graphs.metadata import read_metadata
from models.graphs.onnx_writer import skeleton_graph
from models.graphs.traits import count_parameters
from models.zoo.darknet import DARKNET_ENTRIES, SECTIONS
from models.zoo.entry import COCO, ZooEntry
from tests.examples import over
from tests.models.darknet.cfgs import ZOO
from tests.shared import shared

CFG_FILES = {
    "darknet-tiny": "tiny",
    "resnet50-darknet": "resnet50",
    "resnet152-darknet": "resnet152",
    "densenet201-darknet": "densenet201",
    "vgg16-darknet": "vgg-16",
    "efficientnet-b0-darknet": "efficientnet_b0",
}
# Table I of the Demand Layering paper: layers, weights and largest layer in MiB.
TABLE_I = {
    "yolov3": (107, 236.5, 18.0),
    "yolov4": (162, 245.8, 18.0),
    "yolov4-p6": (305, 487.2, 36.0),
    "resnet152-darknet": (206, 219.6, 9.0),
    "densenet201-darknet": (306, 65.6, 5.9),
}
everyone = pytest.mark.parametrize("entry", DARKNET_ENTRIES, ids=lambda entry: entry.name)


def built(entry: ZooEntry) -> DarknetNetwork:
    return build_network(SECTIONS[entry.name](), entry.name)


def anonymous(layer: DarknetLayer) -> DarknetLayer:
    """The layer without the section it came from: offsets and defaults may be written otherwise."""
    return replace(layer, section=Section(layer.kind, {}))


def test_definitions_are_the_networks_of_the_cfg_files() -> None:
    files = {path.stem: path for path in shared("data", "darknet").glob("*.cfg")}
    assert set(files) == {CFG_FILES.get(name, name) for name in ZOO}
    for name, entry in ZOO.items():
        path = files[CFG_FILES.get(name, name)]
        sections = read_cfg(path)
        again = parse_cfg(format_cfg(sections), name)
        assert [(s.kind, s.options) for s in again] == [(s.kind, s.options) for s in sections]
        published = build_network(sections, path.name, resolution=entry.resolution)
        ours = built(entry)
        assert [anonymous(a) for a in ours.layers] == [anonymous(b) for b in published.layers], name
        assert ours.outputs == published.outputs, name
        size = (published.width, published.height, published.channels)
        assert (ours.width, ours.height, ours.channels) == size, name


@over("name", TABLE_I)
def test_sizes_are_those_of_table_i(name: str) -> None:
    sizes = source_sizes(built(ZOO[name]))
    mebibytes = (sizes.weight_bytes / 2**20, sizes.largest_layer_bytes / 2**20)
    assert (sizes.layers, *(round(size, 1) for size in mebibytes)) == TABLE_I[name]


@everyone
def test_parameters_are_those_that_training_changes(entry: ZooEntry) -> None:
    assert count_parameters(skeleton_graph(skeleton(built(entry), entry.name))) == entry.parameters


@everyone
def test_any_resolution_of_its_multiple_keeps_the_weights(entry: ZooEntry) -> None:
    default = built(entry)
    smaller = build_network(SECTIONS[entry.name](), resolution=entry.resolution - entry.multiple)
    if any(layer.kind == "connected" for layer in default.layers):
        assert smaller.layers != default.layers
        return
    assert [layer.arrays for layer in smaller.layers] == [layer.arrays for layer in default.layers]


@over(
    "name, grids",
    [
        ("yolov2", [13]),
        ("yolov3", [13, 26, 52]),
        ("yolov3-tiny", [13, 26]),
        ("yolov4", [76, 38, 19]),
        ("yolov4-csp", [64, 32, 16]),
        ("yolov4-p6", [80, 40, 20, 10]),
    ],
)
def test_a_detector_has_its_grids(name: str, grids: list[int]) -> None:
    network = built(ZOO[name])
    shapes = [network.layers[index].shape for index in network.outputs]
    assert [rows for _, rows, _ in shapes] == grids
    assert all(rows == columns for _, rows, columns in shapes)


@over("name, labels", [("yolov2", COCO), ("yolov4-tiny", COCO), ("yolov2-voc", ())])
def test_detectors_of_as_many_classes_know_the_names_of_coco(
    name: str, labels: tuple[str, ...]
) -> None:
    found = read_metadata(zoo.ENTRIES[name].skeleton(96), Path(name)).detection
    assert found is not None
    assert found.labels == labels
    assert len({*COCO, ""}) == 81


def test_weights_are_those_that_the_importer_draws(tmp_path: Path) -> None:
    built_file = zoo.build("Darknet_Tiny", tmp_path / "tiny.onnx", resolution=96, seed=3).file
    stored = {tensor.name: tensor for tensor in onnx.load(built_file).graph.initializer}
    drawn = random_weights(built(ZOO["darknet-tiny"]), seed=3)
    assert drawn
    for name, array in drawn.items():
        assert onnx.numpy_helper.to_array(stored[name]).tobytes() == array.tobytes()
