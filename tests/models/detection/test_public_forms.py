"""Boxes of the forms in which public detectors give them, each against its own decoder, a number at a time.

The forms are those of Ultra-Light-Fast-Generic-Face-Detector (RFB-320, with priors inside and without),
NVIDIA's SSD300 and RetinaNet, MediaPipe's BlazeFace, NanoDet-Plus, YOLOX, TensorFlow's SSD-MobileNet,
torchvision's SSDLite, DETR and RT-DETR; the numbers are drawn, and then come
out of networks that were compiled.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.detection.boxes import BoxLimits, find_boxes
from models.detection.candidates import candidates
from models.detection.heads import BoxesHead
from models.detection.recipe import Detection, head_fault
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack
from models.records import read_record
from tests.examples import over
from tests.models.streamed import streamed

#: Width and height of the input of all of them.
NET = 96, 64
THRESHOLD = 0.3

Outputs = dict[str, NDArray[Any]]
#: x, y, width, height relative to the input, class, score.
Expected = Iterator[tuple[float, float, float, float, int, float]]


def logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def softmax(values: Any) -> list[float]:
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


def corners(
    left: float, top: float, right: float, bottom: float
) -> tuple[float, float, float, float]:
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def drawn(*shape: int, spread: float = 3.0, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng([seed, *shape]).normal(0, spread, shape).astype(np.float32)


@dataclass(frozen=True)
class Form:
    """A detector's recipe, outputs that it may have, and what its own decoder makes of them."""

    heads: list[dict[str, Any]]
    outputs: Outputs
    expected: Callable[[Outputs], Any]


def _priors() -> list[tuple[float, float, float, float]]:
    found = []
    for (columns, rows), sizes in (((12, 8), (10, 16)), ((6, 4), (48, 120))):
        for row, column in product(range(rows), range(columns)):
            for side in sizes:
                prior = (column + 0.5) / columns, (row + 0.5) / rows, side / NET[0], side / NET[1]
                x, y, width, height = (min(value, 1.0) for value in prior)
                found.append((x, y, width, height))
    return found


def _faces() -> Form:
    priors = _priors()
    outputs = {
        "scores": np.array([softmax(row) for row in drawn(len(priors), 2)], np.float32)[None],
        "boxes": drawn(1, len(priors), 4, spread=1),
    }

    def expected(outputs: Outputs) -> Expected:
        for (x, y, w, h), box, (_, score) in zip(
            priors, outputs["boxes"][0], outputs["scores"][0], strict=True
        ):
            place = x + box[0] * 0.1 * w, y + box[1] * 0.1 * h
            yield *place, w * math.exp(box[2] * 0.2), h * math.exp(box[3] * 0.2), 0, score

    levels = [
        {"grid": (12, 8), "sizes": [(10, 10), (16, 16)]},
        {"grid": (6, 4), "sizes": [(48, 48), (120, 120)]},
    ]
    head = {"boxes": "boxes", "scores": "scores", "classes": 1, "background": "first"}
    return Form(
        [{**head, "box": "offsets", "anchors": levels, "clip_anchors": True}], outputs, expected
    )


def _decoded_faces() -> Form:
    """The same network with the priors inside."""
    outputs = {
        "scores": np.array([softmax(row) for row in drawn(50, 2)], np.float32)[None],
        "boxes": np.sort(np.abs(drawn(1, 50, 4)), axis=2),
    }

    def expected(outputs: Outputs) -> Expected:
        for box, (_, score) in zip(outputs["boxes"][0], outputs["scores"][0], strict=True):
            yield *corners(*map(float, box)), 0, score

    head = {"boxes": "boxes", "scores": "scores", "classes": 1, "background": "first"}
    return Form([head], outputs, expected)


