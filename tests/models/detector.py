"""A detector without training: it finds the bright part of an image and boxes it exactly."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from models.detection.heads import DetectionHead
from models.detection.recipe import Detection
from models.graphs.metadata import DETECTION, LABELS, PREPROCESS, SIZES, write_metadata
from models.images.preprocess import Preprocess
from models.records import plain

WIDTH, HEIGHT = 96, 64
NAMES = ("lamp", "[red] window", "moon")
ANCHOR = (16.0, 8.0)
RECIPE = Preprocess(size=(WIDTH, HEIGHT), resize="letterbox", filter="darknet", scale=1 / 255)
HEAD = DetectionHead(output="found", kind="yolo", anchors=(ANCHOR,), classes=len(NAMES))
DETECTION_RECIPE = Detection(heads=(HEAD,))
SIZES_RECORD = {
    "tool": "darknet",
    "layers": 7,
    "weight_bytes": 3 << 20,
    "largest_layer_bytes": 1 << 20,
}

# Grey bars of the letterbox are 0.5.
_BRIGHT = 0.75


def _largest(name: str, result: str, *axes: int) -> onnx.NodeProto:
    return helper.make_node("ReduceMax", [name], [result], axes=list(axes), keepdims=1)


def _axis(name: str, axis: int) -> list[onnx.NodeProto]:
    """Nodes that make name_centre (0 to 1) and name_extent (logarithm, in anchors) of "mask"."""
    return [
        _largest("mask", f"{name}_on", 5 - axis),
        helper.make_node("Mul", [f"{name}_on", f"{name}_ends"], [f"{name}_after"]),
        helper.make_node("Mul", [f"{name}_on", f"{name}_starts"], [f"{name}_before"]),
        _largest(f"{name}_after", f"{name}_high", axis),
        _largest(f"{name}_before", f"{name}_room", axis),
        helper.make_node("Sub", ["one", f"{name}_room"], [f"{name}_low"]),
        helper.make_node("Add", [f"{name}_low", f"{name}_high"], [f"{name}_sum"]),
        helper.make_node("Mul", [f"{name}_sum", "half"], [f"{name}_centre"]),
        helper.make_node("Sub", [f"{name}_high", f"{name}_low"], [f"{name}_width"]),
        helper.make_node("Mul", [f"{name}_width", f"{name}_anchors"], [f"{name}_ratio"]),
        helper.make_node("Log", [f"{name}_ratio"], [f"{name}_extent"]),
    ]


def square_finder(described: bool = True) -> onnx.ModelProto:
    """Return the model: input "image" [1, 3, 64, 96], output "found" [1, 8, 1, 1], one activated cell.

    Its one box goes around every pixel whose colours are all bright; objectness 0 where none is. The
    classes are 1, 0.5 and 0. ``described``: its metadata say what it is.
    """
    constants: dict[str, Any] = {"one": [1.0], "half": [0.5], "bright": [_BRIGHT], "zero": [0.0]}
    constants["classes"] = np.array([1.0, 0.5, 0.0]).reshape(1, 3, 1, 1)
    for name, shape, length, anchor in (
        ("x", (1, 1, 1, WIDTH), WIDTH, ANCHOR[0]),
        ("y", (1, 1, HEIGHT, 1), HEIGHT, ANCHOR[1]),
    ):
        steps = np.arange(length)
        constants[f"{name}_ends"] = ((steps + 1) / length).reshape(shape)
        constants[f"{name}_starts"] = ((length - steps) / length).reshape(shape)
        constants[f"{name}_anchors"] = [length / anchor]
    nodes = [
        helper.make_node("ReduceMin", ["image"], ["grey"], axes=[1], keepdims=1),
        helper.make_node("Greater", ["grey", "bright"], ["lit"]),
        helper.make_node("Cast", ["lit"], ["mask"], to=TensorProto.FLOAT),
        *_axis("x", 3),
        *_axis("y", 2),
        _largest("mask", "objectness", 2, 3),
        helper.make_node(
            "Concat",
            ["x_centre", "y_centre", "x_extent", "y_extent", "objectness", "classes"],
            ["found"],
            axis=1,
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "square_finder",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, (1, 3, HEIGHT, WIDTH))],
        [helper.make_tensor_value_info("found", TensorProto.FLOAT, (1, HEAD.planes, 1, 1))],
        [
            numpy_helper.from_array(np.asarray(value, np.float32), name)
            for name, value in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    if described:
        write_metadata(
            model,
            {
                PREPROCESS: plain(RECIPE),
                DETECTION: plain(DETECTION_RECIPE),
                LABELS: NAMES,
                SIZES: SIZES_RECORD,
            },
        )
    return model


@dataclass(frozen=True)
class Scene:
    """A dark photograph with one bright rectangle: left, top, right, bottom in pixels."""

    size: tuple[int, int]
    square: tuple[int, int, int, int]
    mode: str = "RGB"

    def image(self) -> Image.Image:
        image = Image.new("RGB", self.size, (20, 30, 25))
        image.paste((255, 255, 255), self.square)
        return image.convert(self.mode)

    @property
    def pixel(self) -> float:
        """What a pixel of the network's input is in the photograph."""
        return max(1.0, self.size[0] / WIDTH, self.size[1] / HEIGHT)


SCENES = {
    "wide": Scene((900, 300), (500, 60, 700, 200)),
    "tall": Scene((300, 900), (60, 500, 200, 700)),
    "tiny": Scene((12, 10), (3, 2, 9, 8)),
    "8000 px": Scene((8000, 1200), (1500, 300, 3500, 1000)),
    "grey": Scene((400, 420), (100, 100, 300, 180), "L"),
}
