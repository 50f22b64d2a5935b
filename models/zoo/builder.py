"""Compact network definitions: each method adds one layer and returns the tensor it makes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.graphs.metadata import PREPROCESS, write_metadata
from models.graphs.onnx_writer import declare
from models.images.placement import Resize
from models.images.preprocess import Preprocess
from models.network.windows import windows_of
from models.records import plain

# A network under construction: nodes, weights that are declared and not drawn, constants of formulas.
#
# What comes out is a skeleton (models/graphs/onnx_writer.py).

OPSET = 17
IR_VERSION = 9

Shape = tuple[int, ...]
#: Side of a square image, or height and width.
Resolution = int | tuple[int, int]


@dataclass(frozen=True)
class ZooTensor:
    """A value in the graph: its name and its shape (batch first)."""

    name: str
    shape: Shape

    @property
    def channels(self) -> int:
        return self.shape[1]


@dataclass(frozen=True)
class ColourScale:
    """How colours (0 to 255) become numbers: (colour - mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


#: Mean and deviation of ImageNet's colours, as torchvision's networks take them.
IMAGENET = ColourScale((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
#: From -1 to 1, as Keras' and TensorFlow's networks take them.
SIGNED = ColourScale((127.5,), (127.5,))


class SkeletonBuilder:
    """Builds one skeleton: nodes in the order of execution, on an image "image" [1, 3, height, width].

    A method adds an operator, a function of several, or a layer with weights, and returns what it makes.
    """

    def __init__(
        self, name: str, resolution: Resolution, pixels: ColourScale | None = None
    ) -> None:
        self._name = name
        self._pixels = pixels
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: dict[str, TensorProto] = {}
        sides = (resolution,) * 2 if isinstance(resolution, int) else resolution
        self.image = ZooTensor("image", (1, 3, *sides))

    def weight(self, name: str, shape: Shape) -> ZooTensor:
        """Declare numbers that training would find."""
        self._tensors[name] = declare(name, shape)
        return ZooTensor(name, shape)

    def constant(self, name: str, values: NDArray[Any] | float | Sequence[int]) -> ZooTensor:
        """Add numbers of a formula; real ones become float32. The name is taken once.

        Arrays of real numbers count as trained (models/graphs/traits.py), unless the operator that
        reads them is not trained: `whole_numbers` makes such constants.
        """
        array = np.asarray(values)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        self._tensors.setdefault(name, numpy_helper.from_array(array, name))
        return ZooTensor(name, array.shape)

    def add_node(
        self, kind: str, inputs: Sequence[ZooTensor], shape: Shape, **attributes: Any
    ) -> ZooTensor:
        """Add a node with one output of ``shape``."""
        return self.add_nodes(kind, inputs, [shape], **attributes)[0]

    def add_nodes(
        self, kind: str, inputs: Sequence[ZooTensor], shapes: Sequence[Shape], **attributes: Any
    ) -> list[ZooTensor]:
        """Add a node with an output of each of ``shapes``."""
        label = self.next_label(kind)
        names = [label if not index else f"{label}.{index}" for index in range(len(shapes))]
        read = [tensor.name for tensor in inputs]
        self._nodes.append(helper.make_node(kind, read, names, name=label, **attributes))
        return [ZooTensor(name, shape) for name, shape in zip(names, shapes, strict=True)]

    def next_label(self, kind: str, name: str | None = None) -> str:
        """Return what the next node of ``kind`` is called; ``name``: in the names of its weights."""
        count = sum(node.op_type == kind for node in self._nodes)
        return f"{name or kind.lower()}{count + 1}"

    def skeleton(
        self, outputs: Mapping[str, ZooTensor], metadata: Mapping[str, Any]
    ) -> onnx.ModelProto:
        """Return the model with ``outputs`` under their names, and with ``metadata``."""
        renamed = {tensor.name: name for name, tensor in outputs.items()}
        for node in self._nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, self.image.shape)],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, tensor.shape)
                for name, tensor in outputs.items()
            ],
            list(self._tensors.values()),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="layerstream",
        )
        write_metadata(model, metadata)
        return model

    # Operators without weights, each as the usual exporters (torch.onnx, operator set 17) write it.

    def relu(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("Relu", [x], x.shape)

    def relu6(self, x: ZooTensor) -> ZooTensor:
        return self.add_node(
            "Clip", [x, self.constant("zero", 0.0), self.constant("six", 6.0)], x.shape
        )

    def sigmoid(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("Sigmoid", [x], x.shape)

    def silu(self, x: ZooTensor) -> ZooTensor:
        return self.mul(x, self.sigmoid(x))

    def hard_sigmoid(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("HardSigmoid", [x], x.shape, alpha=1 / 6, beta=0.5)

    def hard_swish(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("HardSwish", [x], x.shape)

    def gelu(self, x: ZooTensor) -> ZooTensor:
        """Add x / 2 (1 + erf(x / sqrt 2)): operator set 17 has no Gelu."""
        erf = self.add_node("Erf", [self.div(x, self.constant("sqrt2", math.sqrt(2)))], x.shape)
        wide = self.mul(x, self.add(erf, self.constant("one", 1.0)))
        return self.mul(wide, self.constant("half", 0.5))

    def softmax(self, x: ZooTensor, axis: int) -> ZooTensor:
        return self.add_node("Softmax", [x], x.shape, axis=axis)

    def add(self, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        return self._elements("Add", x, y)

    def sub(self, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        return self._elements("Sub", x, y)

    def mul(self, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        """Add a product; ``y`` may be one number for each channel of ``x``."""
        return self._elements("Mul", x, y)

    def div(self, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        return self._elements("Div", x, y)

    def square(self, x: ZooTensor) -> ZooTensor:
        return self._elements("Pow", x, self.constant("two", 2.0))

    def matmul(self, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        """Add the product of the matrices in the last two axes."""
        before = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        return self.add_node("MatMul", [x, y], (*before, x.shape[-2], y.shape[-1]))

    def concat(self, *parts: ZooTensor, axis: int = 1) -> ZooTensor:
        """Join tensors, by default along the channels."""
        first = parts[0].shape
        total = sum(part.shape[axis] for part in parts)
        shape = (*first[:axis], total, *first[axis + 1 :])
        return self.add_node("Concat", parts, shape, axis=axis)

    def split(self, x: ZooTensor, sizes: Sequence[int], axis: int = 1) -> list[ZooTensor]:
        """Take ``x`` apart, by default along the channels."""
        label = self.next_label("Split")
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        given = self.constant(f"{label}.sizes", sizes)
        return self.add_nodes("Split", [x, given], shapes, axis=axis)

    def reshape(self, x: ZooTensor, *shape: int) -> ZooTensor:
        """Give ``x`` another shape of as many elements; -1 is what is left."""
        left = math.prod(x.shape) // math.prod(size for size in shape if size > 0)
        given = self.constant(f"{self.next_label('Reshape')}.shape", shape)
        known = tuple(left if size < 0 else size for size in shape)
        return self.add_node("Reshape", [x, given], known)

    def squeeze(self, x: ZooTensor, axis: int) -> ZooTensor:
        """Take away ``axis``, which has one element."""
        axes = self.constant(f"axes{axis}", [axis])
        return self.add_node("Squeeze", [x, axes], (*x.shape[:axis], *x.shape[axis + 1 :]))

    def transpose(self, x: ZooTensor, *axes: int) -> ZooTensor:
        return self.add_node("Transpose", [x], tuple(x.shape[axis] for axis in axes), perm=axes)

    def take(self, x: ZooTensor, index: int, axis: int) -> ZooTensor:
        """Take one element of ``axis``, which goes."""
        where = self.constant(f"index{index}", np.array(index))
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        return self.add_node("Gather", [x, where], shape, axis=axis)

    def crop(self, x: ZooTensor, top: int, left: int, height: int, width: int) -> ZooTensor:
        """Take rows [top, top + height) and columns [left, left + width) of a feature map."""
        label = self.next_label("Slice")
        starts = self.constant(f"{label}.starts", (top, left))
        ends = self.constant(f"{label}.ends", (top + height, left + width))
        inputs = [x, starts, ends, self.constant("rows_columns", (2, 3))]
        return self.add_node("Slice", inputs, (*x.shape[:2], height, width))

    def whole_numbers(self, name: str, values: Sequence[int] | np.ndarray) -> ZooTensor:
        """Add whole numbers of a formula as real ones: a cast, so that they do not count as trained."""
        given = self.constant(name, values)
        return self.add_node("Cast", [given], given.shape, to=1)

    def flatten(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("Flatten", [x], (1, math.prod(x.shape[1:])))

    def _elements(self, kind: str, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        return self.add_node(kind, [x, y], np.broadcast_shapes(x.shape, y.shape))

    # Layers.

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
        given = _given(kernel, stride, pads or (kernel // 2,) * 4)
        size = (1, channels, *_size(x, given))
        return self.add_node("Conv", inputs, size, group=groups, **given)

    def norm(self, x: ZooTensor, epsilon: float = 1e-5, label: str | None = None) -> ZooTensor:
        """Add a batch norm; ``label``: in the names of its weights, instead of its number."""
        label = label or self.next_label("BatchNormalization", "norm")
        parts = ("weight", "bias", "mean", "var")
        inputs = [x, *(self.weight(f"{label}.{part}", (x.channels,)) for part in parts)]
        return self.add_node("BatchNormalization", inputs, x.shape, epsilon=epsilon)

    def layer_norm(self, x: ZooTensor) -> ZooTensor:
        """Add a layer norm over the last axis."""
        label = self.next_label("LayerNormalization", "layernorm")
        parts = [self.weight(f"{label}.{part}", x.shape[-1:]) for part in ("weight", "bias")]
        return self.add_node("LayerNormalization", [x, *parts], x.shape, axis=-1, epsilon=1e-6)

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
        given = {**_given(kernel, stride, (pad,) * 4), **({"ceil_mode": 1} if ceil else {})}
        return self.add_node("MaxPool", [x], (*x.shape[:2], *_size(x, given)), **given)

    def average_pool(self, x: ZooTensor, kernel: int, stride: int, pad: int = 0) -> ZooTensor:
        """Add an average pool; what is padded does not count."""
        given = _given(kernel, stride, (pad,) * 4)
        return self.add_node("AveragePool", [x], (*x.shape[:2], *_size(x, given)), **given)

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
        """Return how an image becomes the input, as an entry of the metadata; empty: not given."""
        if self._pixels is None:
            return {}
        size = (self.image.shape[3], self.image.shape[2])
        recipe = Preprocess(size=size, resize=resize, mean=self._pixels.mean, std=self._pixels.std)
        return {PREPROCESS: plain(recipe, without_defaults=True)}


def _given(kernel: int, stride: int, pads: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of square windows; ``pads`` are top, left, bottom, right."""
    return {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": list(pads)}


def _size(x: ZooTensor, given: Mapping[str, Any]) -> Shape:
    """Return height and width of what windows with the attributes ``given`` make of ``x``."""
    return windows_of(given, given["kernel_shape"], x.shape[2:]).result
