"""Passes over a model: for each node what stands there instead, with all that is known around it.

A pass is a ``Rewriter`` whose ``replaced`` recognises a node and returns others; it is asked here for
names, constants, and the nodes that make and read a value.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.graphs.nodes import (
    fresh,
    live,
    made,
    new_node,
    node_of,
    reads,
    replace_nodes,
    versions_of,
)
from models.network.catalogue import read_operator
from models.network.fields import Array
from models.network.names import Op
from models.network.node import KnownTensors, UnsuitedError
from models.network.operators.reading import Operator

_RESIZE_WITHOUT_REGION = 13


class Rewriter(ABC):
    """A pass over ``model``. ``values``: of known size; ``tensors``: its constants; both by name.

    ``makers``, ``readers`` and ``uses`` are those of the model before the pass. ``behind``: nodes that are
    to stand at once behind what makes a value, by its name.
    """

    def __init__(
        self, model: onnx.ModelProto, values: Mapping[str, Array] = MappingProxyType({})
    ) -> None:
        self.model = model
        self.graph = model.graph
        self.values = values
        self.versions = versions_of(model.opset_import)
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self.outputs = frozenset(port.name for port in model.graph.output)
        self.makers = {name: node for node in model.graph.node for name in made(node)}
        self.behind: dict[str, onnx.NodeProto] = {}
        self.retyped: set[str] = set()
        self._known = KnownTensors(self.array, self.numbers)

    @abstractmethod
    def replaced(self, node: onnx.NodeProto) -> Iterable[onnx.NodeProto] | None:
        """Return what stands where ``node`` did, in a valid order; None: it stays."""

    def run(self) -> bool:
        """Replace the nodes, leave out what no output needs any more; return whether anything changed."""
        nodes: list[onnx.NodeProto] = []
        changed = False
        for node in self.graph.node:
            instead = self.replaced(node)
            changed |= instead is not None
            nodes.extend([node] if instead is None else instead)
        if changed:
            replace_nodes(self.graph, (each for node in nodes for each in self._with_behind(node)))
            replace_nodes(self.graph, live(self.model))
        if self.retyped:
            kept = [value for value in self.graph.value_info if value.name not in self.retyped]
            del self.graph.value_info[:]
            self.graph.value_info.extend(kept)
        return changed

    def _with_behind(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return [node, *(self.behind[name] for name in node.output if name in self.behind)]

    @cached_property
    def readers(self) -> Mapping[str, list[onnx.NodeProto]]:
        """By what they read, each once."""
        by_value: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.graph.node:
            for name in dict.fromkeys(reads(node)):
                by_value[name].append(node)
        return by_value

    @cached_property
    def uses(self) -> Mapping[str, int]:
        """How often a value is read by what an output depends on; the caller of the model counts, too."""
        read = (name for node in live(self.model) for name in reads(node))
        return Counter([*read, *self.outputs])

    @cached_property
    def _taken(self) -> set[str]:
        named = {
            name for node in self.graph.node for name in (*reads(node), *node.output, node.name)
        }
        return {*named, *self.tensors, *self.outputs, *(port.name for port in self.graph.input)}

    def fresh(self, name: str) -> str:
        """Return ``name``, or a longer one where that is taken; it is taken then."""
        return fresh(name, self._taken)

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add a constant; return what it is called."""
        name = self.fresh(name)
        self.tensors[name] = numpy_helper.from_array(array, name)
        self.graph.initializer.append(self.tensors[name])
        return name

    def reshape(self, name: str, result: str, shape: Iterable[int]) -> onnx.NodeProto:
        """Return the node that makes ``result`` of ``name``."""
        given = self.constant(f"{result}/shape", np.array(tuple(shape), np.int64))
        return new_node(Op.Reshape, [name, given], [result])

    def resize(
        self, name: str, result: str, factors: Iterable[float], label: str, **attributes: str
    ) -> onnx.NodeProto:
        """Return the node ``label`` that makes ``result`` of ``name``, larger by ``factors``.

        Before opset 13 no input of Resize may be left out, not even the region that only tf_crop_and_resize
        reads.
        """
        scales = self.constant(f"{result}/scales", np.array(tuple(factors), np.float32))
        region = ""
        if self.versions.get("", 0) < _RESIZE_WITHOUT_REGION:
            region = self.constant(f"{result}/region", np.zeros(0, np.float32))
        return new_node(Op.Resize, [name, region, scales], [result], label, **attributes)

    def array(self, name: str) -> Array | None:
        """Return dtype and shape of a value or constant."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return self.values.get(name)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).name
        return Array(dtype=dtype, shape=tuple(tensor.dims))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value; (): it is not known, or none."""
        return self.values[name].shape if name in self.values else ()

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Return a constant whose data are in the message."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def is_single(self, name: str) -> bool:
        """Return whether ``name`` is a constant that is one number."""
        return name in self.tensors and math.prod(self.tensors[name].dims) == 1

    def operator(self, node: onnx.NodeProto) -> Operator | None:
        """Return what ``node`` computes; None: no family of operators has it."""
        try:
            return read_operator(node_of(node, self.versions), self._known)
        except UnsuitedError:
            return None
