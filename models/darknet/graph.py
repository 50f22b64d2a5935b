"""The nodes and constants of an ONNX graph, made one layer at a time, and activations that ONNX lacks.

Names are deterministic: "layer17.conv" is both the node and its output.
"""

import math
from collections.abc import Callable
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


# Darknet's activations (activations.h) as ONNX nodes; those ONNX lacks are made of several.

# Of float32.
_LARGEST = 3.4028234663852886e38

# activation -> operator and attributes
_SINGLE: dict[str, tuple[str, dict[str, float]]] = {
    "leaky": ("LeakyRelu", {"alpha": 0.1}),
    "revleaky": ("LeakyRelu", {"alpha": 0.1}),  # differs from leaky in training only
    "relie": ("LeakyRelu", {"alpha": 0.01}),
    "relu": ("Relu", {}),
    "logistic": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
    "elu": ("Elu", {"alpha": 1.0}),
    "mish": ("Mish", {}),
    "selu": ("Selu", {"alpha": 1.6732, "gamma": 1.0507}),
}


def activate(graph: LayerGraph, x: str, name: str) -> str:
    """Add the activation called ``name`` to ``x``; return the result's name."""
    if name == "linear":
        return x
    if name in _SINGLE:
        operator, attributes = _SINGLE[name]
        return graph.node(name, operator, x, **attributes)
    return _COMPOSED[name](graph, x)


def _swish(graph: LayerGraph, x: str) -> str:
    return graph.node("swish", "Mul", x, graph.node("swish.sigmoid", "Sigmoid", x))


def _gelu(graph: LayerGraph, x: str) -> str:
    """With Darknet's digits: x / 2 * (1 + tanh(0.797885 x + 0.035677 x^3))."""
    square = graph.node("gelu.square", "Mul", x, x)
    cubic = graph.node("gelu.cubic", "Mul", square, graph.scalar("gelu.c", 0.035677))
    factor = graph.node("gelu.factor", "Add", cubic, graph.scalar("gelu.b", 0.797885))
    tanh = graph.node("gelu.tanh", "Tanh", graph.node("gelu.inner", "Mul", x, factor))
    share = graph.node("gelu.share", "Add", tanh, graph.scalar("gelu.one", 1))
    half = graph.node("gelu.half", "Mul", x, graph.scalar("gelu.a", 0.5))
    return graph.node("gelu", "Mul", half, share)


def _clip(graph: LayerGraph, x: str, role: str, least: float, most: float) -> str:
    bounds = graph.scalar(f"{role}.min", least), graph.scalar(f"{role}.max", most)
    return graph.node(role, "Clip", x, *bounds)


def _relu6(graph: LayerGraph, x: str) -> str:
    return _clip(graph, x, "relu6", 0, 6)


def _hardtan(graph: LayerGraph, x: str) -> str:
    return _clip(graph, x, "hardtan", -1, 1)


def _ramp(graph: LayerGraph, x: str) -> str:
    """Above 0 x + x / 10, x / 10 below."""
    tenth = graph.node("ramp.tenth", "Mul", x, graph.scalar("ramp.slope", 0.1))
    return graph.node("ramp", "Add", graph.node("ramp.relu", "Relu", x), tenth)


def _loggy(graph: LayerGraph, x: str) -> str:
    """2 / (1 + exp(-x)) - 1."""
    double = graph.node(
        "loggy.double",
        "Mul",
        graph.node("loggy.sigmoid", "Sigmoid", x),
        graph.scalar("loggy.two", 2),
    )
    return graph.node("loggy", "Sub", double, graph.scalar("loggy.one", 1))


def _hard_mish(graph: LayerGraph, x: str) -> str:
    """Above 0 x, x^2 / 2 + x from -2 to 0, 0 below."""
    part = _clip(graph, x, "hard_mish.part", -2, 0)
    half = graph.node("hard_mish.half", "Mul", part, graph.scalar("hard_mish.a", 0.5))
    curve = graph.node("hard_mish.curve", "Mul", half, part)
    above = _clip(graph, x, "hard_mish.line", -2, _LARGEST)
    return graph.node("hard_mish", "Add", curve, above)


def _plse(graph: LayerGraph, x: str) -> str:
    """From -4 to 4 x / 8 + 1 / 2; beyond, a slope of 0.01 from 0 and from 1."""
    line = _clip(graph, x, "plse.part", -4, 4)
    eighth = graph.node("plse.line", "Mul", line, graph.scalar("plse.slope", 0.125))
    middle = graph.node("plse.middle", "Add", eighth, graph.scalar("plse.half", 0.5))
    return _with_tails(graph, x, "plse", line, middle, 0.01)


def _lhtan(graph: LayerGraph, x: str) -> str:
    """From 0 to 1 x; beyond, a slope of 0.001."""
    line = _clip(graph, x, "lhtan.part", 0, 1)
    return _with_tails(graph, x, "lhtan", line, line, 0.001)


def _with_tails(
    graph: LayerGraph, x: str, role: str, clipped: str, middle: str, slope: float
) -> str:
    """Return ``middle`` plus ``slope`` times what was cut off ``x`` when it was ``clipped``."""
    beyond = graph.node(f"{role}.beyond", "Sub", x, clipped)
    tails = graph.node(f"{role}.tails", "Mul", beyond, graph.scalar(f"{role}.tail", slope))
    return graph.node(role, "Add", middle, tails)


def _stair(graph: LayerGraph, x: str) -> str:
    """With n = floor(x): floor(x / 2) plus, where n is odd, x - n."""
    half = graph.node("stair.half", "Mul", x, graph.scalar("stair.a", 0.5))
    step = graph.node("stair.step", "Floor", half)
    n = graph.node("stair.n", "Floor", x)
    even = graph.node("stair.even", "Mul", step, graph.scalar("stair.two", 2))
    odd = graph.node("stair.odd", "Sub", n, even)
    rise = graph.node("stair.rise", "Mul", odd, graph.node("stair.rest", "Sub", x, n))
    return graph.node("stair", "Add", step, rise)


_COMPOSED: dict[str, Callable[[LayerGraph, str], str]] = {
    "swish": _swish,
    "gelu": _gelu,
    "relu6": _relu6,
    "hardtan": _hardtan,
    "ramp": _ramp,
    "loggy": _loggy,
    "hard_mish": _hard_mish,
    "plse": _plse,
    "lhtan": _lhtan,
    "stair": _stair,
}

#: All names that a section may give.
ACTIVATIONS = ("linear", *_SINGLE, *_COMPOSED)
