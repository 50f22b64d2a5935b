"""Compact network definitions: each method adds one layer and returns the tensor it makes.

Weights are drawn from a seeded generator (He initialisation) in the order in which layers are
added, so one definition gives the same bytes on every machine.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17

# Of the weights of fully connected layers, as torchvision starts VGG: scores stay near 1.
LINEAR_DEVIATION = 0.01
IR_VERSION = 9


@dataclass(frozen=True)
class Tensor:
    """A value in the graph: its name and its shape (batch first)."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        return self.shape[1]


class Builder:
    """Builds one ONNX graph with a single image input "image" [1, 3, resolution, resolution]."""

    def __init__(self, name: str, resolution: int, seed: int = 0) -> None:
        self._name = name
        self._generator = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, NDArray[np.float32]] = {}
        self.image = Tensor("image", (1, 3, resolution, resolution))

    def conv(
        self, x: Tensor, channels: int, kernel: int, stride: int = 1, bias: bool = False
    ) -> Tensor:
        """Add a square convolution padded to keep the size at stride 1."""
        fan_in = x.channels * kernel * kernel
        label = f"conv{self._count('Conv') + 1}"
        inputs = [x.name, self._normal(f"{label}.weight", (channels, x.channels, kernel, kernel))]
        self._weights[inputs[1]] *= np.float32(math.sqrt(2 / fan_in))
        if bias:
            inputs.append(self._constant(f"{label}.bias", np.zeros(channels)))
        pad = kernel // 2
        size = [(length + 2 * pad - kernel) // stride + 1 for length in x.shape[2:]]
        return self._add(
            "Conv",
            inputs,
            (1, channels, *size),
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
        )

    def norm(self, x: Tensor, gain: float = 1.0) -> Tensor:
        """Add a batch norm whose scale is ``gain``; statistics are those of a unit input."""
        label = f"norm{self._count('BatchNormalization') + 1}"
        values = {"weight": gain, "bias": 0.0, "mean": 0.0, "var": 1.0}
        inputs = [
            self._constant(f"{label}.{part}", np.full(x.channels, value))
            for part, value in values.items()
        ]
        return self._add("BatchNormalization", [x.name, *inputs], x.shape, epsilon=1e-5)

    def relu(self, x: Tensor) -> Tensor:
        return self._add("Relu", [x.name], x.shape)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self._add("Add", [x.name, y.name], x.shape)

    def max_pool(self, x: Tensor, kernel: int, stride: int, pad: int = 0) -> Tensor:
        size = [(length + 2 * pad - kernel) // stride + 1 for length in x.shape[2:]]
        return self._add(
            "MaxPool",
            [x.name],
            (*x.shape[:2], *size),
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
        )

    def global_pool(self, x: Tensor) -> Tensor:
        return self._add("GlobalAveragePool", [x.name], (*x.shape[:2], 1, 1))

    def flatten(self, x: Tensor) -> Tensor:
        return self._add("Flatten", [x.name], (1, math.prod(x.shape[1:])))

    def linear(self, x: Tensor, features: int) -> Tensor:
        """Add a fully connected layer with a bias."""
        label = f"linear{self._count('Gemm') + 1}"
        weight = self._normal(f"{label}.weight", (features, x.shape[1]))
        self._weights[weight] *= np.float32(LINEAR_DEVIATION)
        bias = self._constant(f"{label}.bias", np.zeros(features))
        return self._add("Gemm", [x.name, weight, bias], (1, features), transB=1)

    def model(self, output: Tensor, name: str = "logits") -> onnx.ModelProto:
        """Return the checked model whose one output is ``output``, renamed ``name``."""
        self._nodes[-1].output[0] = name
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, self.image.shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, output.shape)],
            [numpy_helper.from_array(value, key) for key, value in self._weights.items()],
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="layerstream",
        )

    def _count(self, kind: str) -> int:
        return sum(node.op_type == kind for node in self._nodes)

    def _normal(self, name: str, shape: tuple[int, ...]) -> str:
        self._weights[name] = self._generator.standard_normal(shape, dtype=np.float32)
        return name

    def _constant(self, name: str, value: NDArray[np.float64]) -> str:
        self._weights[name] = value.astype(np.float32)
        return name

    def _add(
        self, kind: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any
    ) -> Tensor:
        name = f"{kind.lower()}{self._count(kind) + 1}"
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return Tensor(name, shape)


# A protobuf message cannot exceed 2 GiB; weights beyond this go into a file beside the model.
EXTERNAL_DATA_BYTES = 1 << 30


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write ``model`` to ``path``; weights of 1 GiB and more go to ``path`` + ".data"."""
    onnx.save(
        model,
        path,
        save_as_external_data=model.ByteSize() >= EXTERNAL_DATA_BYTES,
        location=path.name + ".data",
    )
