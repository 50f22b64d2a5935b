"""With the configuration files of Hugging Face, timm and OpenCLIP a model needs no recipes."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.hub_config import HubConfig, read_config
from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.packs.manifest import Manifest
from models.packs.pack import open_pack
from tests.examples import over

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
NORMAL = {"image_mean": MEAN, "image_std": STD}
#: Name, the file, to which size a picture becomes, and how: [shorter side] or (width, height), then a crop.
Pictures = tuple[dict[str, Any], tuple[int, ...], Size, int]
PROCESSORS: dict[str, Pictures] = {
    "ViT of 2021": (
        {**NORMAL, "do_normalize": True, "do_resize": True, "size": 16},
        (16, 16),
        (16, 16),
        2,
    ),
    "CLIP": (
        {
            **NORMAL,
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 16},
            "crop_size": {"height": 12, "width": 16},
            "do_center_crop": True,
            "resample": 3,
        },
        *((16,), (16, 12), 3),
    ),
    "CLIP of 2021": (
        {
            **NORMAL,
            "feature_extractor_type": "CLIPFeatureExtractor",
            "size": 16,
            "crop_size": 16,
            "do_center_crop": True,
        },
        *((16,), (16, 16), 3),
    ),
    "DeiT": (
        {
            **NORMAL,
            "image_processor_type": "DeiTImageProcessorFast",
            "size": {"height": 20, "width": 18},
            "crop_size": 16,
            "do_center_crop": True,
        },
        *((18, 20), (16, 16), 3),
    ),
    "ConvNext": (
        {
            **NORMAL,
            "image_processor_type": "ConvNextImageProcessor",
            "size": {"shortest_edge": 16},
            "crop_pct": 0.8,
            "resample": 2,
        },
        *((20,), (16, 16), 2),
    ),
    "Levit": (
        {
            **NORMAL,
            "image_processor_type": "LevitImageProcessor",
            "size": {"shortest_edge": 14},
            "crop_size": 14,
            "resample": 3,
        },
        *((16,), (14, 14), 3),
    ),
    "OpenCLIP": (
        {"preprocess_cfg": {"size": [16, 16], "mean": MEAN, "std": STD, "resize_mode": "shortest"}},
        *((16,), (16, 16), 3),
    ),
    "OpenCLIP's model": (
        {
            "model_cfg": {"vision_cfg": {"image_size": 16}},
            "preprocess_cfg": {"mean": MEAN, "std": STD, "resize_mode": "squash"},
        },
        *((16, 16), (16, 16), 3),
    ),
    "OpenCLIP's export": (
        {
            "size": 16,
            "mode": "RGB",
            "mean": MEAN,
            "std": STD,
            "interpolation": "bicubic",
            "resize_mode": "shortest",
            "fill_color": 0,
        },
        *((16,), (16, 16), 3),
    ),
    "timm": (
        {
            "pretrained_cfg": {
                "input_size": [3, 16, 16],
                "interpolation": "bicubic",
                "crop_pct": 0.9,
                "mean": MEAN,
                "std": STD,
            }
        },
        *((17,), (16, 16), 3),
    ),
    "timm squashes": (
        {
            "pretrained_cfg": {
                "input_size": [3, 16, 16],
                "crop_pct": 1.0,
                "crop_mode": "squash",
                "mean": MEAN,
                "std": STD,
            }
        },
        *((16, 16), (16, 16), 2),
    ),
}
_FLOORS = {"CLIP", "CLIP of 2021", "DeiT", "ConvNext", "Levit"}


def read(document: object, folder: Path, name: str = "config.json") -> HubConfig:
    path = folder / name
    path.write_text(json.dumps(document))
    return read_config(path)


def reference(picture: Image.Image, case: str) -> Any:
    """The tensor as those libraries make it: the whole picture resized, then whole pixels cut."""
    _, sides, (width, height), resample = PROCESSORS[case]
    if len(sides) == 1:
        short, long = sorted(picture.size)
        longer = int(sides[0] * long / short)
        sides = (sides[0], longer) if picture.width <= picture.height else (longer, sides[0])
    full = picture.resize((sides[0], sides[1]), resample)
    offsets = [(full.width - width) / 2, (full.height - height) / 2]
    left, top = (math.floor(half) if case in _FLOORS else round(half) for half in offsets)
    pixels = np.asarray(full.crop((left, top, left + width, top + height)), np.float64) / 255
    return ((pixels - MEAN) / STD).transpose(2, 0, 1)[None]


@given(
    case=st.sampled_from(sorted(PROCESSORS)),
    size=st.tuples(st.integers(16, 90), st.integers(16, 90)),
    seed=st.integers(0, 99),
)
def test_pictures_become_what_the_libraries_make_of_them(
    case: str, size: Size, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    recipe = read(PROCESSORS[case][0], tmp_path_factory.mktemp("config")).preprocess
    assert recipe is not None
    colors = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), np.uint8)
    picture = Image.fromarray(colors).resize(size, 2)  # smooth, as photographs are
    steps = np.abs(recipe.apply(picture) - reference(picture, case)) * np.array(STD)[:, None, None]
    # Pillow rounds after rows and after columns, and which come first depends on what is cut.
    assert steps.max() * 255 < 2.5


@over(
    "document, reason",
    [
        ({"do_resize": True, "image_processor_type": "DonutImageProcessor"}, "'Donut': no recipe"),
        ({"do_resize": False, "size": 8}, "do_resize is off"),
        ({"do_resize": True}, "size: not there"),
        ({"do_resize": True, "size": {"shortest_edge": 8}}, "longer side depends"),
        ({"do_resize": True, "size": {"shortest_edge": 8, "longest_edge": 9}}, "depends on"),
        ({"do_resize": True, "size": 8, "do_pad": True}, "do_pad"),
        ({**NORMAL, "size": 8, "keep_aspect_ratio": True}, "keep_aspect_ratio"),
        ({"do_resize": True, "size": 8, "resample": 5}, "filter '5'"),
        ({"do_resize": True, "size": "8"}, "size"),
        ({"do_resize": True, "size": 8, "do_normalize": True}, "no image_mean"),
        ({**NORMAL, "size": 8, "image_std": [0, 1, 1]}, "zero cannot divide"),
        ({**NORMAL, "size": 8, "image_std": [1, 1]}, "2 numbers for 3 channels"),
        ({**NORMAL, "size": 8, "rescale_factor": 0}, "rescale_factor"),
        ({**NORMAL, "size": 8, "crop_size": 9}, "smaller than"),
        ({**NORMAL, "size": 1 << 20}, "size"),
        ({"pretrained_cfg": 3}, "valid dictionary"),
        ({"pretrained_cfg": {"input_size": [1, 8, 8], "mean": MEAN, "std": STD}}, "1 channels"),
        ({"preprocess_cfg": {"size": 8, "mean": MEAN, "std": STD, "resize_mode": "longest"}}, "'longest'"),
        ({"id2label": {"1": "a"}}, "does not name the classes 0 to 0"),
        ({"id2label": {"0": 1}}, "a name is no text"),
        ({"id2label": {"0": "\ud800"}}, "not UTF-8"),
    ],
)  # fmt: skip
def test_what_has_no_recipe_has_a_reason(document: Any, reason: str, tmp_path: Path) -> None:
    config = read(document, tmp_path)
    assert (config.preprocess, config.labels) == (None, ())
    (text,) = config.reasons
    assert text.startswith(f"{tmp_path / 'config.json'}: ")
    assert reason in text


_KEYS = [
    *("id2label", "architectures", "label_names", "pretrained_cfg", "input_size", "preprocess_cfg"),
    *("image_processor", "do_resize", "size", "height", "crop_size", "image_mean", "image_std"),
    *("mean", "std", "0"),
]


@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(_KEYS),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_a_file_holds_it_is_read(
    document: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = read(document, tmp_path_factory.mktemp("config"))
    assert all(isinstance(label, str) for label in config.labels)


@over("content", [b"", b"{", b"\xff", b"[" * 100_000, b"3", b"{}", b'{"foo": 1}'])
def test_a_file_of_another_program_says_nothing(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    config = read_config(path)
    assert (config.labels, config.task, config.preprocess) == ((), None, None)


def network(outputs: dict[str, list[int]], size: Size = (16, 16)) -> onnx.ModelProto:
    """Pictures to ``outputs``, each a constant and the mean of the picture; rows and columns are open."""
    nodes = [helper.make_node("ReduceMean", ["pixel_values"], ["mean"], keepdims=0)]
    constants = []
    for name, shape in outputs.items():
        values = np.linspace(-1, 1, math.prod(shape), dtype=np.float32).reshape(shape)
        constants.append(numpy_helper.from_array(values, f"{name} of all"))
        nodes.append(helper.make_node("Add", [f"{name} of all", "mean"], [name]))
    axes: list[str | int | None] = ["batch", 3, "height", "width"]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, axes)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in outputs.items()
        ],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


VIT = PROCESSORS["ViT of 2021"][0]


def compiled(
    outputs: dict[str, list[int]], config: Any, folder: Path, pictures: Any = VIT, **options: Any
) -> tuple[Manifest, list[str]]:
    """The manifest, and what a user is warned of."""
    warnings: list[str] = []
    onnx.save(network(outputs), folder / "m.onnx")
    configs = (
        read(pictures, folder, "preprocessor_config.json"),
        read(config, folder, "config.json"),
    )
    compile_options = CompileOptions(configs=configs, warn=warnings.append, **options)
    pack = compile_onnx(folder / "m.onnx", folder / "repository" / "m", compile_options)
    return open_pack(pack).manifest, warnings


def named(count: int, task: str = "ForImageClassification") -> dict[str, Any]:
    return {
        "architectures": [f"Some{task}"],
        "id2label": {str(index): f"label {index}" for index in range(count)},
    }


def test_a_classifier_with_its_files_has_pictures_and_labels(tmp_path: Path) -> None:
    manifest, warnings = compiled({"logits": [1, 3]}, named(3), tmp_path)
    assert warnings == []
    assert manifest.verb == "classify"
    assert manifest.preprocess is not None
    assert manifest.preprocess.size == (16, 16)
    assert manifest.classification is not None
    assert manifest.classification.labels == ("label 0", "label 1", "label 2")
    assert manifest.origins == {
        "preprocess": "preprocessor_config.json",
        "labels": "config.json",
    }


def test_what_the_user_gives_comes_first(tmp_path: Path) -> None:
    recipe = Preprocess(size=(16, 16), mean=(3.0,))
    manifest, warnings = compiled(
        {"logits": [1, 2]}, named(2), tmp_path, preprocess=recipe, labels=("cat", "dog")
    )
    assert warnings == []
    assert manifest.preprocess == recipe
    assert manifest.classification is not None
    assert manifest.classification.labels == ("cat", "dog")
    assert manifest.origins == {"preprocess": "given", "labels": "given"}


@pytest.mark.parametrize(
    ("classes", "activation", "multi_label"), [(6, "softmax", False), (5, "sigmoid", True)]
)
def test_a_detector_of_the_detr_family(
    classes: int, activation: str, multi_label: bool, tmp_path: Path
) -> None:
    outputs = {"logits": [1, 7, classes], "pred_boxes": [1, 7, 4]}
    manifest, warnings = compiled(outputs, named(5, "ForObjectDetection"), tmp_path)
    assert (warnings, manifest.verb) == ([], "detect")
    assert manifest.detection is not None
    (head,) = manifest.detection.heads
    assert head.kind == "boxes"
    assert (head.activation, manifest.detection.multi_label) == (activation, multi_label)
    assert manifest.detection.labels[4] == "label 4"


def test_a_network_that_segments_at_a_quarter_of_its_size(tmp_path: Path) -> None:
    config = named(3, "ForSemanticSegmentation")
    manifest, warnings = compiled({"logits": [1, 3, 4, 4]}, config, tmp_path)
    assert (warnings, manifest.verb) == ([], "segment")
    assert manifest.segmentation is not None
    assert manifest.segmentation.output == "logits"
    assert manifest.origins["segmentation"] == "config.json"


def test_a_network_that_estimates_depth(tmp_path: Path) -> None:
    config = {"architectures": ["DepthAnythingForDepthEstimation"]}
    outputs = {"other": [1, 8, 8], "predicted_depth": [1, 1, 8, 8]}
    manifest, warnings = compiled(outputs, config, tmp_path)
    assert (warnings, manifest.verb) == ([], "depth")
    assert manifest.depth is not None
    assert manifest.depth.output == "predicted_depth"
    assert manifest.origins["depth"] == "config.json"


def test_depth_of_pictures_that_keep_their_proportions_is_of_the_inputs(tmp_path: Path) -> None:
    """The size that the file has is that of square pictures; where no output is depth, that is said."""
    config = {"architectures": ["DPTForDepthEstimation"]}
    processor = {
        **NORMAL,
        "image_processor_type": "DPTImageProcessor",
        "size": {"height": 16, "width": 16},
    }
    keeps = {**processor, "keep_aspect_ratio": True, "ensure_multiple_of": 4}
    wide = {"shapes": {"pixel_values": (1, 3, 16, 24)}}
    manifest, warnings = compiled({"depth": [1, 4, 6]}, config, tmp_path, keeps, **wide)
    assert manifest.preprocess is not None
    assert (manifest.verb, manifest.preprocess.size) == ("depth", (24, 16))
    (warning,) = warnings
    assert "keep_aspect_ratio: here all pictures are stretched to 24 x 16" in warning
    other = tmp_path / "other"
    other.mkdir()
    manifest, warnings = compiled({"depth": [2, 3]}, config, other, processor)
    assert (manifest.verb, manifest.depth) == ("infer", None)
    assert ["no output is depth" in text for text in warnings] == [True]


def test_sides_of_pictures_for_depth_are_multiples(tmp_path: Path) -> None:
    processor = {
        **NORMAL,
        "image_processor_type": "DPTImageProcessor",
        "size": 30,
        "ensure_multiple_of": 14,
    }
    for document in (processor, {"image_processor": processor | {"keep_aspect_ratio": True}}):
        config = read(document, tmp_path)
        assert config.preprocess is not None
        assert config.preprocess.size == (28, 28)
        assert config.keeps_aspect == (document is not processor)


def test_what_does_not_fit_is_skipped_with_a_warning(tmp_path: Path) -> None:
    manifest, warnings = compiled({"logits": [1, 3]}, named(4), tmp_path)
    assert manifest.classification is not None
    assert manifest.classification.labels == ()
    (warning,) = warnings
    assert "config.json: 4 labels for outputs 'logits' float32[1, 3]; left out" in warning


def test_boxes_need_a_picture(tmp_path: Path) -> None:
    outputs = {"logits": [1, 7, 5], "pred_boxes": [1, 7, 4]}
    pictures = {"do_resize": True, "size": {"shortest_edge": 8, "longest_edge": 12}}
    manifest, warnings = compiled(
        outputs, named(5, "ForObjectDetection"), tmp_path, pictures, shapes={"pixel_values": (1, 3, 16, 16)}
    )  # fmt: skip
    assert (manifest.preprocess, manifest.detection) == (None, None)
    assert [("depends on the picture" in text, "--preprocess" in text) for text in warnings] == [
        (True, False),
        (False, True),
    ]


def test_names_that_transformers_invents_for_an_encoder_are_skipped(tmp_path: Path) -> None:
    encoder = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
    manifest, warnings = compiled({"embedding": [1, 7, 4]}, encoder, tmp_path)
    assert (warnings, manifest.verb) == ([], "infer")
