"""Padding of channels: where four does not divide the channels of a convolution, they become whole blocks.

ONNX Runtime computes such convolutions unrolled, all others in blocks. So channels like those of ShuffleNet
(58) are filled up where no result shows it, with copies of other channels: convolutions make both with the
same weights. Operators on elements and pools take each channel by itself, so they make the same of both,
whatever they compute: a channel that fills has no infinity and no NaN that its original does not have.
(Zeros would: Log and Reciprocal make infinities of them, and a convolution makes NaN of an infinity and a
weight of zero.)

A convolution that reads a copy multiplies it with the weight of its original and with 2^-80. That changes
no sum of numbers, which is rounded to 24 bits, and an infinity in both channels keeps its sign in the sum.
A sum of zero it would change. Numbers that are rounded to few bits have such sums, as those of binary
networks, and Sign makes one of what is left: where channels are rounded, none are filled.

ONNX Runtime itself fills the last block of what a blocked convolution makes, with zeros.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from models.graphs.nodes import attributes, made, new_node, reads, set_attributes
from models.graphs.rewriting import Rewriter
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import Op, op_of
from models.network.operators.reading import Pooling, Reduction

_RANK = 4
_PLANES = (2, 3)
#: So many must divide the channels of a blocked convolution.
_AT_ONCE = 4
#: The first operator set whose Mul takes a number for all elements.
_BROADCASTS = 7
#: A weight of a copy, of one of its original.
_FAINT = 2.0**-80


class FillChannels(Rewriter):
    """Fills up channels that convolutions make and read; ``block``: channels in a block.

    ``_first``: of values with the same channels one that stands for all. ``_blocked``: values that
    convolutions would read in blocks. ``_filled``: those that stand for values that are filled up.
    """

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> None:
        super().__init__(model, values)
        self._block = block
        self._first: dict[str, str] = {}
        self._fixed = {port.name for port in (*model.graph.input, *model.graph.output)}
        self._blocked: set[str] = set()
        for node in model.graph.node:
            self._look(node)
        fixed = {self._root(name) for name in self._fixed}
        has_product = self.versions.get("", 0) >= _BROADCASTS
        self._filled = (
            {self._root(name) for name in self._blocked} - fixed if has_product else set()
        )
        self.retyped.update(name for name in values if self._root(name) in self._filled)

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if not self._filled or op_of(node) != Op.Conv:
            return None
        weights = list(self._weights(node))
        return [*weights, node] if weights else None

    def _look(self, node: onnx.NodeProto) -> None:
        """Find what values have the same channels by ``node``, and which would rather have more."""
        tensors = [name for name in (*reads(node), *made(node)) if name not in self.tensors]
        if not all(map(self._is_image, tensors)) or node.domain:
            self._fixed.update(tensors)
        elif op_of(node) == Op.Conv and all(name in self.tensors for name in reads(node)[1:]):
            self._note(node)
        elif self._is_by_channel(node) and self._is_on_channels(node, tensors):
            self._join(tensors)
        else:
            self._fixed.update(tensors)

    def _is_image(self, name: str) -> bool:
        value = self.values.get(name)
        return value is not None and len(value.shape) == _RANK and value.dtype == "float32"

    def _is_by_channel(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` makes of each channel another one, all alike, and rounds none."""
        traits = traits_of(op_of(node))
        if traits.function is not None:
            return not (traits.jumps and traits.keeps_order == "yes")
        operator = self.operator(node)
        of_planes = isinstance(operator, Reduction) and operator.axes == _PLANES
        return isinstance(operator, Pooling) or of_planes

    def _is_on_channels(self, node: onnx.NodeProto, tensors: list[str]) -> bool:
        single = all(self.is_single(name) for name in reads(node) if name in self.tensors)
        return single and len({self.values[name].shape[1] for name in tensors}) == 1

    def _note(self, node: onnx.NodeProto) -> None:
        """Note what a convolution says of the channels that it reads and makes."""
        x, y = node.input[0], node.output[0]
        channels, features = (self.values[name].shape[1] for name in (x, y))
        group = attributes(node).get("group", 1)
        if group == 1 and channels > self._block:
            self._blocked.add(x)
        elif group == channels == features > 1:
            self._join([x, y])
            self._blocked.add(x)
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
        if self._root(name) not in self._filled:
            return 0
        channels = self.values[name].shape[1]
        return -channels % self._block if channels % _AT_ONCE else 0

    def _weights(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Let ``node`` read and make more channels; yield what makes its weights."""
        inputs, features = (self._more(name) for name in (node.input[0], node.output[0]))
        depthwise = attributes(node).get("group", 1) > 1
        if inputs and not depthwise:
            yield from self._with_faint(node, inputs)
        if features:
            for index in range(1, len(node.input)):
                if node.input[index]:
                    yield self._with_copies(node, index, features)
        if features and depthwise:
            set_attributes(node, group=self.values[node.output[0]].shape[1] + features)

    def _with_faint(self, node: onnx.NodeProto, count: int) -> Iterator[onnx.NodeProto]:
        """Let weights of ``node`` have others behind them, for ``count`` copies; yield what makes them."""
        held, title = node.input[1], f"{node.output[0]}/faint"
        copies, faint, node.input[1] = map(
            self.fresh, (f"{title} copies", title, f"{title} behind")
        )
        first = self._sources(title, range(count), self.values[node.input[0]].shape[1])
        factor = self.constant(f"{title} factor", np.array(_FAINT, np.float32))
        yield new_node(Op.Gather, [held, first], [copies], copies, axis=1)
        yield new_node(Op.Mul, [copies, factor], [faint], faint)
        yield new_node(Op.Concat, [held, faint], [node.input[1]], node.input[1], axis=1)

    def _with_copies(self, node: onnx.NodeProto, index: int, count: int) -> onnx.NodeProto:
        """Let input ``index`` of ``node`` have copies of features behind it; return what makes it."""
        held, title = node.input[index], f"{node.output[0]}/filled {index}"
        features = self.values[node.output[0]].shape[1]
        every = self._sources(title, range(features + count), features)
        node.input[index] = self.fresh(title)
        return new_node(Op.Gather, [held, every], [node.input[index]], title, axis=0)

    def _sources(self, title: str, channels: range, count: int) -> str:
        """Return a constant: of which of ``count`` channels each of ``channels`` is a copy, or itself."""
        return self.constant(f"{title} places", np.array(channels, np.int64) % count)
