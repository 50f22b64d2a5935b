"""Write the trained default model as ONNX: batch norms folded, one node a line of the network."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weight and bias of the convolution that equals ``norm(conv(x))`` in inference."""
    assert norm.running_mean is not None and norm.running_var is not None
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = conv.weight * factor[:, None, None, None]
    bias = norm.bias - norm.running_mean * factor
    return weight.detach().contiguous().numpy(), bias.detach().numpy()


class Writer:
    """Collects nodes and initializers; every method returns the name of the tensor it adds."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def node(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        output = output or f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, value: NDArray[np.float32]) -> str:
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def conv_relu(self, x: str, layer: nn.Sequential) -> str:
        conv, norm = layer[0], layer[1]
        assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        weight, bias = fold(conv, norm)
        label = f"conv{len(self.initializers) // 2 + 1}"
        names = [
            self.constant(f"{label}.weight", weight),
            self.constant(f"{label}.bias", bias),
        ]
        stride = int(conv.stride[0])
        y = self.node(
            "Conv", [x, *names], kernel_shape=[3, 3], pads=[1] * 4, strides=[stride, stride]
        )
        return self.node("Relu", [y])


def export_onnx(model: nn.Sequential, path: Path) -> None:
    """Write ``model`` (a SmallResNet) to ``path``: input "image" [1, 3, 32, 32], output "logits"."""
    writer, x = Writer(), "image"
    for layer in model:
        if isinstance(layer, nn.Sequential):
            x = writer.conv_relu(x, layer)
        elif hasattr(layer, "first"):
            y = writer.conv_relu(writer.conv_relu(x, layer.first), layer.second)
            x = writer.node("Add", [x, y])
    x = writer.node("GlobalMaxPool", [x])
    x = writer.node("Flatten", [x])
    classifier = model[-1]
    assert isinstance(classifier, nn.Linear)
    weight = writer.constant("classifier.weight", classifier.weight.detach().numpy())
    bias = writer.constant("classifier.bias", classifier.bias.detach().numpy())
    writer.node("Gemm", [x, weight, bias], "logits", transB=1)
    graph = helper.make_graph(
        writer.nodes,
        "cifar10",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])],
        writer.initializers,
    )
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="layerstream"
    )
    proto.ir_version = 9
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, path)