def _ssd300() -> Form:
    """Channels before boxes; of a level the boxes of one size, then those of the next."""
    levels = [((6, 4), [(20, 20), (30, 15)]), ((3, 2), [(50, 50), (60, 30)])]
    defaults = [
        ((column + 0.5) / columns, (row + 0.5) / rows, width / NET[0], height / NET[1])
        for (columns, rows), sizes in levels
        for width, height in sizes
        for row, column in product(range(rows), range(columns))
    ]
    outputs = {"ploc": drawn(1, 4, len(defaults), spread=1), "plabel": drawn(1, 6, len(defaults))}

    def expected(outputs: Outputs) -> Expected:
        for number, (x, y, w, h) in enumerate(defaults):
            a, b, c, d = map(float, outputs["ploc"][0, :, number])
            scores = softmax(outputs["plabel"][0, :, number])
            for index, score in enumerate(scores[1:]):
                yield (
                    *(x + 0.1 * a * w, y + 0.1 * b * h, w * math.exp(0.2 * c)),
                    *(h * math.exp(0.2 * d), index, score),
                )

    head = {
        "boxes": "ploc",
        "scores": "plabel",
        "classes": 5,
        "background": "first",
        "layout": "columns",
        "activation": "softmax",
        "box": "offsets",
        "sizes_first": True,
        "anchors": [{"grid": grid, "sizes": sizes} for grid, sizes in levels],
    }
    return Form([head], outputs, expected)


def _retinanet() -> Form:
    """An output a level for scores and one for boxes, planes by anchor; centres on strides."""
    sizes = [(12, 12), (18, 9), (9, 18)]
    strides = {16: (6, 4), 64: (2, 1)}
    outputs = {}
    for stride, (columns, rows) in strides.items():
        outputs[f"cls{stride}"] = drawn(1, 3 * 4, rows, columns)
        outputs[f"box{stride}"] = drawn(1, 3 * 4, rows, columns, spread=0.5)

    def expected(outputs: Outputs) -> Expected:
        for stride, (columns, rows) in strides.items():
            for row, column, anchor in product(range(rows), range(columns), range(3)):
                planes = slice(4 * anchor, 4 * anchor + 4)
                a, b, c, d = map(float, outputs[f"box{stride}"][0, planes, row, column])
                w, h = (side * stride / 16 for side in sizes[anchor])
                x, y = stride * (column + 0.5) + a * w, stride * (row + 0.5) + b * h
                for index, value in enumerate(outputs[f"cls{stride}"][0, planes, row, column]):
                    yield (
                        *(x / NET[0], y / NET[1], w * math.exp(c) / NET[0]),
                        *(h * math.exp(d) / NET[1], index, logistic(value)),
                    )

    heads = [
        {
            "boxes": f"box{stride}",
            "scores": f"cls{stride}",
            "classes": 4,
            "layout": "planes",
            "activation": "sigmoid",
            "box": "offsets",
            "variances": (1, 1),
            "anchors": [
                {
                    "grid": grid,
                    "stride": stride,
                    "sizes": [(w * stride / 16, h * stride / 16) for w, h in sizes],
                }
            ],
        }
        for stride, grid in strides.items()
    ]
    return Form(heads, outputs, expected)


def _blazeface() -> Form:
    """Offsets in pixels, sizes too; behind them come landmarks."""
    centres = [
        ((column + 0.5) / columns, (row + 0.5) / rows)
        for columns, rows, count in ((12, 8, 2), (6, 4, 6))
        for row, column in product(range(rows), range(columns))
        for _ in range(count)
    ]
    outputs = {
        "regressors": drawn(1, len(centres), 16, spread=20),
        "classificators": drawn(1, len(centres), 1),
    }

    def expected(outputs: Outputs) -> Expected:
        for (x, y), box, score in zip(
            centres, outputs["regressors"][0], outputs["classificators"][0, :, 0], strict=True
        ):
            a, b, c, d = (float(value) for value in box[:4])
            place = a / NET[0] + x, b / NET[1] + y, c / NET[0], d / NET[1]
            yield *place, 0, logistic(score)

    head = {
        "boxes": "regressors",
        "scores": "classificators",
        "classes": 1,
        "activation": "sigmoid",
        "box": "offsets",
        "linear": True,
        "variances": (1, 1),
        "anchors": [
            {"grid": (12, 8), "sizes": [(1, 1)] * 2},
            {"grid": (6, 4), "sizes": [(1, 1)] * 6},
        ],
    }
    return Form([head], outputs, expected)


