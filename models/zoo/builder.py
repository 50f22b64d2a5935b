"""Compact network definitions: each method adds one layer and returns the tensor it makes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from models.graphs.metadata import PREPROCESS
from models.images.placement import Resize
from models.images.preprocess import Preprocess
from models.zoo.graph import Resolution, ZooTensor
from models.zoo.operators import Operators

__all__ = ["IMAGENET", "SIGNED", "ColourScale", "SkeletonBuilder", "ZooTensor"]


@dataclass(frozen=True)
class ColourScale:
    """How colours (0 to 255) become numbers: (colour - mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


#: Mean and deviation of ImageNet's colours, as torchvision's networks want them.
IMAGENET = ColourScale((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
#: From -1 to 1, as Keras' and TensorFlow's networks want them.
SIGNED = ColourScale((127.5,), (127.5,))


class SkeletonBuilder(Operators):
    """Builds one skeleton of layers, with weights and without."""

    def __init__(
        self, name: str, resolution: Resolution, pixels: ColourScale | None = None
    ) -> None:
        super().__init__(name, resolution)
        self._pixels = pixels

    def conv(
        self,
        x: ZooTensor,
        channels: int,
        kernel: int,
        stride: int = 1,
        *,
        groups: int = 1,
        bias: bool = False,
        pads: tuple[int, int, int, int] | None = None,
        label: str | None = None,
    ) -> ZooTensor:
        """Add a square convolution; ``pads`` (top, left, bottom, right) None: half the kernel.

        ``label``: in the names of its weights, instead of its number.
        """
        label = label or self.next_label("Conv")
        shape = (channels, x.channels // groups, kernel, kernel)
        inputs = [x, self.weight(f"{label}.weight", shape)]
        if bias:
            inputs.append(self.weight(f"{label}.bias", (channels,)))
        window = _Window(kernel, stride, pads or (kernel // 2,) * 4)
        size = (1, channels, *window.size(x))
        return self.add_node("Conv", inputs, size, group=groups, **window.attributes())

    def norm(self, x: ZooTensor, epsilon: float = 1e-5, label: str | None = None) -> ZooTensor:
        """Add a batch norm; ``label``: in the names of its weights, instead of its number."""
        label = label or self.next_label("BatchNormalization", "norm")
        parts = ("weight", "bias", "mean", "var")
        inputs = [x, *(self.weight(f"{label}.{part}", (x.channels,)) for part in parts)]
        return self.add_node("BatchNormalization", inputs, x.shape, epsilon=epsilon)

    def layer_norm(self, x: ZooTensor, epsilon: float = 1e-6) -> ZooTensor:
        """Add a layer norm over the last axis."""
        label = self.next_label("LayerNormalization", "layernorm")
        parts = [self.weight(f"{label}.{part}", x.shape[-1:]) for part in ("weight", "bias")]
        return self.add_node("LayerNormalization", [x, *parts], x.shape, axis=-1, epsilon=epsilon)

    def linear(self, x: ZooTensor, features: int) -> ZooTensor:
        """Add a fully connected layer with a bias, on one row."""
        label = self.next_label("Gemm", "linear")
        weight = self.weight(f"{label}.weight", (features, x.shape[1]))
        bias = self.weight(f"{label}.bias", (features,))
        return self.add_node("Gemm", [x, weight, bias], (1, features), transB=1)

    def dense(self, x: ZooTensor, features: int) -> ZooTensor:
        """Add a fully connected layer with a bias on the last axis of more than a row."""
        label = self.next_label("MatMul", "dense")
        weight = self.weight(f"{label}.weight", (x.shape[-1], features))
        bias = self.weight(f"{label}.bias", (features,))
        return self.add(bias, self.matmul(x, weight))

    def max_pool(
        self, x: ZooTensor, kernel: int, stride: int, pad: int = 0, ceil: bool = False
    ) -> ZooTensor:
        """Add a maximum pool; ``ceil``: the last window may hang over the edge."""
        window = _Window(kernel, stride, (pad,) * 4, ceil)
        shape = (*x.shape[:2], *window.size(x))
        extra = {"ceil_mode": 1} if ceil else {}
        return self.add_node("MaxPool", [x], shape, **window.attributes(), **extra)

    def average_pool(self, x: ZooTensor, kernel: int, stride: int, pad: int = 0) -> ZooTensor:
        """Add an average pool; what is padded does not count."""
        window = _Window(kernel, stride, (pad,) * 4)
        shape = (*x.shape[:2], *window.size(x))
        return self.add_node("AveragePool", [x], shape, **window.attributes())

    def global_pool(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("GlobalAveragePool", [x], (*x.shape[:2], 1, 1))

    def upsample(self, x: ZooTensor) -> ZooTensor:
        """Add twice the height and width, each number four times."""
        no_region, scales = (
            ZooTensor("", ()),
            self.constant("scales", np.array([1.0, 1.0, 2.0, 2.0])),
        )
        shape = (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
        return self.add_node(
            "Resize",
            [x, no_region, scales],
            shape,
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )

    def model(self, output: ZooTensor) -> onnx.ModelProto:
        """Return the skeleton of a classifier, whose one output is ``output``, called "logits"."""
        return self.skeleton({"logits": output}, self.recipe("crop"))

    def recipe(self, resize: Resize) -> dict[str, Any]:
        """Return how an image becomes the input, as an entry of the metadata; none where nobody said."""
        if self._pixels is None:
            return {}
        size = (self.image.shape[3], self.image.shape[2])
        recipe = Preprocess(size=size, resize=resize, mean=self._pixels.mean, std=self._pixels.std)
        return {PREPROCESS: recipe.model_dump(mode="json", exclude_defaults=True)}


@dataclass(frozen=True)
class _Window:
    """A square that moves over an image; ``pads`` are top, left, bottom, right."""

    kernel: int
    stride: int
    pads: tuple[int, ...]
    ceil: bool = False

    def size(self, x: ZooTensor) -> list[int]:
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
