"""The zoo: published geometry, weights by seed and name, files that compile and stream."""

import json
import math
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from PIL import Image

from models.compiler.cutting.chunks import default_chunk_bytes
from models.errors import ModelError
from models.graphs.metadata import PREPROCESS
from models.graphs.onnx_writer import declared, skeleton_graph
from models.graphs.traits import count_parameters
from models.images.preprocess import Preprocess
from models.packs.manifest import Manifest
from models.packs.records.spans import SPAN_ALIGNMENT
from models.photographs import photographs
from models.records import read_record
from models.zoo import ENTRIES, build, find
from models.zoo.entry import ZooEntry, source_sizes
from tests.examples import over
from tests.models.nets import answers
from tests.models.refusal import refuses
from tests.models.streamed import compiled, same, streamed

everyone = pytest.mark.parametrize("name", list(ENTRIES))
# Networks made with models/zoo/builder.py; the others come from Darknet's sections.
BUILT = (
    *("resnet18", "resnet50", "resnet152", "densenet121", "densenet201", "mobilenetv1"),
    *("mobilenetv2", "efficientnet-b0", "squeezenet1.0", "squeezenet1.1", "googlenet"),
    *("inceptionv2", "vgg16", "vgg19", "mobilenetv3-large", "convnext-tiny", "vit-s16"),
)
built = pytest.mark.parametrize("name", BUILT)
# Of the same blocks as others, and of more of them.
DEEPER = {"resnet152", "densenet201", "squeezenet1.0", "vgg19"}
unlike = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in DEEPER else ()) for name in BUILT],
)


def weights_in(path: Path) -> dict[str, NDArray[np.float32]]:
    model = onnx.load(path)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def with_weights_as_inputs(skeleton: onnx.ModelProto) -> onnx.ModelProto:
    """What a skeleton is to tools without support for weights without data."""
    shapes = declared(skeleton)
    kept = [tensor for tensor in skeleton.graph.initializer if tensor.name not in shapes]
    del skeleton.graph.initializer[:]
    skeleton.graph.initializer.extend(kept)
    skeleton.graph.input.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    return skeleton


@everyone
def test_networks_have_their_parameters(name: str) -> None:
    entry = ENTRIES[name]
    assert count_parameters(skeleton_graph(entry.skeleton(entry.resolution))) == entry.parameters


@unlike
def test_skeletons_are_networks_for_images_at_every_resolution(name: str) -> None:
    entry = ENTRIES[name]
    small, large = (entry.skeleton(resolution) for resolution in (64, 96))
    alike = declared(small) == declared(large)
    assert alike == (name not in ("vgg16", "vgg19", "vit-s16"))
    entries = {item.key: item.value for item in large.metadata_props}
    recipe = read_record(Preprocess, json.loads(entries[PREPROCESS]))
    assert recipe.shape == (1, 3, 96, 96)
    tensor = recipe.apply(Image.new("RGB", (96, 96), (255, 255, 255)))
    assert np.all((tensor >= 1) & (tensor < 3))


@unlike
def test_shapes_are_those_that_onnx_infers(name: str) -> None:
    for resolution in (32, 33) if ENTRIES[name].multiple == 1 else (32,):
        skeleton = with_weights_as_inputs(ENTRIES[name].skeleton(resolution))
        onnx.checker.check_model(skeleton)
        promised = [dim.dim_value for dim in skeleton.graph.output[0].type.tensor_type.shape.dim]
        for dim in skeleton.graph.output[0].type.tensor_type.shape.dim:
            dim.Clear()
        inferred = onnx.shape_inference.infer_shapes(skeleton, strict_mode=True)
        found = [dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim]
        assert found == promised == [1, 1000]


def test_mobilenets_of_other_widths_round_channels_down() -> None:
    entry = ENTRIES["mobilenetv1"]
    # Keras' counts for alpha 0.25, 0.5 and 0.75, trainable ones.
    counts = {0.25: 470_072, 0.5: 1_331_592, 0.75: 2_585_560, 1.0: 4_231_976}
    assert {
        width: count_parameters(skeleton_graph(entry.skeleton(32, width))) for width in counts
    } == counts
    assert declared(entry.skeleton(32, 0.3))["conv1.weight"][0] == 9


def test_layers_and_bytes_of_what_is_counted_here() -> None:
    sizes = source_sizes(ENTRIES["resnet18"].skeleton(224))
    assert sizes.layers == 21
    assert sizes.weight_bytes == 4 * (11_689_512 + 2 * 4_800)
    assert sizes.largest_layer_bytes == 4 * (512 * 512 * 9 + 4 * 512)
    dense = source_sizes(ENTRIES["densenet121"].skeleton(224))
    assert dense.layers == 121 + 62  # batch norms that come first are layers of their own


@over(
    "said, name",
    [
        ("MobileNetV1", "mobilenetv1"),
        ("mobilenet-v1", "mobilenetv1"),
        ("SqueezeNet1.1", "squeezenet1.1"),
        ("squeezenet1_1", "squeezenet1.1"),
        ("SqueezeNet 1.0", "squeezenet1.0"),
        ("RESNET_18", "resnet18"),
        ("YOLOv4-P6", "yolov4-p6"),
        ("tiny YOLOv2", "yolov2-tiny"),
        ("tiny-yolov3", "yolov3-tiny"),
        ("tinyyolov4", "yolov4-tiny"),
        ("Tiny Darknet", "darknet-tiny"),
        ("darknet-resnet152", "resnet152-darknet"),
        ("Darknet EfficientNet-B0", "efficientnet-b0-darknet"),
        ("Inception V1", "googlenet"),
        ("inception_v2", "inceptionv2"),
    ],
)
def test_names_are_found_as_people_write_them(said: str, name: str) -> None:
    entry: ZooEntry = find(said)
    assert entry.name == name


