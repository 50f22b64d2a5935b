"""Lists of boxes, scores and labels, as torchvision's detectors and DETR's exporters write them.

torchvision's detectors take a picture without an axis for a batch, [3, rows, columns], where they were
exported with a list of pictures, and list as many boxes as they find; class 0 is none. ``transformers``
names DETR's outputs ``logits`` (the last class is none) and ``pred_boxes`` (centre and size in parts of
the input).
"""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.detection.boxes import find_boxes
from models.detection.heads import AnyHead
from models.detection.recipe import Detection
from models.errors import CompileError
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack
from models.records import read_record
from tests.models.refusal import refuses
from tests.models.streamed import streamed

NET, PHOTOGRAPH = (96, 64), (192, 64)
LABELS = ("person", "bicycle", "car")
BATCHLESS = Preprocess(size=NET, layout="CHW", scale=1 / 255)
LISTS = read_record(
    Detection,
    {
        "heads": [
            {
                "kind": "boxes",
                "boxes": "boxes",
                "scores": "scores",
                "indices": "labels",
                "classes": 3,
                "background": "first",
                "unit": "pixels",
            }
        ],
        "labels": LABELS,
        "nms": "none",
    },
)


def drawn(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng([3, *shape]).random(shape, np.float32)


def torchvision_like() -> onnx.ModelProto:
    """Return a network whose first pixels decide how many of twelve boxes it lists."""
    low = drawn(12, 2) * (60, 40)
    constants: dict[str, NDArray[Any]] = {
        "all_boxes": np.concatenate([low, low + drawn(2, 12, 2)[0] * 20 + 1], axis=1).astype("f"),
        "all_scores": np.sort(drawn(12))[::-1].copy(),
        "all_labels": (np.arange(12) % 4).astype(np.int64),
        "first": np.array([0, 0, 0], np.int64),
        "last": np.array([1, 1, 12], np.int64),
    }
    nodes = [
        helper.make_node("Slice", ["image", "first", "last"], ["pixels"]),
        helper.make_node("Greater", ["pixels", "half"], ["bright"]),
        helper.make_node("Reshape", ["bright", "twelve"], ["listed"]),
    ]
    constants |= {"half": np.full(1, 0.5, np.float32), "twelve": np.array([12], np.int64)}
    nodes += [
        helper.make_node("Compress", [f"all_{name}", "listed"], [name], axis=0)
        for name in ("boxes", "labels", "scores")
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "torchvision",
        [value("image", TensorProto.FLOAT, (3, NET[1], NET[0]))],
        [
            value("boxes", TensorProto.FLOAT, ("n", 4)),
            value("labels", TensorProto.INT64, ("n",)),
            value("scores", TensorProto.FLOAT, ("n",)),
        ],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def picture() -> Image.Image:
    """White, but for the upper left corner."""
    image = Image.new("RGB", PHOTOGRAPH, (255, 255, 255))
    image.paste((0, 0, 0), (0, 0, 7, 9))
    return image


def test_lists_of_a_picture_without_a_batch(tmp_path: Path) -> None:
    model = torchvision_like()
    onnx.save(model, tmp_path / "m.onnx")
    options = CompileOptions(preprocess=BATCHLESS, detection=LISTS)
    pack = open_pack(compile_onnx(tmp_path / "m.onnx", tmp_path / "packs" / "m", options))
    assert pack.manifest.verb == "detect"
    tensor = BATCHLESS.apply(picture())
    assert tensor.shape == (3, 64, 96)
    source = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    boxes, labels, scores = source.run(["boxes", "labels", "scores"], {"image": tensor})
    assert 0 < len(boxes) < 12
    expected = [
        (LABELS[label - 1], score, box * (2, 1, 2, 1))
        for box, label, score in zip(boxes, labels, scores, strict=True)
        if label > 0 and score > LISTS.score_threshold
    ]
    assert expected
    outputs = streamed(pack, {"image": BATCHLESS.tensor(picture())})  # type: ignore[dict-item]
    got = find_boxes(outputs, LISTS, BATCHLESS, PHOTOGRAPH)
    assert [box.label for box in got] == [label for label, _, _ in expected]
    np.testing.assert_allclose([box.score for box in got], [row[1] for row in expected])
    np.testing.assert_allclose(
        [list(box.edges) for box in got], [row[2] for row in expected], rtol=1e-5
    )


def test_without_a_recipe_the_head_is_named(tmp_path: Path) -> None:
    """The recipe in the warning is the one that fits."""
    onnx.save(torchvision_like(), tmp_path / "m.onnx")
    warnings: list[str] = []
    options = CompileOptions(warn=warnings.append)
    pack = open_pack(compile_onnx(tmp_path / "m.onnx", tmp_path / "packs" / "m", options))
    assert pack.manifest.verb is None
    (warning,) = warnings
    keys = warning.partition("[[heads]] ")[2].partition(", classes = ")[0]
    recipe = tomllib.loads("\n".join(keys.split(", ")))
    (head,) = LISTS.heads
    assert read_record(AnyHead, {"classes": head.classes, **recipe}) == head


def test_the_layout_that_would_fit_is_named(tmp_path: Path) -> None:
    onnx.save(torchvision_like(), tmp_path / "m.onnx")
    options = CompileOptions(preprocess=Preprocess(size=NET), detection=LISTS)
    with refuses(CompileError, "float32[3, 64, 96]", 'which layout = "CHW" makes'):
        compile_onnx(tmp_path / "m.onnx", tmp_path / "packs" / "m", options)
