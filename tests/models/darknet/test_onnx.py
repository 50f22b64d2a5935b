"""Skeletons: valid ONNX whose inferred shapes are the geometry's, and what their metadata say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, shape_inference

from models.darknet.cfg import format_cfg, parse_cfg
from models.darknet.graph import ACTIVATIONS
from models.darknet.layers import DarknetNetwork
from models.darknet.network import build_network, source_sizes
from models.darknet.skeleton import CFG, skeleton
from models.detection.heads import DetectionHead
from models.detection.recipe import Detection
from models.graphs.metadata import DETECTION, LABELS, PREPROCESS, SIZES
from models.graphs.onnx_writer import declared, skeleton_graph, write_onnx
from models.graphs.traits import count_parameters
from models.images.preprocess import Preprocess
from models.packs.records.ports import SourceSizes
from models.records import read_record
from tests.examples import over
from tests.models.darknet.cfgs import ZOO
from tests.models.darknet.oracle import ACTIVATIONS as EXACT
from tests.models.darknet.test_geometry import network, real

HEAD = "[conv]\nfilters=6\n[yolo]\nclasses=1\nnum=1\nanchors=10,20\n"


def check(model: onnx.ModelProto) -> None:
    """Check ``model`` with its weights as inputs, since they have no data yet.

    Strict inference compares the shapes that the model states with those that its nodes give.
    """
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    shapes = declared(model)
    kept = [tensor for tensor in whole.graph.initializer if tensor.name not in shapes]
    del whole.graph.initializer[:]
    whole.graph.initializer.extend(kept)
    for name, shape in shapes.items():
        whole.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    onnx.checker.check_model(whole)
    shape_inference.infer_shapes(whole, check_type=True, strict_mode=True, data_prop=True)


def entries(model: onnx.ModelProto) -> dict[str, Any]:
    return {item.key: json.loads(item.value) for item in model.metadata_props}


def outputs(model: onnx.ModelProto) -> dict[str, list[int]]:
    return {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.output
    }


@over("name", ZOO)
def test_real_networks(name: str) -> None:
    made = real(name)
    model = skeleton(made, name)
    check(model)
    arrays = {a.name: a.shape for layer in made.layers for a in layer.arrays}
    assert declared(model) == arrays
    # Every layer that has nodes states its shape, which `check` compared.
    stated = {value.name.partition(".")[0] for value in model.graph.value_info}
    with_nodes = {node.name.partition(".")[0] for node in model.graph.node}
    assert with_nodes - stated == {f"layer{index}" for index in made.outputs}


@over("name", ZOO)
def test_nothing_but_weights_counts_as_a_parameter(name: str) -> None:
    made = real(name)
    model = skeleton(made, name)
    shapes = declared(model)
    extra = [t for t in model.graph.initializer if t.name not in shapes]
    assert not [t.name for t in extra if t.data_type == TensorProto.FLOAT and t.dims]
    statistics = {
        i for n in model.graph.node if n.op_type == "BatchNormalization" for i in n.input[3:]
    }
    trained = {name: shape for name, shape in shapes.items() if name not in statistics}
    assert sum(_size(shape) for shape in trained.values()) == count_parameters(
        skeleton_graph(model)
    )


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def test_a_wrong_shape_would_be_found() -> None:
    model = skeleton(network("[conv]\nfilters=3\n[maxpool]\nstride=2\n[conv]"), "x")
    check(model)
    model.graph.value_info[1].type.tensor_type.shape.dim[2].dim_value += 1
    with pytest.raises(shape_inference.InferenceError):
        check(model)


@over("activation", ACTIVATIONS)
def test_every_activation_is_valid_everywhere(activation: str) -> None:
    option = f"\nactivation={activation}\n"
    check(
        skeleton(
            network(
                f"[conv]\nfilters=4{option}[conv]\nfilters=4{option}[shortcut]\nfrom=-2{option}"
                f"[sam]\nfrom=-2{option}[avgpool]\n[scale_channels]\nfrom=-2{option}"
                f"[connected]\noutput=5\nbatch_normalize=1{option}[connected]\noutput=3{option}"
            ),
            "x",
        )
    )


@over(
    "text, names",
    [
        ("[conv]\nfilters=3", {"output": [1, 3, 8, 16]}),
        ("[conv]\nfilters=3\n[avgpool]\n[softmax]\n[cost]", {"output": [1, 3]}),
        ("[conv]\nfilters=3\n[avgpool]", {"output": [1, 3]}),
        ("[conv]\nfilters=3\n[dropout]\n[cost]", {"output": [1, 3, 8, 16]}),
        ("[dropout]\n[route]\nlayers=0", {"output": [1, 4, 8, 16]}),
        ("[connected]\noutput=9\n[conv]\nfilters=3", {"output": [1, 3]}),
        ("[connected]\noutput=9\n[maxpool]\n[connected]\noutput=2", {"output": [1, 2]}),
        (f"{HEAD}", {"output": [1, 6, 8, 16]}),
        (f"{HEAD}{HEAD}", {"yolo_1": [1, 6, 8, 16], "yolo_3": [1, 6, 8, 16]}),
        (f"{HEAD}new_coords=1", {"output": [1, 6, 8, 16]}),
        (f"{HEAD}new_coords=1\nscale_x_y=2", {"output": [1, 6, 8, 16]}),
    ],
)
def test_names_and_shapes_of_outputs(text: str, names: dict[str, list[int]]) -> None:
    model = skeleton(network(text), "x")
    check(model)
    assert outputs(model) == names


def test_the_same_network_is_the_same_bytes() -> None:
    texts = [skeleton(network(HEAD), "x").SerializeToString(deterministic=True) for _ in range(2)]
    assert texts[0] == texts[1]


def test_metadata_of_a_detector() -> None:
    made = real("yolov4", 416)
    model = skeleton(made, "yolov4")
    found = entries(model)
    detection = read_record(Detection, found[DETECTION])
    heads = [head for head in detection.heads if isinstance(head, DetectionHead)]
    assert [head.output for head in heads] == ["yolo_139", "yolo_150", "yolo_161"]
    assert list(heads[0].anchors) == [(12, 16), (19, 36), (40, 28)]
    assert [head.scale_x_y for head in heads] == [1.2, 1.1, 1.05]
    assert detection.nms == "greedy"
    assert detection.beta == 0.6
    assert read_record(SourceSizes, found[SIZES]) == source_sizes(made)
    preprocess = read_record(Preprocess, found[PREPROCESS])
    assert preprocess.shape == (1, 3, 416, 416)
    assert (preprocess.resize, preprocess.filter) == ("letterbox", "darknet")
    assert LABELS not in found


def test_metadata_of_nms_and_region() -> None:
    found = entries(skeleton(network(f"{HEAD}nms_kind=diounms\nbeta_nms=.7"), "x"))
    assert read_record(Detection, found[DETECTION]).nms == "diou"
    assert read_record(Detection, found[DETECTION]).beta == 0.7
    (head,) = read_record(Detection, entries(skeleton(real("yolov2"), "x"))[DETECTION]).heads
    assert isinstance(head, DetectionHead)
    assert (head.kind, head.softmax, head.classes, len(head.anchors)) == ("region", True, 80, 5)


def test_metadata_of_a_classifier() -> None:
    net = "width=20\nheight=12\nchannels=3"
    found = entries(skeleton(network("[avgpool]\n[softmax]", net), "x", ("a", "b", "c")))
    preprocess = read_record(Preprocess, found[PREPROCESS])
    assert preprocess.size == (20, 12)
    assert preprocess.resize == "crop"
    assert found[LABELS] == ["a", "b", "c"]
    assert DETECTION not in found
    assert PREPROCESS not in entries(skeleton(network("[avgpool]"), "x"))


def test_the_cfg_in_the_metadata_builds_the_same_network() -> None:
    made = real("efficientnet-b0-darknet", 128)
    text = entries(skeleton(made, "x"))[CFG]
    assert text == format_cfg(made.sections)
    assert _layers(build_network(parse_cfg(text, "x"))) == _layers(made)


def _layers(made: DarknetNetwork) -> list[Any]:
    return [(layer.kind, layer.inputs, layer.shape, layer.arrays) for layer in made.layers]


@over("activation", ACTIVATIONS)
def test_values(activation: str, tmp_path: Path) -> None:
    points = np.concatenate(
        [np.linspace(-50, 50, 1001), np.linspace(-3, 3, 1001), [0, -2, -1, 1, 6]]
    )
    net = f"width={points.size}\nheight=1\nchannels=1"
    model = skeleton(network(f"[conv]\nactivation={activation}", net), "x")
    unchanged = {"layer0.weights": np.ones((1, 1, 1, 1), np.float32)}
    write_onnx(model, unchanged | {"layer0.biases": np.zeros(1, np.float32)}, tmp_path / "x.onnx")
    session = ort.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    image = points.astype(np.float32).reshape(1, 1, 1, -1)
    (values,) = session.run(None, {"image": image})
    expected = EXACT[activation](image.astype(np.float64))
    assert np.all(np.abs(values - expected) <= 2e-6 * np.maximum(np.abs(image), 1))
