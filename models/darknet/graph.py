"""The nodes and constants of an ONNX graph, made one layer at a time, and activations.

Names are deterministic: "layer17.conv" is both the node and its output.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.graphs.onnx_writer import declare

OPSET = 18
IR_VERSION = 9

#: Channels, height, width.
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class WeightArray:
    """Float32 numbers that are together in a .weights file, with their shape in ONNX."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class DarknetValue:
    """A value of the graph: [1, channels, height, width], or [1, n] where ``flat``."""

    name: str
    shape: Shape
    flat: bool = False

    @property
    def dims(self) -> tuple[int, ...]:
        channels, height, width = self.shape
        return (1, channels * height * width) if self.flat else (1, *self.shape)


@dataclass
class DarknetGraph:
    """What was made so far."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    values: list[onnx.ValueInfoProto] = field(default_factory=list)


class LayerGraph:
    """Adds the nodes of one layer."""

    def __init__(self, graph: DarknetGraph, index: int) -> None:
        self._graph = graph
        self._prefix = f"layer{index}."

    def node(self, role: str, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        (output,) = self.nodes(role, operator, inputs, [role], **attributes)
        return output

    def nodes(
        self,
        role: str,
        operator: str,
        inputs: tuple[str, ...],
        outputs: list[str],
        **attributes: Any,
    ) -> list[str]:
        """Add a node called ``role`` with several ``outputs``; return their names."""
        names = [self._prefix + output for output in outputs]
        node = helper.make_node(operator, inputs, names, self._prefix + role, **attributes)
        self._graph.nodes.append(node)
        return names

    def weight(self, array: WeightArray) -> str:
        """Declare a weight of the layer."""
        self._graph.initializers.append(declare(array.name, array.shape))
        return array.name

    def scalar(self, role: str, value: float) -> str:
        """Add a float32 constant."""
        return self._constant(role, np.array(value, np.float32))

    def integers(self, role: str, *values: int) -> str:
        """Add a vector of int64."""
        return self._constant(role, np.array(values, np.int64))

    def _constant(self, role: str, value: np.ndarray[Any, Any]) -> str:
        name = self._prefix + role
        self._graph.initializers.append(numpy_helper.from_array(value, name))
        return name

    def flat(self, value: DarknetValue) -> DarknetValue:
        """Return ``value`` as [1, n]."""
        if value.flat:
            return value
        return DarknetValue(self.node("flatten", "Flatten", value.name), value.shape, flat=True)

    def spatial(self, value: DarknetValue, role: str = "image") -> DarknetValue:
        """Return ``value`` as [1, channels, height, width]."""
        if not value.flat:
            return value
        dims = self.integers(f"{role}.shape", 1, *value.shape)
        return DarknetValue(self.node(role, "Reshape", value.name, dims), value.shape)

    def finish(self, value: DarknetValue, output: str | None) -> DarknetValue:
        """Record the shape of the layer's ``value``; as a graph's ``output`` it gets that name."""
        if output is None:
            if value.name.startswith(self._prefix):
                self._graph.values.append(_info(value))
            return value
        made_here = self._graph.nodes and value.name.startswith(self._prefix)
        if made_here and self._graph.nodes[-1].output[0] == value.name:
            self._graph.nodes[-1].output[0] = output
        else:
            self.node("output", "Identity", value.name)
            self._graph.nodes[-1].output[0] = output
        return DarknetValue(output, value.shape, value.flat)


def _info(value: DarknetValue) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, TensorProto.FLOAT, value.dims)


def make_model(
    graph: DarknetGraph, name: str, image: DarknetValue, outputs: list[DarknetValue]
) -> onnx.ModelProto:
    """Return the model from ``image`` to ``outputs``."""
    made = helper.make_graph(
        graph.nodes,
        name,
        [_info(image)],
        [_info(output) for output in outputs],
        graph.initializers,
        value_info=graph.values,
    )
    return helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="layerstream",
    )


# Darknet's activations (activations.h) as ONNX nodes.

# activation -> operator and attributes
_SINGLE: dict[str, tuple[str, dict[str, float]]] = {
    "leaky": ("LeakyRelu", {"alpha": 0.1}),
    "relu": ("Relu", {}),
    "logistic": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
    "elu": ("Elu", {"alpha": 1.0}),
    "mish": ("Mish", {}),
    "selu": ("Selu", {"alpha": 1.6732, "gamma": 1.0507}),
}
ACTIVATIONS = ("linear", *_SINGLE, "swish", "relu6")


def activate(graph: LayerGraph, x: str, name: str) -> str:
    """Add the activation called ``name`` to ``x``; return the result's name."""
    if name == "linear":
        return x
    if name == "swish":
        return graph.node("swish", "Mul", x, graph.node("swish.sigmoid", "Sigmoid", x))
    if name == "relu6":
        bounds = graph.scalar("relu6.min", 0), graph.scalar("relu6.max", 6)
        return graph.node("relu6", "Clip", x, *bounds)
    operator, attributes = _SINGLE[name]
    return graph.node(name, operator, x, **attributes)
