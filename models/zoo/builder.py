"""Compact network definitions: each method adds one layer and returns the tensor it makes.

What comes out is a skeleton (models/graphs/writer.py): the graph with its weights declared, not drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, helper

from models.graphs.metadata import PREPROCESS, write_metadata
from models.graphs.writer import declare
from models.images.preprocess import Preprocess

OPSET = 17
IR_VERSION = 9


@dataclass(frozen=True)
class Tensor:
    """A value in the graph: its name and its shape (batch first)."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        return self.shape[1]


@dataclass(frozen=True)
class Pixels:
    """How colours (0 to 255) become numbers: (colour - mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


#: Mean and deviation of ImageNet's colours, as torchvision's networks want them.
IMAGENET = Pixels((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
#: From -1 to 1, as Keras' and TensorFlow's networks want them.
SIGNED = Pixels((127.5,), (127.5,))


class Builder:
    """Builds one skeleton with a single image input "image" [1, 3, resolution, resolution]."""

    def __init__(self, name: str, resolution: int, pixels: Pixels | None = None) -> None:
        self._name = name
        self._pixels = pixels
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[TensorProto] = []
        self.image = Tensor("image", (1, 3, resolution, resolution))

    def conv(
        self,
        x: Tensor,
        channels: int,
        kernel: int,
        stride: int = 1,
        *,
        groups: int = 1,
        bias: bool = False,
        pads: tuple[int, int, int, int] | None = None,
    ) -> Tensor:
        """Add a square convolution; ``pads`` (top, left, bottom, right) None: half the kernel."""
        label = f"conv{self._count('Conv') + 1}"
        shape = (channels, x.channels // groups, kernel, kernel)
        inputs = [x.name, self._weight(f"{label}.weight", shape)]
        if bias:
            inputs.append(self._weight(f"{label}.bias", (channels,)))
        window = _Window(kernel, stride, pads or (kernel // 2,) * 4)
        size = (1, channels, *window.size(x))
        return self._add("Conv", inputs, size, group=groups, **window.attributes())

    def norm(self, x: Tensor, epsilon: float = 1e-5) -> Tensor:
        """Add a batch norm."""
        label = f"norm{self._count('BatchNormalization') + 1}"
        parts = ("weight", "bias", "mean", "var")
        inputs = [self._weight(f"{label}.{part}", (x.channels,)) for part in parts]
        return self._add("BatchNormalization", [x.name, *inputs], x.shape, epsilon=epsilon)

    def linear(self, x: Tensor, features: int) -> Tensor:
        """Add a fully connected layer with a bias."""
        label = f"linear{self._count('Gemm') + 1}"
        weight = self._weight(f"{label}.weight", (features, x.shape[1]))
        bias = self._weight(f"{label}.bias", (features,))
        return self._add("Gemm", [x.name, weight, bias], (1, features), transB=1)

    def relu(self, x: Tensor) -> Tensor:
        return self._add("Relu", [x.name], x.shape)

    def relu6(self, x: Tensor) -> Tensor:
        bounds = [self._scalar("zero", 0.0), self._scalar("six", 6.0)]
        return self._add("Clip", [x.name, *bounds], x.shape)

    def sigmoid(self, x: Tensor) -> Tensor:
        return self._add("Sigmoid", [x.name], x.shape)

    def silu(self, x: Tensor) -> Tensor:
        return self.mul(x, self.sigmoid(x))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self._add("Add", [x.name, y.name], x.shape)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Add a product; ``y`` may be one number for each channel of ``x``."""
        return self._add("Mul", [x.name, y.name], x.shape)

    def concat(self, *parts: Tensor) -> Tensor:
        """Join tensors along the channels."""
        channels = sum(part.channels for part in parts)
        shape = (1, channels, *parts[0].shape[2:])
        return self._add("Concat", [part.name for part in parts], shape, axis=1)

    def max_pool(
        self, x: Tensor, kernel: int, stride: int, pad: int = 0, ceil: bool = False
    ) -> Tensor:
        """Add a maximum pool; ``ceil``: the last window may hang over the edge."""
        window = _Window(kernel, stride, (pad,) * 4, ceil)
        shape = (*x.shape[:2], *window.size(x))
        extra = {"ceil_mode": 1} if ceil else {}
        return self._add("MaxPool", [x.name], shape, **window.attributes(), **extra)

    def average_pool(self, x: Tensor, kernel: int, stride: int, pad: int = 0) -> Tensor:
        """Add an average pool; what is padded does not count."""
        window = _Window(kernel, stride, (pad,) * 4)
        shape = (*x.shape[:2], *window.size(x))
        return self._add("AveragePool", [x.name], shape, **window.attributes())

    def global_pool(self, x: Tensor) -> Tensor:
        return self._add("GlobalAveragePool", [x.name], (*x.shape[:2], 1, 1))

    def flatten(self, x: Tensor) -> Tensor:
        return self._add("Flatten", [x.name], (1, math.prod(x.shape[1:])))

    def model(self, output: Tensor, name: str = "logits") -> onnx.ModelProto:
        """Return the skeleton whose one output is ``output``, the layer added last, as ``name``."""
        self._nodes[-1].output[0] = name
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, self.image.shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, output.shape)],
            self._weights,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="layerstream",
        )
        if self._pixels:
            size = (self.image.shape[3], self.image.shape[2])
            recipe = Preprocess(
                size=size, resize="crop", mean=self._pixels.mean, std=self._pixels.std
            )
            fields = recipe.model_dump(mode="json", exclude_defaults=True)
            write_metadata(model, {PREPROCESS: fields})
        return model

    def _count(self, kind: str) -> int:
        return sum(node.op_type == kind for node in self._nodes)

    def _weight(self, name: str, shape: tuple[int, ...]) -> str:
        self._weights.append(declare(name, shape))
        return name

    def _scalar(self, name: str, value: float) -> str:
        if not any(tensor.name == name for tensor in self._weights):
            self._weights.append(helper.make_tensor(name, TensorProto.FLOAT, (), [value]))
        return name

    def _add(
        self, kind: str, inputs: Sequence[str], shape: tuple[int, ...], **attributes: Any
    ) -> Tensor:
        name = f"{kind.lower()}{self._count(kind) + 1}"
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return Tensor(name, shape)


@dataclass(frozen=True)
class _Window:
    """A square that moves over an image; ``pads`` are top, left, bottom, right."""

    kernel: int
    stride: int
    pads: tuple[int, ...]
    ceil: bool = False

    def size(self, x: Tensor) -> list[int]:
        """Return height and width of what a pass over ``x`` gives."""
        moves = [
            x.shape[2 + axis] + self.pads[axis] + self.pads[axis + 2] - self.kernel
            for axis in (0, 1)
        ]
        return [(-(-way // self.stride) if self.ceil else way // self.stride) + 1 for way in moves]

    def attributes(self) -> dict[str, list[int]]:
        return {
            "kernel_shape": [self.kernel] * 2,
            "strides": [self.stride] * 2,
            "pads": list(self.pads),
        }
