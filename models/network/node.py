"""A node of an ONNX graph with what it computes and what is known around it, as all passes read it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.network.fields import Array, Name
from models.network.records import OperatorRecord
from models.network.windows import WindowError, Windows, windows_of

Shape = tuple[int, ...]


class UnsuitedError(ValueError):
    """What a node says is not known here, or not supported; the message is the reason."""


class Subgraph(Protocol):
    """A graph that a node runs: If, Loop and Scan have some."""

    @property
    def captured(self) -> tuple[str, ...]:
        """What it reads of the graphs around it."""


@dataclass(frozen=True, eq=False)
class Node:
    """``operator`` with its domain in front where that is not ONNX's own: "com.microsoft.FusedConv".

    ``inputs`` and ``outputs`` that are left out are ""; no outputs at the end are. ``attributes``: numbers,
    texts (bytes where they are not UTF-8), lists of these, arrays and graphs. ``opset``: the version of the
    domain. ``name``: may be empty.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 1
    name: str = ""

    @property
    def output(self) -> str:
        """Its first output."""
        return self.outputs[0]

    @property
    def label(self) -> str:
        """What messages and tables call it."""
        return self.name or next(iter(self.made), self.operator)

    @property
    def domain(self) -> str:
        """The domain of its operator, "" is ONNX's own."""
        return self.operator.rpartition(".")[0]

    @property
    def op_type(self) -> str:
        """The name of its operator within its domain."""
        return self.operator.rpartition(".")[2]

    @cached_property
    def made(self) -> tuple[str, ...]:
        """The outputs that it computes."""
        return tuple(filter(None, self.outputs))

    @cached_property
    def bodies(self) -> tuple[Subgraph, ...]:
        """The graphs that it runs."""
        return tuple(value for value in self.attributes.values() if hasattr(value, "captured"))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Its inputs that are given, and what its graphs read of those around them."""
        captured = (name for body in self.bodies for name in body.captured)
        return tuple(filter(None, (*self.inputs, *captured)))

    def replaced(
        self,
        inputs: Iterable[str] | None = None,
        outputs: Iterable[str] | None = None,
        name: str | None = None,
    ) -> "Node":
        """Return it with what is given instead of its own."""
        return replace(
            self,
            inputs=self.inputs if inputs is None else tuple(inputs),
            outputs=self.outputs if outputs is None else tuple(outputs),
            name=self.name if name is None else name,
        )

    def with_attributes(self, **values: Any) -> "Node":
        """Return it with attributes of these values behind its others; None: without them."""
        kept = {name: value for name, value in self.attributes.items() if name not in values}
        given = {name: value for name, value in values.items() if value is not None}
        return replace(self, attributes=kept | given)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTensor(Array):
    """A tensor by its name."""

    name: Name

    def named(self, name: str) -> "NamedTensor":
        return replace(self, name=name)

    def shaped(self, shape: Sequence[int], name: str | None = None) -> "NamedTensor":
        """Return the same numbers, or others of their type, in another shape."""
        return replace(self, shape=tuple(map(int, shape)), name=self.name if name is None else name)


@dataclass(frozen=True, slots=True)
class KnownTensors:
    """What is known of names: ``array`` their dtype and shape, ``constant`` their numbers; else None."""

    array: Callable[[str], Array | None]
    constant: Callable[[str], NDArray[Any] | None]

    def number(self, name: str) -> float | None:
        """Return the one number that the constant ``name`` is; None: it is none, or has several."""
        numbers = self.constant(name)
        return None if numbers is None or numbers.size != 1 else float(np.asarray(numbers).item())


class NodeReader:
    """Reads what a node says of its inputs and outputs; everything raises UnsuitedError where it cannot."""

    def __init__(self, node: Node, known: KnownTensors, record: OperatorRecord) -> None:
        self.node = node
        self.known = known
        self.record = record

    @property
    def output(self) -> str:
        """The name of the only output."""
        if len(self.node.outputs) != 1:
            raise UnsuitedError(f"{len(self.node.outputs)} outputs")
        return self.node.outputs[0]

    def made(self, of: NamedTensor, shape: Sequence[int] | None = None) -> NamedTensor:
        """Return the only output: of the type of ``of``, and of its shape if none is given."""
        return of.shaped(of.shape if shape is None else shape, self.output)

    def has(self, position: int) -> bool:
        """Return whether input ``position`` is given."""
        return position < len(self.node.inputs) and bool(self.node.inputs[position])

    def name(self, position: int) -> str:
        """Return the name of a required input."""
        if not self.has(position):
            raise UnsuitedError(f"input {position} is missing")
        return self.node.inputs[position]

    def value(self, position: int) -> NamedTensor:
        """Return a required input whose shape is known and which is not empty."""
        name = self.name(position)
        tensor = self.known.array(name)
        if tensor is None or tensor.is_loose:
            raise UnsuitedError("a shape is not known")
        if not math.prod(tensor.shape):
            raise UnsuitedError("a tensor is empty")
        return NamedTensor(name=name, dtype=tensor.dtype, shape=tensor.shape)

    def floats(self, position: int) -> NamedTensor:
        """Return a required input of 32-bit floats."""
        tensor = self.value(position)
        if tensor.dtype != "float32":
            raise UnsuitedError(f"input {position} is {tensor.dtype}, not float32")
        return tensor

    def optional(self, position: int) -> NamedTensor | None:
        """Return an input of 32-bit floats that may be left out."""
        return self.floats(position) if self.has(position) else None

    def constant(self, position: int) -> NDArray[Any]:
        """Return the numbers of a required input that is a constant."""
        name = self.name(position)
        numbers = self.known.constant(name)
        if numbers is None:
            raise UnsuitedError(f"input {position}, {name!r}, is not constant")
        return numbers

    def integers(self, position: int, name: str) -> list[int] | None:
        """Return a list that is an input in new operator sets and attribute ``name`` in old ones."""
        if self.has(position):
            return [int(number) for number in self.constant(position).reshape(-1)]
        values = self.attribute(name)
        return None if values is None else [int(number) for number in values]

    def listed(self, position: int, name: str) -> list[int]:
        """As ``integers``, of a list that must be there."""
        integers = self.integers(position, name)
        if integers is None:
            raise UnsuitedError(f"no {name}")
        return integers

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute; where the node says nothing, what its record says, then ``default``."""
        return self.node.attributes.get(name, self.record.attributes.get(name, default))

    def require(self, name: str, *values: Any) -> None:
        """Check that an attribute has one of ``values`` if it is there."""
        value = self.node.attributes.get(name, values[0])
        if value not in values:
            raise UnsuitedError(f"{name} {value!r}")

    def windows(self, kernel: Sequence[int], size: Sequence[int]) -> Windows:
        """Return the windows of ``kernel`` on a plane of ``size``, or on one axis."""
        if len(size) not in (1, 2):
            raise UnsuitedError(f"{len(size)} spatial axes")
        try:
            return windows_of(self.node.attributes, kernel, size)
        except WindowError as exc:
            raise UnsuitedError(str(exc)) from exc


def axis_of(axis: int, rank: int) -> int:
    """Return ``axis`` counted from the first one."""
    return axis + rank if axis < 0 else axis