def test_every_name_means_one_network() -> None:
    for name, entry in ENTRIES.items():
        meant = [other.name for other in ENTRIES.values() if other.is_called(name)]
        assert meant == [name] == [entry.name]


@over(
    "said, meant",
    [
        ("SqueezeNet", "squeezenet1.0, squeezenet1.1"),
        ("resnet51", "resnet50"),
        ("y", "yolov2, yolov2-voc, yolov2-tiny"),
    ],
)
def test_what_is_nearly_there_is_suggested(said: str, meant: str) -> None:
    with refuses(ModelError, f"zoo: no network called '{said}' (did you mean {meant}"):
        find(said)


def test_nothing_like_it_is_suggested_as_nothing() -> None:
    with pytest.raises(ModelError, match=re.escape("no network called ''; there are")):
        find("")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    with refuses(ModelError, "zoo: no network called 'alexnet'", *ENTRIES):
        build("alexnet", file)
    for resolution in (0, -32, 16, 31, 4097, 1_000_000_032):
        with refuses(ModelError, f"zoo: resnet18: resolution {resolution} is not from 32 to 4096"):
            build("resnet18", file, resolution)
    for resolution in (225, 416):
        with refuses(ModelError, "zoo: yolov4-p6", f"resolution {resolution} is not a multiple of"):
            build("yolov4-p6", file, resolution)
    with refuses(ModelError, "zoo: yolov4-p6: resolution 0 is not from 64 to 4096"):
        build("yolov4-p6", file, 0)
    with refuses(ModelError, "zoo: vgg16", "bytes of weights at resolution 4096 are more than"):
        build("vgg16", file, 4096)
    with refuses(ModelError, "zoo: resnet18: its width is fixed"):
        build("resnet18", file, width=0.5)
    for width in (0.0, -1.0, 0.01, 9.0, float("nan"), float("inf")):
        with refuses(ModelError, "zoo: mobilenetv1: width", "is not from 0.0625 to 8"):
            build("mobilenetv1", file, width=width)
    assert not file.exists()


def test_equal_seeds_give_equal_bytes(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.onnx" for i in range(3)]
    for file, seed in zip(files, (0, 0, 1), strict=True):
        built = build("squeezenet1.1", file, 64, seed=seed)
        assert built.bytes == file.stat().st_size
        assert (built.name, built.resolution, built.file) == ("squeezenet1.1", 64, file)
    first, again, other = (file.read_bytes() for file in files)
    assert first == again
    assert first != other


def test_weights_are_the_same_at_every_resolution(tmp_path: Path) -> None:
    small, large = tmp_path / "64.onnx", tmp_path / "96.onnx"
    summaries = [build("mobilenetv1", small, 64, 0.25), build("mobilenetv1", large, 96, 0.25)]
    assert summaries[0].parameters == summaries[1].parameters == 470_072
    one, other = weights_in(small), weights_in(large)
    assert one.keys() == other.keys()
    assert all(np.array_equal(array, other[name]) for name, array in one.items())


def check_chunks(manifest: Manifest) -> None:
    """Assert that chunks are as small as asked for, or as blocks of channels and of the file allow."""
    limit = default_chunk_bytes(manifest.weight_bytes) + 16_384  # a whole layer has its bias, too
    for piece in manifest.pieces:
        for operand in piece.inputs:
            if operand.kind == "value" or manifest.spans[operand.index].resident:
                continue
            length = manifest.spans[operand.index].length
            row_bytes = length // operand.shape[0]
            step = math.lcm(16, SPAN_ALIGNMENT // math.gcd(SPAN_ALIGNMENT, row_bytes))
            # Fewer than 16 channels that are left join the chunk before them.
            assert length <= max(limit, step * row_bytes) + 15 * row_bytes


def check_answers(name: str, folder: Path, resolution: int | None, width: float) -> None:
    """Compile and stream; answers depend on the image, and are those of ONNX Runtime."""
    source = folder / f"{name}.onnx"
    summary = build(name, source, resolution, width)
    pack = compiled(source, folder)
    manifest = pack.manifest
    assert manifest.parameters == summary.parameters
    check_chunks(manifest)
    skeleton = find(name).skeleton(summary.resolution, width)
    entries = {item.key: item.value for item in skeleton.metadata_props}
    recipe = read_record(Preprocess, json.loads(entries[PREPROCESS]))
    scores = []
    for image in photographs()[:2]:
        inputs = {"image": recipe.apply(image)}
        expected = streamed(pack, inputs, "pre")
        same(streamed(pack, inputs), expected)
        same(expected, answers(source, inputs), rtol=1e-4, atol=1e-4)
        scores.append(expected["logits"])
        assert 0.1 < scores[-1].std() < 10
        assert np.isfinite(scores[-1]).all()
    largest = max(np.abs(array).max() for array in scores)
    assert np.abs(scores[0] - scores[1]).max() > 1e-2 * largest


@pytest.mark.slow
def test_a_small_network_streams(tmp_path: Path) -> None:
    check_answers("mobilenetv1", tmp_path, 96, 0.25)


@pytest.mark.slow
@built
def test_networks_stream(name: str, tmp_path: Path) -> None:
    check_answers(name, tmp_path, None, 1.0)
