"""A skeleton of the zoo as a PyTorch module: what is trained is the graph that is written as ONNX.

Each node becomes a call of PyTorch's; weights keep their names, so training ends with `write_onnx`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

from models.graphs.onnx_writer import declared, write_onnx
from models.initial import draw

Given = list[Tensor | None]
_MOMENTUM = 0.1
_STATISTICS = slice(3, 5)  # inputs of BatchNormalization


class SkeletonModule(nn.Module):
    """Runs the nodes of ``skeleton`` on batches; mean and variance of batch norms are buffers.

    Weights are drawn as `models.initial` draws them, seeded by name, but not calibrated; ``biases``: those
    that begin otherwise than at zero, by name.
    """

    def __init__(
        self,
        skeleton: onnx.ModelProto,
        seed: int,
        biases: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> None:
        super().__init__()
        self.skeleton = skeleton
        self._nodes = [_Node(node) for node in skeleton.graph.node]
        shapes = declared(skeleton)
        self.constants = {
            tensor.name: numpy_helper.to_array(tensor).copy()  # PyTorch needs writable memory
            for tensor in skeleton.graph.initializer
            if tensor.name not in shapes
        }
        self._own: dict[str, str] = {}
        for name, array in {**self._drawn(shapes, seed), **(biases or {})}.items():
            self._own[name] = name.replace(".", "_")
            value = _channels_last(torch.from_numpy(array))
            if name in self._statistics():
                self.register_buffer(self._own[name], value)
            else:
                self.register_parameter(self._own[name], nn.Parameter(value))

    def _statistics(self) -> set[str]:
        norms = (n.proto for n in self._nodes if n.proto.op_type == "BatchNormalization")
        return {name for node in norms for name in node.input[_STATISTICS]}

    def _drawn(self, shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
        """Return each weight; a batch norm begins with scale 1 and bias 0."""
        drawn = {}
        for node in self.skeleton.graph.node:
            for position, name in enumerate(node.input):
                if name not in shapes or name in drawn:
                    continue
                array = draw(name, shapes[name], node, position, seed)
                if node.op_type == "BatchNormalization":
                    array = np.full(shapes[name], 1.0 if position in (1, 4) else 0.0, np.float32)
                elif position > 1:
                    array = np.zeros(shapes[name], np.float32)
                drawn[name] = array
        return drawn

    def forward(self, image: Tensor, wanted: Sequence[str]) -> list[Tensor]:
        """Return the values ``wanted``, by their names in the graph, for ``image`` [N, 3, h, w]."""
        values: dict[str, Any] = {"image": _channels_last(image)}
        values |= {name: getattr(self, own) for name, own in self._own.items()}
        values |= self.constants
        for node in self._nodes:
            made = node.run([values[name] if name else None for name in node.inputs], self.training)
            values.update(zip(node.outputs, made, strict=True))
        return [values[name] for name in wanted]

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights as `write_onnx` takes them."""
        return {
            name: getattr(self, own).detach().contiguous().numpy()
            for name, own in self._own.items()
        }

    def export(self, path: Path) -> None:
        """Write the trained network as ONNX."""
        write_onnx(self.skeleton, self.weights(), path)


def _channels_last(value: Tensor) -> Tensor:
    """Return ``value`` as PyTorch's CPU kernels take it best: 0.6 to 0.7 of the time of a step."""
    return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value


class _Node:
    """One node; raises NotImplementedError for an operator that is not trained here."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self.proto = node
        self.inputs, self.outputs = list(node.input), list(node.output)
        given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type not in _OPERATORS:
            raise NotImplementedError(f"{node.op_type} ({node.name}) is not trained here")
        self._given = given
        self._operator = _OPERATORS[node.op_type]

    def run(self, inputs: list[Any], training: bool) -> Sequence[Tensor]:
        made = self._operator(inputs, {**self._given, "training": training})
        return made if isinstance(made, tuple) else (made,)


def _conv(inputs: list[Any], given: Mapping[str, Any]) -> Tensor:
    x, weight, bias = (*inputs, None)[:3]
    top, left, bottom, right = given["pads"]
    if (top, left) != (bottom, right):
        x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
    return F.conv2d(x, weight, bias, given["strides"], (top, left), 1, given.get("group", 1))


def _norm(inputs: list[Any], given: Mapping[str, Any]) -> Tensor:
    x, weight, bias, mean, variance = inputs
    return F.batch_norm(
        x, mean, variance, weight, bias, given["training"], _MOMENTUM, given["epsilon"]
    )


def _slice(inputs: list[Any], given: Mapping[str, Any]) -> Tensor:
    x, starts, ends, axes = inputs
    for start, end, axis in zip(starts, ends, axes, strict=True):
        x = x.narrow(int(axis), int(start), int(end - start))
    return x


def _reshape(inputs: list[Any], given: Mapping[str, Any]) -> Tensor:
    """The first axis is the batch, one image in the skeleton."""
    x, shape = inputs
    return x.reshape(len(x), *map(int, shape[1:]))


def _numbers(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _both(function: Callable[[Any, Any], Tensor]) -> Callable[..., Tensor]:
    return lambda inputs, given: function(_numbers(inputs[0]), _numbers(inputs[1]))


_OPERATORS: dict[str, Callable[[list[Any], Mapping[str, Any]], Any]] = {
    "Add": _both(torch.add),
    "BatchNormalization": _norm,
    "Cast": lambda inputs, given: _numbers(inputs[0]).float(),
    "Clip": lambda inputs, given: F.hardtanh(inputs[0], float(inputs[1]), float(inputs[2])),
    "Concat": lambda inputs, given: torch.cat(inputs, given["axis"]),
    "Conv": _conv,
    "Div": _both(torch.div),
    "Exp": lambda inputs, given: inputs[0].exp(),
    "Flatten": lambda inputs, given: inputs[0].flatten(1),
    "Gemm": lambda inputs, given: F.linear(*inputs),
    "GlobalAveragePool": lambda inputs, given: inputs[0].mean((2, 3), keepdim=True),
    "Mul": _both(torch.mul),
    "Reshape": _reshape,
    "Sigmoid": lambda inputs, given: inputs[0].sigmoid(),
    "Slice": _slice,
    "Split": lambda inputs, given: inputs[0].split([int(n) for n in inputs[1]], given["axis"]),
    "Sub": _both(torch.sub),
    "Transpose": lambda inputs, given: inputs[0].permute(given["perm"]),
}
