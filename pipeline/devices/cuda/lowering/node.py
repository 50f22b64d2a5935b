"""What a handler is given: one node, or several that one kernel computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

from models.graphs.fusion import Fusion
from models.graphs.nodes import attributes
from pipeline.devices.cuda.lowering.errors import UnsuitedError


@dataclass(frozen=True)
class Node:
    """``inputs`` and ``outputs`` are names ("": left out); ``opset`` is the version of the domain.

    ``fusion`` is what is computed along with it; its result is then the only output here.
    """

    operator: str
    domain: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    fusion: Fusion | None = None

    @property
    def output(self) -> str:
        """The only output.

        Raises:
            UnsuitedError: there are several.
        """
        if len(self.outputs) != 1:
            raise UnsuitedError(f"{len(self.outputs)} outputs")
        return self.outputs[0]

    def input(self, position: int) -> str:
        """Return a required input.

        Raises:
            UnsuitedError: the node does not have it.
        """
        found = self.optional(position)
        if found is None:
            raise UnsuitedError(f"input {position} is missing")
        return found

    def optional(self, position: int) -> str | None:
        return (self.inputs[position] or None) if position < len(self.inputs) else None

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def require(self, name: str, *values: Any) -> None:
        """Check that an attribute has one of ``values`` if it is there.

        Raises:
            UnsuitedError: it has another one.
        """
        value = self.attributes.get(name, values[0])
        if value not in values:
            raise UnsuitedError(f"{name} {value!r}")

    def fused(self, fusion: Fusion) -> "Node":
        """Return this node as the first one of ``fusion``."""
        return replace(self, outputs=(fusion.output,), fusion=fusion)


def domain_of(name: str) -> str:
    """Return a domain by the one of its names that tables have."""
    return "" if name == "ai.onnx" else name


def parse(node: onnx.NodeProto, opsets: Mapping[str, int]) -> Node:
    """Return ``node`` as handlers take it; outputs at the end that nobody wants are left out."""
    domain = domain_of(node.domain)
    return Node(
        node.op_type,
        domain,
        opsets.get(domain, 1),
        tuple(node.input),
        _trimmed(node.output),
        attributes(node),
    )


def _trimmed(names: Sequence[str]) -> tuple[str, ...]:
    count = max((index + 1 for index, name in enumerate(names) if name), default=0)
    return tuple(names[:count])
