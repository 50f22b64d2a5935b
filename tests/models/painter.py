"""Networks that segment without training: which of red, green and blue is the strongest, at each pixel."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from models.images.preprocess import Preprocess

WIDTH, HEIGHT = 96, 64
COLORS = ("red", "green", "blue")
LETTERBOX = Preprocess(size=(WIDTH, HEIGHT), resize="letterbox", scale=1 / 255)
STRETCH = Preprocess(size=(WIDTH, HEIGHT), scale=1 / 255)

_FLOAT, _WHOLE = TensorProto.FLOAT, TensorProto.INT64
# The last operator, the type that it makes, and by how much smaller than the image.
_TAILS: dict[str, tuple[Sequence[Any], int, int]] = {
    "scores": ((), _FLOAT, 1),
    "softmax": (("Softmax", {"axis": 1}), _FLOAT, 1),
    "indices": (("ArgMax", {"axis": 1, "keepdims": 0}), _WHOLE, 1),
    "one": (("ReduceMax", {"axes": [1]}), _FLOAT, 1),
    "small": (("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}), _FLOAT, 2),
}


def painter(
    tail: str = "scores", planes: int = 3, size: tuple[int, int] = (WIDTH, HEIGHT)
) -> onnx.ModelProto:
    """Return the model: input "image", output "mask"; planes above three are below all others."""
    weights = np.zeros((planes, 3, 1, 1), np.float32)
    weights[range(3), range(3)] = 1
    bias = np.array([0.0] * 3 + [-1.0] * (planes - 3), np.float32)
    last, kind, step = _TAILS[tail]
    area = size[1] // step, size[0] // step
    shape = {"indices": (1, *area), "one": (1, 1, *area)}.get(tail, (1, planes, *area))
    nodes = [helper.make_node("Conv", ["image", "w", "b"], ["seen" if last else "mask"])]
    if last:
        operator, attributes = last
        nodes.append(helper.make_node(operator, ["seen"], ["mask"], **attributes))
    graph = helper.make_graph(
        nodes,
        "painter",
        [helper.make_tensor_value_info("image", _FLOAT, (1, 3, size[1], size[0]))],
        [helper.make_tensor_value_info("mask", kind, shape)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def stripes(width: int, height: int) -> tuple[Image.Image, NDArray[np.uint8]]:
    """Return an image of three upright stripes, red, green and blue, and the class of each pixel."""
    classes = np.broadcast_to(np.arange(width) * 3 // width, (height, width)).astype(np.uint8)
    return Image.fromarray(np.eye(3, dtype=np.uint8)[classes] * 255), classes
