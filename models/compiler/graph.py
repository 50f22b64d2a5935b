"""The optimised graph as the compiler sees it: nodes in execution order over named values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from models.manifest import Array

NCHWC_DOMAIN = "com.microsoft.nchwc"

# A constant this small, or an integer one up to the second limit, belongs to the operator (a shape, a
# clip bound, resize scales): it stays in the piece. Everything else is a weight and is streamed.
INLINE_BYTES = 64
INLINE_INTEGER_BYTES = 4096


@dataclass(frozen=True)
class Graph:
    """A validated, topologically sorted graph with static shapes.

    ``values`` has every activation (graph inputs and node outputs), ``constants`` every
    initializer; the two share no name.
    """

    nodes: tuple[onnx.NodeProto, ...]
    values: Mapping[str, Array]
    constants: Mapping[str, NDArray[Any]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: tuple[onnx.OperatorSetIdProto, ...]

    def is_weight(self, name: str) -> bool:
        """Return whether ``name`` is a constant that lives in weights.bin."""
        constant = self.constants.get(name)
        if constant is None or constant.nbytes <= INLINE_BYTES:
            return False
        return constant.dtype.kind not in "iub" or constant.nbytes > INLINE_INTEGER_BYTES

    def weight_bytes(self, node: onnx.NodeProto) -> int:
        names = {name for name in node.input if self.is_weight(name)}
        return sum(self.constants[name].nbytes for name in names)

    def array(self, name: str) -> Array:
        """Return dtype and shape of a value or constant."""
        if name in self.values:
            return self.values[name]
        constant = self.constants[name]
        return Array(dtype=np.dtype(constant.dtype).name, shape=constant.shape)

    def readers(self) -> dict[str, list[int]]:
        """Return, for each value and constant, the indices of the nodes that read it, ascending."""
        readers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.input):
                readers.setdefault(name, []).append(index)
        return readers


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of ``node`` as Python values (strings decoded)."""
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def label(node: onnx.NodeProto) -> str:
    """Return what to call ``node`` in messages and tables."""
    return node.name or node.output[0]
