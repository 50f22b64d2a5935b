"""Convolutions of channels that four does not divide get a few more, of zeros.

ONNX Runtime computes these unrolled, all others in blocks. So channels like those of ShuffleNet (58) are
filled up where nobody can see it: weights of zero make them, operators on elements and pools keep them as
they are, and weights of zero read them. The same numbers: each sum has a few zeros more.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from models.graphs.nodes import attributes, made, reads, replace_nodes, set_attributes
from models.network.activations import OPERATORS
from models.network.fields import Array

_DOMAINS = ("", "ai.onnx")
#: They make of a zero a number, element by element, and nothing of one channel goes to another.
_ON_CHANNELS = frozenset(
    (
        *(
            "Add",
            "AveragePool",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "MaxPool",
            "Mul",
            "Sub",
            "Sum",
        ),
        *(OPERATORS - {"Log", "Reciprocal"}),
    )
)
_RANK = 4
#: So many must divide the channels of a blocked convolution.
_AT_ONCE = 4


def fill_channels(model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> bool:
    """Rewrite ``model``, whose constants ONNX Runtime folds next; return whether anything has changed.

    ``values``: of known size, by name. ``block``: channels in a block, 1: there is no blocked layout.
    """
    if block == 1:
        return False
    filler = _Filler(model, values, block)
    filler.find()
    return filler.fill()


class _Filler:
    """``_first``: of values with the same channels one that stands for all."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> None:
        self._model = model
        self._values = values
        self._block = block
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._uses = Counter(name for node in model.graph.node for name in reads(node))
        self._first: dict[str, str] = {}
        self._fixed: set[str] = set()
        self._units: dict[str, int] = {}

    def find(self) -> None:
        """Find the values that have the same channels, and which of them would rather have more."""
        graph = self._model.graph
        for port in (*graph.input, *graph.output):
            self._fix([port.name])
        for node in graph.node:
            tensors = [name for name in (*reads(node), *made(node)) if name not in self._weights]
            if not all(self._is_image(name) for name in tensors) or node.domain not in _DOMAINS:
                self._fix(tensors)
            elif node.op_type == "Conv" and self._is_plain(node):
                self._note(node)
            elif node.op_type in _ON_CHANNELS and self._is_on_channels(node, tensors):
                self._join(tensors)
            else:
                self._fix(tensors)

    def fill(self) -> bool:
        """Fill up the channels of all that would rather have more; return whether there are any."""
        fixed = {self._root(name) for name in self._fixed}
        units: dict[str, int] = {}
        for name, unit in self._units.items():
            root = self._root(name)
            if root not in fixed:
                units[root] = max(unit, units.get(root, 1))
        added: list[onnx.NodeProto] = []
        for node in self._model.graph.node if units else ():
            if node.op_type == "Conv" and node.domain in _DOMAINS:
                added.extend(self._filled(node, units))
        if not added:
            return False
        graph = self._model.graph
        replace_nodes(self._model, [*added, *graph.node])
        known = [value for value in graph.value_info if self._root(value.name) not in units]
        del graph.value_info[:]
        graph.value_info.extend(known)
        return True

    def _is_image(self, name: str) -> bool:
        value = self._values.get(name)
        return value is not None and len(value.shape) == _RANK and value.dtype == "float32"

    def _is_plain(self, node: onnx.NodeProto) -> bool:
        return all(name in self._weights for name in reads(node)[1:])

    def _is_on_channels(self, node: onnx.NodeProto, tensors: list[str]) -> bool:
        held = [self._weights[name] for name in reads(node) if name in self._weights]
        single = all(math.prod(tensor.dims) == 1 for tensor in held)
        finite = single and all(np.isfinite(numpy_helper.to_array(tensor)).all() for tensor in held)
        return finite and len({self._values[name].shape[1] for name in tensors}) == 1

    def _note(self, node: onnx.NodeProto) -> None:
        """Note what a convolution says of the channels that it reads and makes."""
        x, y = node.input[0], node.output[0]
        channels, features = (self._values[name].shape[1] for name in (x, y))
        group = attributes(node).get("group", 1)
        if group == 1 and channels > self._block:
            self._units[x] = max(_AT_ONCE, self._units.get(x, 1))
        elif group == channels == features > 1:
            self._join([x, y])
            self._units[x] = _AT_ONCE
        elif group > 1:
            self._fix([x, y])

    def _fix(self, names: Iterable[str]) -> None:
        self._fixed.update(names)

    def _root(self, name: str) -> str:
        while (first := self._first.get(name, name)) != name:
            name = first
        return name

    def _join(self, names: list[str]) -> None:
        root = self._root(names[0])
        for name in names[1:]:
            self._first[self._root(name)] = root

    def _more(self, name: str, units: Mapping[str, int]) -> int:
        """Return how many channels ``name`` gets."""
        unit = units.get(self._root(name))
        return 0 if unit is None else -self._values[name].shape[1] % unit

    def _filled(self, node: onnx.NodeProto, units: Mapping[str, int]) -> Iterable[onnx.NodeProto]:
        """Let ``node`` read and make more channels; yield what makes its weights."""
        inputs, features = (self._more(name, units) for name in (node.input[0], node.output[0]))
        dims = list(self._weights[node.input[1]].dims)
        depthwise = attributes(node).get("group", 1) > 1
        if inputs and not depthwise:
            yield self._longer(node, 1, 1, [dims[0], inputs, *dims[2:]])
            dims[1] += inputs
        if features:
            yield self._longer(node, 1, 0, [features, *dims[1:]])
            if len(node.input) > 2 and node.input[2]:
                yield self._longer(node, 2, 0, [features])
        if features and depthwise:
            set_attributes(node, group=dims[0] + features)

    def _longer(
        self, node: onnx.NodeProto, place: int, axis: int, shape: list[int]
    ) -> onnx.NodeProto:
        """Let input ``place`` of ``node`` have zeros of ``shape`` behind it; return what makes it."""
        name = node.input[place]
        zeros: NDArray[Any] = np.zeros(shape, np.float32)
        tensor = numpy_helper.from_array(zeros, f"{node.output[0]}/zeros {place} {axis}")
        self._model.graph.initializer.append(tensor)
        node.input[place] = f"{node.output[0]}/filled {place} {axis}"
        return helper.make_node("Concat", [name, tensor.name], [node.input[place]], axis=axis)
