"""An ONNX network run eagerly by PyTorch, operator by operator: what many users run on a GPU."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

Tensor = Any  # torch is not installed where most of this project is developed


class TorchModel:
    """The network of an ONNX file on the GPU, weights resident, float32 without TF32.

    Raises:
        ImportError: PyTorch is missing. ValueError: an operator has no counterpart here.
    """

    def __init__(self, path: Path, channels_last: bool) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self._torch = torch
        model = onnx.load(path)
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        # Sizes and scales are read on the CPU: from the GPU each would wait for all that runs there.
        sizes = {
            name
            for node in model.graph.node
            if node.op_type in ("Resize", "Split")
            for name in node.input[1:]
        }
        self._constants = {
            item.name: torch.from_numpy(numpy_helper.to_array(item).copy())
            for item in model.graph.initializer
        }
        for name in self._constants.keys() - sizes:
            self._constants[name] = self._moved(self._constants[name])
        self._nodes = [
            (node, {item.name: helper.get_attribute_value(item) for item in node.attribute})
            for node in model.graph.node
        ]
        self._input = model.graph.input[0].name
        self._outputs = [port.name for port in model.graph.output]
        missing = {node.op_type for node, _ in self._nodes} - set(_OPERATORS)
        if missing:
            raise ValueError(f"no PyTorch counterpart for {', '.join(sorted(missing))}")

    def _moved(self, tensor: Tensor) -> Tensor:
        moved = tensor.cuda()
        return moved.to(memory_format=self._format) if moved.dim() == 4 else moved

    def __call__(self, image: Tensor) -> list[Tensor]:
        """Run the network on ``image``, float32 [1, C, H, W] on the GPU."""
        with self._torch.inference_mode():
            values: dict[str, Tensor] = {**self._constants, self._input: self._moved(image)}
            for node, attributes in self._nodes:
                inputs = [values[name] if name else None for name in node.input]
                made = _OPERATORS[node.op_type](self._torch, inputs, attributes)
                results = made if isinstance(made, tuple | list) else [made]
                values.update(zip(node.output, results, strict=False))
            return [values[name] for name in self._outputs]


Attributes = Mapping[str, Any]
Operator = Callable[[Any, list[Tensor], Attributes], Any]


def _conv(torch: Any, inputs: list[Tensor], attributes: Attributes) -> Tensor:
    x, w = inputs[:2]
    pads = list(attributes.get("pads", [0, 0, 0, 0]))
    if pads[:2] != pads[2:]:
        x = torch.nn.functional.pad(x, (pads[1], pads[3], pads[0], pads[2]))
        pads = [0, 0, 0, 0]
    return torch.nn.functional.conv2d(
        x,
        w,
        inputs[2] if len(inputs) > 2 else None,
        stride=tuple(attributes.get("strides", (1, 1))),
        padding=tuple(pads[:2]),
        dilation=tuple(attributes.get("dilations", (1, 1))),
        groups=attributes.get("group", 1),
    )


def _norm(torch: Any, inputs: list[Tensor], attributes: Attributes) -> Tensor:
    x, scale, bias, mean, variance = inputs
    epsilon = attributes.get("epsilon", 1e-5)
    return torch.nn.functional.batch_norm(x, mean, variance, scale, bias, eps=epsilon)


def _max_pool(torch: Any, inputs: list[Tensor], attributes: Attributes) -> Tensor:
    pads = list(attributes.get("pads", [0, 0, 0, 0]))
    x = torch.nn.functional.pad(
        inputs[0], (pads[1], pads[3], pads[0], pads[2]), value=-float("inf")
    )
    kernel = tuple(attributes["kernel_shape"])
    return torch.nn.functional.max_pool2d(x, kernel, tuple(attributes.get("strides", (1, 1))))


def _resize(torch: Any, inputs: list[Tensor], attributes: Attributes) -> Tensor:
    given = [item for item in inputs[1:] if item is not None and item.numel()]
    scale = given[-1].tolist()[-1]
    if given[-1].dtype == torch.int64:
        scale /= inputs[0].shape[-1]
    return torch.nn.functional.interpolate(inputs[0], scale_factor=scale, mode="nearest")


def _gemm(torch: Any, inputs: list[Tensor], attributes: Attributes) -> Tensor:
    weight = inputs[1] if attributes.get("transB", 0) else inputs[1].T
    return torch.nn.functional.linear(inputs[0], weight, inputs[2] if len(inputs) > 2 else None)


def _constant(torch: Any, inputs: list[Tensor], attributes: Attributes) -> Tensor:
    [(kind, value)] = attributes.items()  # value, value_ints, value_float, ...
    return torch.tensor(numpy_helper.to_array(value) if kind == "value" else value)


_OPERATORS: dict[str, Operator] = {
    "Conv": _conv,
    "BatchNormalization": _norm,
    "Mish": lambda torch, inputs, attributes: torch.nn.functional.mish(inputs[0]),
    "LeakyRelu": lambda torch, inputs, attributes: torch.nn.functional.leaky_relu(
        inputs[0], attributes.get("alpha", 0.01)
    ),
    "Relu": lambda torch, inputs, attributes: torch.relu(inputs[0]),
    "Sigmoid": lambda torch, inputs, attributes: torch.sigmoid(inputs[0]),
    "Add": lambda torch, inputs, attributes: inputs[0] + inputs[1],
    "Mul": lambda torch, inputs, attributes: inputs[0] * inputs[1],
    "Concat": lambda torch, inputs, attributes: torch.cat(inputs, attributes["axis"]),
    "Split": lambda torch, inputs, attributes: torch.split(
        inputs[0], [int(part) for part in inputs[1].tolist()], attributes.get("axis", 0)
    ),
    "MaxPool": _max_pool,
    "GlobalAveragePool": lambda torch, inputs, attributes: inputs[0].mean((2, 3), keepdim=True),
    "Resize": _resize,
    "Flatten": lambda torch, inputs, attributes: inputs[0].flatten(1),
    "Gemm": _gemm,
    "Softmax": lambda torch, inputs, attributes: torch.softmax(
        inputs[0], attributes.get("axis", -1)
    ),
    "Constant": _constant,
}
