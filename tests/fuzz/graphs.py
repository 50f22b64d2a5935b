"""Small ONNX graphs at random: what exporters write, and now and then what only looks like it.

Everything is drawn from one ``random.Random``, which hypothesis can also play.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]
Feeds = dict[str, NDArray[Any]]

_TYPES = {"float32": TensorProto.FLOAT, "bool": TensorProto.BOOL, "int64": TensorProto.INT64}


@dataclass(frozen=True)
class Value:
    """A float32 tensor of the graph; its shape is right as long as nothing wrong was drawn."""

    name: str
    shape: Shape


@dataclass(frozen=True)
class Case:
    """A model, what is asked of the compiler, and inputs."""

    model: onnx.ModelProto
    batch: int | None
    shapes: dict[str, Shape]
    feeds: Feeds
    quantised: bool


@dataclass
class Scope:
    """A graph that grows: the main one or a body. Names are drawn so that bodies meet those outside."""

    rng: random.Random
    numbers: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    optional: list[onnx.ValueInfoProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    names: list[int] = field(default_factory=lambda: [0])
    prefix: str = "v"
    depth: int = 0
    quantised: bool = False
    #: How often sizes are wrong.
    wrong: float = 0.03

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def name(self) -> str:
        self.names[0] += 1
        return f"{self.prefix}{self.names[0]}"

    def size(self, length: int) -> int:
        """Return ``length``, or seldom another."""
        return max(length + self.rng.choice((-1, 1)), 1) if self.chance(self.wrong) else length

    def node(
        self, kind: str, inputs: Sequence[str], shape: Shape, count: int = 1, **attributes: Any
    ) -> Value:
        """Add a node; return its first output, which has ``shape``."""
        outputs = [self.name() for _ in range(count)]
        made = helper.make_node(kind, list(inputs), outputs, **attributes)
        if self.chance(0.5):
            made.name = f"{kind}_{outputs[0]}"
        self.nodes.append(made)
        value = Value(outputs[0], shape)
        self.values.append(value)
        return value

    def weight(self, shape: Shape, scale: float | None = None) -> str:
        """Return the name of random numbers: an initializer, a Constant node, an input with a default."""
        fan = max(int(np.prod(shape[1:])), 1)
        factor = np.float32(fan**-0.5 if scale is None else scale)
        return self.constant(self.numbers.standard_normal(shape, np.float32) * factor)

    def constant(self, array: NDArray[Any]) -> str:
        name = self.name()
        tensor = numpy_helper.from_array(array, name)
        if self.chance(0.3):
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            return name
        self.weights.append(tensor)
        if self.depth == 0 and self.chance(0.08):
            self.optional.append(listed_weight(tensor))
        return name

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def pick(self, rank: int | None = None) -> Value | None:
        """Return one of the values, rather a late one."""
        known = [value for value in self.values if rank in (None, len(value.shape))]
        if not known:
            return None
        return known[-1] if self.chance(0.6) else self.rng.choice(known)

    def body(self, inputs: Sequence[Value] = ()) -> "Scope":
        """Return the scope of a body, which sees the values of this one."""
        # Two branches may use the same names; a name of the main graph is seldom drawn, and refused.
        inner = Scope(
            self.rng, self.numbers, prefix="v" if self.chance(0.05) else f"b{self.depth}_"
        )
        inner.values = [*self.values, *inputs]
        inner.depth, inner.wrong = self.depth + 1, self.wrong
        if inner.prefix != "v":
            inner.names = [0]
        else:
            inner.names = [self.names[0] // 2]
        return inner


def listed_weight(tensor: TensorProto) -> onnx.ValueInfoProto:
    """Return the input that an initializer is the default of."""
    return helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def port(name: str, dtype: str, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _TYPES[dtype], shape)
