"""Padding of channels: where four does not divide the channels of a convolution, a few of zeros are added.

ONNX Runtime computes such convolutions unrolled, all others in blocks. So channels like those of ShuffleNet
(58) are filled up where no result shows it: weights of zero make them, operators on elements and pools keep
them as they are, and weights of zero read them. The same numbers: each sum has a few zeros more.

ONNX Runtime itself fills the last block of what a blocked convolution makes. Which channels are used is
taken from the model as it was before (``used_channels``); a device without blocks leaves out the others.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import helper

from models.compiler.analysis.graph import NCHWC_DOMAIN, Graph
from models.graphs.nodes import attributes, made, reads, set_attributes
from models.graphs.rewriting import Rewriter
from models.network.activations import OPERATORS
from models.network.fields import Array
from models.network.operators.convolution import CONVOLUTIONS

#: They make of a zero a number, element by element, and nothing of one channel goes to another.
_ON_CHANNELS = frozenset(
    (
        *("Add", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "Mul", "Sub"),
        "Sum",
        *(OPERATORS - {"Log", "Reciprocal"}),
    )
)
_RANK = 4
#: So many must divide the channels of a blocked convolution.
_AT_ONCE = 4
#: ONNX Runtime names a blocked node by what it makes, and this.
_BLOCKED = "_nchwc"


class FillChannels(Rewriter):
    """Fills up channels that convolutions make and read; ``block``: channels in a block.

    ``_first``: of values with the same channels one that stands for all. ``_units``: of some values, by
    the number that should divide the number of their channels.
    """

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> None:
        super().__init__(model, values)
        self._block = block
        self._first: dict[str, str] = {}
        self._fixed = {port.name for port in (*model.graph.input, *model.graph.output)}
        self._units: dict[str, int] = {}
        for node in model.graph.node:
            self._look(node)
        fixed = {self._root(name) for name in self._fixed}
        self._filled: dict[str, int] = {}
        for name, unit in self._units.items():
            root = self._root(name)
            if root not in fixed:
                self._filled[root] = max(unit, self._filled.get(root, 1))
        self.retyped.update(name for name in values if self._root(name) in self._filled)

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if not self._filled or node.op_type != "Conv" or node.domain:
            return None
        weights = list(self._weights(node))
        return [*weights, node] if weights else None

    def _look(self, node: onnx.NodeProto) -> None:
        """Find what values have the same channels by ``node``, and which would rather have more."""
        tensors = [name for name in (*reads(node), *made(node)) if name not in self.tensors]
        if not all(map(self._is_image, tensors)) or node.domain:
            self._fixed.update(tensors)
        elif node.op_type == "Conv" and all(name in self.tensors for name in reads(node)[1:]):
            self._note(node)
        elif node.op_type in _ON_CHANNELS and self._is_on_channels(node, tensors):
            self._join(tensors)
        else:
            self._fixed.update(tensors)

    def _is_image(self, name: str) -> bool:
        value = self.values.get(name)
        return value is not None and len(value.shape) == _RANK and value.dtype == "float32"

    def _is_on_channels(self, node: onnx.NodeProto, tensors: list[str]) -> bool:
        held = [self.numbers(name) for name in reads(node) if name in self.tensors]
        finite = all(n is not None and n.size == 1 and np.isfinite(n).all() for n in held)
        return finite and len({self.values[name].shape[1] for name in tensors}) == 1

    def _note(self, node: onnx.NodeProto) -> None:
        """Note what a convolution says of the channels that it reads and makes."""
        x, y = node.input[0], node.output[0]
        channels, features = (self.values[name].shape[1] for name in (x, y))
        group = attributes(node).get("group", 1)
        if group == 1 and channels > self._block:
            self._units[x] = max(_AT_ONCE, self._units.get(x, 1))
        elif group == channels == features > 1:
            self._join([x, y])
            self._units[x] = _AT_ONCE
        elif group > 1:
            self._fixed.update([x, y])

    def _root(self, name: str) -> str:
        while (first := self._first.get(name, name)) != name:
            name = first
        return name

    def _join(self, names: list[str]) -> None:
        root = self._root(names[0])
        for name in names[1:]:
            self._first[self._root(name)] = root

    def _more(self, name: str) -> int:
        """Return how many channels ``name`` gets."""
        unit = self._filled.get(self._root(name))
        return 0 if unit is None else -self.values[name].shape[1] % unit

    def _weights(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Let ``node`` read and make more channels; yield what makes its weights."""
        inputs, features = (self._more(name) for name in (node.input[0], node.output[0]))
        dims = list(self.tensors[node.input[1]].dims)
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
        held, title = node.input[place], node.output[0]
        zeros = self.constant(f"{title}/zeros {place} {axis}", np.zeros(shape, np.float32))
        node.input[place] = self.fresh(f"{title}/filled {place} {axis}")
        return helper.make_node("Concat", [held, zeros], [node.input[place]], axis=axis)


def used_channels(graph: Graph, plain: Mapping[str, Array]) -> dict[str, int]:
    """Return how many channels come before those that only fill, of what convolutions read and make.

    Only of values that have some. ``plain``: the values of the model before any was filled.
    """
    before, channels = map(_channels, (plain, graph.values))
    left = {
        node.input[0]: attributes(node)["channels"]
        for node in graph.nodes
        if node.op_type == "ReorderOutput"
    }
    used, around = dict(channels), set[str]()
    for node in graph.nodes:
        name, read, given = made(node)[0], next(iter(reads(node)), ""), attributes(node)
        if name not in used:
            continue
        counts = [used[each] for each in reads(node) if channels.get(each) == channels[name]]
        if node.op_type in CONVOLUTIONS:
            around.update((read, name))
            if given.get("group", 1) == 1:
                title = node.name.removesuffix(_BLOCKED) if node.domain == NCHWC_DOMAIN else name
                counts = [before.get(title, left.get(name, channels[name]))]
        elif node.op_type == "ReorderInput":
            counts = [graph.values[read].shape[-1] if given.get("channels_last") else used[read]]
        elif node.op_type == "ReorderOutput" and not given.get("channels_last"):
            counts = [used[read]]
        used[name] = min([*counts, channels[name]])
    fewer = {name for name in around & used.keys() if used[name] < channels[name]}
    return {name: used[name] for name in sorted(fewer)}


def _channels(values: Mapping[str, Array]) -> dict[str, int]:
    return {name: array.shape[1] for name, array in values.items() if len(array.shape) == _RANK}