def _points() -> list[tuple[int, int, int]]:
    """Return x, y, stride of each cell of two levels, whose centres are corners of pixels."""
    return [
        (column * stride, row * stride, stride)
        for stride in (16, 32)
        for row, column in product(range(64 // stride), range(96 // stride))
    ]


POINTS = [
    {"grid": (96 // stride, 64 // stride), "stride": stride, "offset": 0} for stride in (16, 32)
]


def _nanodet() -> Form:
    """One output: scores, then of each edge how likely it is so many strides away."""
    points = _points()
    scores = 1 / (1 + np.exp(-drawn(1, len(points), 5)))
    outputs = {"output": np.concatenate([scores, drawn(1, len(points), 32)], axis=2)}

    def expected(outputs: Outputs) -> Expected:
        for (x, y, stride), row in zip(points, outputs["output"][0], strict=True):
            left, top, right, bottom = (
                stride * sum(n * p for n, p in enumerate(softmax(row[at : at + 8])))
                for at in range(5, 37, 8)
            )
            a, b, c, d = corners(x - left, y - top, x + right, y + bottom)
            for index, score in enumerate(row[:5]):
                yield a / NET[0], b / NET[1], c / NET[0], d / NET[1], index, float(score)

    head = {
        "boxes": "output",
        "scores": "output",
        "classes": 5,
        "boxes_at": 5,
        "box": "distances",
        "bins": 8,
        "anchors": POINTS,
    }
    return Form([head], outputs, expected)


def _yolox() -> Form:
    points = _points()
    boxes = drawn(1, len(points), 4, spread=0.5)
    scores = 1 / (1 + np.exp(-drawn(1, len(points), 4)))
    outputs = {"output": np.concatenate([boxes, scores], axis=2)}

    def expected(outputs: Outputs) -> Expected:
        for (x, y, stride), row in zip(points, outputs["output"][0], strict=True):
            a, b, c, d, objectness, *classes = map(float, row)
            for index, score in enumerate(classes):
                yield (
                    *((x + a * stride) / NET[0], (y + b * stride) / NET[1]),
                    *(math.exp(c) * stride / NET[0], math.exp(d) * stride / NET[1]),
                    *(index, objectness * score),
                )

    head = {
        "boxes": "output",
        "scores": "output",
        "classes": 3,
        "objectness": 4,
        "scores_at": 5,
        "box": "offsets",
        "variances": (1, 1),
        "anchors": POINTS,
    }
    return Form([head], outputs, expected)


def _tensorflow() -> Form:
    """Channels last, an output a level; y before x."""
    outputs = {"box": drawn(1, 4, 6, 3 * 4), "class": drawn(1, 4, 6, 3 * 3)}
    sizes = [(20, 20), (30, 15), (15, 30)]

    def expected(outputs: Outputs) -> Expected:
        for row, column, anchor in product(range(4), range(6), range(3)):
            y, x, h, w = map(float, outputs["box"][0, row, column, 4 * anchor : 4 * anchor + 4])
            width, height = sizes[anchor][0] / NET[0], sizes[anchor][1] / NET[1]
            scores = outputs["class"][0, row, column, 3 * anchor : 3 * anchor + 3]
            for index, value in enumerate(scores[1:]):
                yield (
                    *(x / 10 * width + (column + 0.5) / 6, y / 10 * height + (row + 0.5) / 4),
                    *(math.exp(w / 5) * width, math.exp(h / 5) * height, index, logistic(value)),
                )

    head = {
        "boxes": "box",
        "scores": "class",
        "classes": 2,
        "background": "first",
        "axes": "yx",
        "activation": "sigmoid",
        "box": "offsets",
        "anchors": [{"grid": (6, 4), "sizes": sizes}],
    }
    return Form([head], outputs, expected)


def _listed_by_class(shape: tuple[int, ...], names: tuple[str, str, str], yx: bool) -> Form:
    """What was suppressed inside: a box, its class and its score each; class 0 is none."""
    boxes, scores, indices = names
    generator = np.random.default_rng(3)
    outputs: Outputs = {
        boxes: np.sort(generator.random((*shape, 4)), axis=-1).astype(np.float32),
        scores: generator.random(shape, np.float32),
        indices: generator.integers(0, 5, shape).astype(np.float32 if yx else np.int64),
    }
    if not yx:
        outputs[boxes] *= 64

    def expected(outputs: Outputs) -> Expected:
        every = (outputs[name].reshape(-1, *outputs[name].shape[len(shape) :]) for name in names)
        for box, score, index in zip(*every, strict=True):
            a, b, c, d = map(float, box)
            place = corners(b, a, d, c) if yx else corners(a / 96, b / 64, c / 96, d / 64)
            if index > 0:
                yield *place, int(index) - 1, float(score)

    head = {"boxes": boxes, "scores": scores, "indices": indices, "classes": 4}
    unit = {"axes": "yx"} if yx else {"unit": "pixels"}
    return Form([{**head, "background": "first", **unit}], outputs, expected)


def _detr(activation: str) -> Form:
    """Boxes of queries; with a softmax the last class is none."""
    has_none = activation == "softmax"
    outputs = {
        "logits": drawn(1, 30, 4 + has_none),
        "boxes": np.random.default_rng(5).random((1, 30, 4), np.float32),
    }

    def expected(outputs: Outputs) -> Expected:
        for box, row in zip(outputs["boxes"][0], outputs["logits"][0], strict=True):
            scores = softmax(row)[:-1] if has_none else list(map(logistic, row))
            for index, score in enumerate(scores):
                yield *map(float, box), index, score  # type: ignore[misc]

    none = {"background": "last"} if has_none else {}
    head = {"boxes": "boxes", "scores": "logits", "classes": 4, "box": "centre", **none}
    return Form([{**head, "activation": activation}], outputs, expected)


FORMS = {
    "RFB-320 without priors": _faces(),
    "RFB-320": _decoded_faces(),
    "SSD300": _ssd300(),
    "RetinaNet": _retinanet(),
    "BlazeFace": _blazeface(),
    "NanoDet-Plus": _nanodet(),
    "YOLOX": _yolox(),
    "SSD-MobileNet, a level": _tensorflow(),
    "SSD-MobileNet, suppressed": _listed_by_class((1, 40), ("boxes", "scores", "classes"), yx=True),
    "SSDLite": _listed_by_class((40,), ("boxes", "scores", "labels"), yx=False),
    "DETR": _detr("softmax"),
    "RT-DETR": _detr("sigmoid"),
}


def detection(form: Form) -> Detection:
    return read_record(Detection, {"heads": [{"kind": "boxes", **head} for head in form.heads]})


def shapes(outputs: Outputs) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (array.dtype.name, array.shape) for name, array in outputs.items()}


@over("name", FORMS)
def test_boxes_are_those_of_its_own_decoder(name: str) -> None:
    form = FORMS[name]
    recipe = detection(form)
    assert head_fault(recipe, shapes(form.outputs)) is None
    found = candidates(form.outputs, recipe.heads, NET, THRESHOLD)
    expected = sorted(row for row in form.expected(form.outputs) if row[-1] > THRESHOLD)
    assert expected
    got = np.column_stack([found.boxes, found.classes, found.scores])
    np.testing.assert_allclose(sorted(got.tolist()), expected, rtol=1e-5, atol=1e-6)


@over("name", FORMS)
def test_a_box_too_many_is_no_such_list(name: str) -> None:
    """Every output, one axis longer by one: where that is an axis of boxes, the others have fewer."""
    form = FORMS[name]
    recipe = detection(form)
    forms = shapes(form.outputs)
    for output, (dtype, shape) in forms.items():
        if len(forms) == 1 and not form.heads[0].get("anchors"):
            continue
        for axis in range(len(shape)):
            longer = (*shape[:axis], shape[axis] + 1, *shape[axis + 1 :])
            fault = head_fault(recipe, {**forms, output: (dtype, longer)})
            if fault is None:  # there may be more numbers behind a box: landmarks
                assert output == form.heads[0]["boxes"]
            else:
                assert repr(output) in fault or "boxes" in fault


def test_a_network_may_list_as_many_as_it_finds() -> None:
    """Where lengths differ all the same, the shortest counts; none is none."""
    form = FORMS["SSD-MobileNet, suppressed"]
    recipe = detection(form)
    unknown = {
        name: (dtype, (1, -1, *shape[2:])) for name, (dtype, shape) in shapes(form.outputs).items()
    }
    assert head_fault(recipe, unknown) is None
    fewer = {**form.outputs, "scores": form.outputs["scores"][:, :7]}
    some = candidates(fewer, recipe.heads, NET, 0.0)
    assert 0 < len(some.scores) <= 7
    nothing = {name: array[:, :0] for name, array in form.outputs.items()}
    assert not len(candidates(nothing, recipe.heads, NET, 0.0).scores)


@over("name", FORMS)
def test_nonsense_is_left_out(name: str) -> None:
    form = FORMS[name]
    for value in (np.nan, np.inf, -np.inf, 3e38):
        outputs = {
            key: np.full_like(array, value) if array.dtype == np.float32 else array
            for key, array in form.outputs.items()
        }
        found = candidates(outputs, detection(form).heads, NET, 0.2)
        assert np.isfinite(found.boxes).all()
        assert np.isfinite(found.scores).all()


@over(
    "change, said",
    [
        ({"box": "offsets"}, "box 'offsets' goes with anchors"),
        ({"anchors": [{"grid": (2, 2), "stride": 8}]}, "box 'corners' goes without anchors"),
        ({"bins": 8}, "bins are of distances"),
        ({"layout": "planes"}, "planes have the anchors of one level"),
        ({"indices": "c", "activation": "softmax"}, "a softmax is over all classes"),
        (
            {"box": "distances", "anchors": [{"grid": (2, 2)}]},
            "neither sizes nor a stride",
        ),
    ],
)
def test_what_no_recipe_can_say(change: dict[str, Any], said: str) -> None:
    head = {"kind": "boxes", "boxes": "a", "scores": "b", "classes": 2}
    with pytest.raises(ValueError, match=said):
        read_record(BoxesHead, {**head, **change})


def test_boxes_that_are_not_to_be_suppressed_all_remain() -> None:
    outputs = {
        "boxes": np.tile(np.array([0.1, 0.1, 0.5, 0.5], np.float32), (1, 3, 1)),
        "scores": np.full((1, 3, 1), 0.9, np.float32),
    }
    head = {"kind": "boxes", "boxes": "boxes", "scores": "scores", "classes": 1}
    for nms, count in (("greedy", 1), ("none", 3)):
        recipe = read_record(Detection, {"heads": [head], "nms": nms})
        assert len(find_boxes(outputs, recipe, Preprocess(size=NET), NET, BoxLimits())) == count


def network(form: Form) -> onnx.ModelProto:
    """A network with such outputs, which move with the brightness of its image [1, 3, 64, 96].

    Which class a box is of does not.
    """
    outputs, still = form.outputs, form.heads[0].get("indices")
    constants = {f"{name}_at_rest": array for name, array in outputs.items()}
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["bright"], keepdims=0),
        helper.make_node("Mul", ["bright", "tenth"], ["moved"]),
        helper.make_node("Mul", ["bright", "none"], ["still"]),
    ]
    for name, array in outputs.items():
        moved = "still" if name == still else "moved"
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        nodes.append(helper.make_node("Cast", [moved], [f"{name}_moved"], to=kind))
        nodes.append(helper.make_node("Add", [f"{name}_at_rest", f"{name}_moved"], [name]))
    graph = helper.make_graph(
        nodes,
        "public",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, (1, 3, NET[1], NET[0]))],
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in outputs.items()
        ],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in {
                **constants,
                "tenth": np.float32(0.1),
                "none": np.float32(0),
            }.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("name", FORMS)
def test_a_pack_finds_what_is_in_the_outputs_of_its_source(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    onnx.save(network(form), tmp_path / "m.onnx")
    options = CompileOptions(
        preprocess=Preprocess(size=NET, scale=1 / 255), detection=detection(form)
    )
    pack = open_pack(compile_onnx(tmp_path / "m.onnx", tmp_path / "made" / "m", options))
    assert pack.manifest.verb == "detect"
    recipe = pack.manifest.detection
    assert recipe is not None
    x = np.random.default_rng(0).random((1, 3, NET[1], NET[0]), np.float32)
    source = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    made = dict(zip(form.outputs, source.run([*form.outputs], {"image": x}), strict=True))
    found = candidates(streamed(pack, {"image": x}), recipe.heads, NET, THRESHOLD)
    expected = sorted(row for row in form.expected(made) if row[-1] > THRESHOLD)
    got = np.column_stack([found.boxes, found.classes, found.scores])
    np.testing.assert_allclose(sorted(got.tolist()), expected, rtol=1e-4, atol=1e-5)
