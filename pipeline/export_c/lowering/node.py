"""A node that becomes steps: what it is given, what it makes, and how it says that it cannot."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from models.network.fields import Array
from pipeline.devices.operators.base import Call
from pipeline.devices.operators.window import Window, window
from pipeline.export_c.errors import ExportError
from pipeline.export_c.lowering.steps import After, Argument, Same, Step, Value, Weight
from pipeline.export_c.network.network import Network, Node

Shape = tuple[int, ...]


@dataclass
class Lowering:
    """What was lowered so far: dtype and shape of all values, constants and those that were computed."""

    network: Network
    values: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


class Operation:
    """A node at work."""

    def __init__(self, lowering: Lowering, node: Node) -> None:
        self.node = node
        self._lowering = lowering

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error that names the node and says why it cannot become C."""
        raise ExportError(
            f"{self._lowering.network.name}: node {self.node.label!r} ({self.node.operator}): {reason}"
        )

    def has(self, position: int) -> bool:
        """Return whether input ``position`` is given."""
        return position < len(self.node.inputs) and bool(self.node.inputs[position])

    def name(self, position: int) -> str:
        if not self.has(position):
            self.refuse(f"input {position} is missing")
        return self.node.inputs[position]

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def array(self, position: int) -> Array:
        """Return dtype and shape of an input."""
        name = self.name(position)
        constant = self._lowering.constants.get(name)
        if constant is not None:
            return Array(dtype=constant.dtype.name, shape=constant.shape)
        if name not in self._lowering.values:
            self.refuse(f"input {name!r} is not known")
        return self._lowering.values[name]

    def shape(self, position: int) -> Shape:
        return self.array(position).shape

    def is_constant(self, position: int) -> bool:
        return self.has(position) and self.name(position) in self._lowering.constants

    def constant(self, position: int) -> NDArray[Any]:
        """Return the constant that input ``position`` must be."""
        if not self.is_constant(position):
            self.refuse(f"input {position}, {self.name(position)!r}, is not constant")
        return self._lowering.constants[self.name(position)]

    def optional(self, position: int) -> NDArray[Any] | None:
        return self.constant(position) if self.has(position) else None

    def integers(self, position: int, name: str) -> list[int] | None:
        """Return a list that is an input in new operator sets and attribute ``name`` in old ones."""
        if self.has(position):
            return [int(number) for number in self.constant(position).reshape(-1)]
        values = self.attribute(name)
        return None if values is None else [int(number) for number in values]

    def operand(self, position: int) -> Value | Weight:
        """Return a pointer to an input, of which all is read."""
        if self.is_constant(position):
            return Weight(np.ascontiguousarray(self.constant(position)))
        return Value(self.name(position))

    def window(self, kernel: Sequence[int], size: Shape | None = None) -> Window:
        """Return where windows of ``kernel`` lie; ``size``: rows and columns, None: of the first input."""
        attributes: Mapping[str, Any] = self.node.attributes
        call = Call((), attributes, self.node.opset, 1, 1)
        try:
            return window(call, kernel, self.shape(0)[2:] if size is None else size)
        except ValueError as exc:
            self.refuse(str(exc))

    def floats(self, *positions: int) -> None:
        """Check that inputs are 32-bit floats."""
        for position in positions:
            if self.array(position).dtype != "float32":
                self.refuse(f"input {position} is {self.array(position).dtype}, not float32")

    def make(self, shape: Shape, dtype: str = "float32", output: int = 0) -> str:
        """Say what an output is; return its name."""
        name = self.node.outputs[output]
        self._lowering.values[name] = Array(dtype=dtype, shape=tuple(map(int, shape)))
        return name

    def make_other(self, name: str, array: Array) -> None:
        """Say what ``name`` is, which the node makes beside its outputs."""
        self._lowering.values[name] = array

    def on(self, inputs: Sequence[str], output: str | None = None) -> "Operation":
        """Return the same operation on other inputs; ``output``: what it makes of them, None: the same."""
        outputs = self.node.outputs if output is None else (output,)
        return Operation(self._lowering, replace(self.node, inputs=tuple(inputs), outputs=outputs))

    def fold(self, array: NDArray[Any], name: str | None = None) -> None:
        """Make ``name`` a constant, None: the output."""
        self._lowering.constants[name or self.node.output] = array

    def step(
        self,
        kernel: str,
        *arguments: Argument,
        output: str | None = None,
        in_place: Sequence[str] = (),
        pointwise: bool = False,
        same: Same | None = None,
        after: After | None = None,
    ) -> None:
        """Add a step; it makes ``output``, None: the first output of the node."""
        for item in arguments:
            if isinstance(item, Value) and item.name not in self._lowering.values:
                self.refuse(f"{item.name!r} is constant")
        made = output or self.node.output
        self._lowering.steps.append(
            Step(self.node.label, kernel, arguments, made, tuple(in_place), pointwise, same, after)
        )


def items(shape: Sequence[int]) -> int:
    """Return how many elements ``shape`` has."""
    return math.prod(shape)
