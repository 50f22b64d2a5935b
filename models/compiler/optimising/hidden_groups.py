"""Layers between dense ones on tokens, some hidden channels at a time.

An MLP makes many channels of few, and adds them up to few again; attention makes queries, keys and values,
whose heads know nothing of each other, and adds their results up. So a *group* of hidden channels, or of
heads, is made, added to the tokens that the block passes by (its residual), and forgotten, then the next
one. No more than a group of them lives, and the weights of a group are a few chunks that stream as all do.

The same sums in another order; it is that of the whole where groups are of so many channels as ONNX
Runtime's convolution of one pixel adds up at once, which is what the layers become (as_convolutions.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graphs.graph import Graph
from models.graphs.rewriter import Rewriter
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node
from models.network.operators.reading import MatrixProduct

#: A group has at least as many bytes: below, launches take longer than memory is worth.
MIN_GROUP_BYTES = 512 << 10
#: Input channels that MlasConvPointwise adds up before it goes to memory (MaximumInputChannelBatch).
_CHANNEL_BATCH = 128
#: Fewer groups leave so much of what they hide that steps take more than they save.
_MIN_GROUPS = 4
_FLOAT_BYTES = 4
_QUERIES, _KEYS, _VALUES, _BIAS = 0, 1, 2, 5
_HEADS_OF_BIAS = 1
# What our kernel of attention reads (attention_operator.c).
_OF_ATTENTION = {"num_heads", "scale", "mask_filter_value"}


@dataclass
class _Hidden:
    """What ``dense`` adds up, ``channels`` of them: ``layers`` make it, ``inner`` nodes compute with it.

    ``head``: channels of a head of attention; 1: there is none.
    """

    dense: Node
    channels: int
    layers: list[Node] = field(default_factory=list)
    inner: list[Node] = field(default_factory=list)
    head: int = 1


class HiddenGroups(Rewriter):
    """Divides what a residual is added to: an MLP, or attention, of tokens.

    ``block``: channels in a block of convolutions. ``min_bytes``: of a group.
    """

    def __init__(
        self, graph: Graph, block: int, folder: Path | None = None, min_bytes: int = MIN_GROUP_BYTES
    ) -> None:
        super().__init__(graph, folder)
        self._block = block
        self._min_bytes = min_bytes
        self._positions = {node.output: i for i, node in enumerate(graph.nodes) if node.outputs}

    def replaced(self, node: Node) -> list[Node] | None:
        if traits_of(node.operator).function != "add" or len(node.inputs) != 2:
            return None
        shape = self.shape(node.output)
        if not shape or any(self.shape(name) != shape for name in node.inputs):
            return None
        for name, residual in (node.inputs, node.inputs[::-1]):
            factors, dense = self._added(name)
            hidden = self._hidden(dense) if dense is not None else None
            size = self._group_size(hidden) if hidden is not None else 0
            if hidden is not None and size:
                return self._divided(node, residual, hidden, factors, size)
        return None

    # What there is.

    def _added(self, name: str) -> tuple[NDArray[np.float32], Node | None]:
        """Return the dense layer whose result ``name`` is, and what its channels are multiplied by."""
        factors = np.ones(1, np.float32)
        while self.uses[name] == 1:
            node = self.makers.get(name)
            if node is None:
                break
            if self._product(node) is not None:
                return factors, node
            constants = [self.constants.get(item) for item in node.inputs[1:]]
            if node.operator == Op.Reshape and self._keeps_channels(node):
                name = node.inputs[0]
            elif node.operator == Op.Mul and _are_factors(constants, self.shape(name)[-1]):
                factors = factors * np.asarray(constants[0], np.float32).reshape(-1)
                name = node.inputs[0]
            else:
                break
        return factors, None

    def _product(self, node: Node) -> MatrixProduct | None:
        """Return the product that a dense layer on several tokens is; None: it is none."""
        traits = traits_of(node.operator)
        product = self.operator(node) if traits.access == "product" and not node.domain else None
        if not isinstance(product, MatrixProduct) or len(node.inputs) < 2:
            return None
        weights = self.constants.get(node.inputs[1])
        biases = [self.array(name) for name in node.inputs[2:] if name]
        is_dense = (
            weights is not None
            and weights.dtype == np.float32
            and weights.ndim == 2
            and self.uses[node.inputs[1]] == 1
            and product.scale == product.addend_scale == 1
            and not product.turned[0]
            and node.inputs[0] in self.values
            and math.prod(self.shape(node.output)[:-1]) > 1
            and product.depth % self._block == product.columns % self._block == 0
            and all(bias is not None and bias.shape == (product.columns,) for bias in biases)
            and all(name in self.constants for name in node.inputs[2:] if name)
        )
        return product if is_dense else None

    def _keeps_channels(self, node: Node) -> bool:
        before, after = self.shape(node.inputs[0]), self.shape(node.output)
        return bool(before) and before[-1:] == after[-1:]

    def _hidden(self, dense: Node) -> _Hidden | None:
        """Return what makes the channels that ``dense`` adds up; None: they are not made separately."""
        product = self._product(dense)
        assert product is not None
        hidden = _Hidden(dense, product.depth)
        left, visited = [dense.inputs[0]], set[str]()
        while left:
            name = left.pop()
            if name in visited:
                continue
            visited.add(name)
            node = self.makers.get(name)
            if node is None or self.shape(name)[-1:] != (hidden.channels,):
                return None
            if self._product(node) is not None:
                hidden.layers.append(node)
                continue
            read = self._separable_inputs(node, hidden)
            if read is None:
                return None
            hidden.inner.append(node)
            left += read
        nodes = [*hidden.layers, *hidden.inner]
        is_exclusive = all(self._is_exclusive(node, hidden) for node in nodes)
        computes = any(node.operator != Op.Reshape for node in hidden.inner)
        return hidden if is_exclusive and computes else None

    def _is_exclusive(self, node: Node, hidden: _Hidden) -> bool:
        """Return whether only nodes of ``hidden`` read what ``node`` makes."""
        readers = list(self.readers[node.output])
        while len(readers) == 1 and readers[0].operator == Op.Reshape:
            if readers[0] in hidden.inner:
                return True
            readers = list(self.readers[readers[0].output])
        inside = (*hidden.inner, hidden.dense)
        return node.output not in self.outputs and all(reader in inside for reader in readers)

    def _separable_inputs(self, node: Node, hidden: _Hidden) -> list[str] | None:
        """Return the values of whose channels, or heads, ``node`` makes its own; None: it mixes them."""
        if len(node.made) != 1:
            return None
        if node.operator == Op.MultiHeadAttention:
            return self._inputs_of_heads(node, hidden)
        if node.operator == Op.Reshape:
            source = self._before_reshapes(node)
            return [source] if self.shape(source)[-1:] == self.shape(node.output)[-1:] else None
        if traits_of(node.operator).function is None or node.domain:
            return None
        values = [name for name in node.inputs if name in self.values]
        constants = [self.numbers(name) for name in node.inputs if name and name not in values]
        shape = self.shape(node.output)
        is_equal = all(self.shape(name) == shape for name in values)
        return values if values and is_equal and all(map(_is_number, constants)) else None

    def _before_reshapes(self, node: Node) -> str:
        """Return what ``node`` reshapes, in as many steps as nothing else reads."""
        while True:
            name = node.inputs[0]
            producer = self.makers.get(name)
            if producer is None or producer.operator != Op.Reshape or self.uses[name] != 1:
                return name
            node = producer

    def _inputs_of_heads(self, node: Node, hidden: _Hidden) -> list[str] | None:
        """Return queries, keys and values; None: heads have other inputs of their own."""
        heads, bias = node.attributes.get("num_heads", 0), node.inputs[_BIAS:]
        if not heads or hidden.channels % heads or hidden.head > 1 or any(node.inputs[3:_BIAS]):
            return None
        if not node.attributes.keys() <= _OF_ATTENTION or "scale" not in node.attributes:
            return None
        if len(bias) > 1 or (any(bias) and self._lengths(bias[0])[_HEADS_OF_BIAS] != 1):
            return None
        hidden.head = hidden.channels // heads
        return [*node.inputs[:_BIAS][: _VALUES + 1]]

    def _lengths(self, name: str) -> tuple[int, ...]:
        array = self.array(name)
        return (0, 0) if array is None else array.shape

    @cached_property
    def _other_bytes(self) -> int:
        """The bytes of the largest tensor that no group divides: no plan takes less."""
        divided = set[str]()
        for node in self.graph.nodes:
            if self._product(node) is not None:
                hidden = self._hidden(node)
                inside = (*hidden.layers, *hidden.inner) if hidden is not None else ()
                divided.update(item.output for item in inside)
                divided.update(self._before_reshapes(item) for item in inside if _is_reshape(item))
        others = (array for name, array in self.graph.values.items() if name not in divided)
        return max((array.n_bytes for array in others), default=0)

    def _group_size(self, hidden: _Hidden) -> int:
        """Return how many channels a group has; 0: they are better all there at once."""
        tokens = math.prod(self.shape(hidden.dense.inputs[0])[:-1])
        count = tokens * hidden.channels * _FLOAT_BYTES // self._min_bytes
        unit = math.lcm(_CHANNEL_BATCH, hidden.head, self._block)
        added = math.prod(self.shape(hidden.dense.output)) * _FLOAT_BYTES
        live_bytes = 2 * (tokens * hidden.channels * _FLOAT_BYTES + added)
        if count < _MIN_GROUPS or live_bytes <= self._other_bytes:
            return 0
        size = -(-hidden.channels // count // unit) * unit
        rest = hidden.channels % size
        fits = not rest % hidden.head and not rest % self._block
        return size if size < hidden.channels and fits else 0

    # What is written instead.

    def _divided(
        self,
        node: Node,
        residual: str,
        hidden: _Hidden,
        factors: NDArray[np.float32],
        size: int,
    ) -> list[Node]:
        """Return nodes that add all groups to ``residual``, one after the other."""
        nodes: list[Node] = []
        total, shape = residual, self.shape(node.output)
        inside = sorted(
            (*hidden.layers, *hidden.inner), key=lambda item: self._positions[item.output]
        )
        starts = range(0, hidden.channels, size)
        for start in starts:
            channels = slice(start, min(start + size, hidden.channels))
            group = _Group(channels, f"/{start // size}", {})
            nodes.extend(self._of_group(item, hidden, group) for item in inside)
            is_last = start == starts[-1]
            added = self._summed(hidden.dense, group, factors, nodes, with_bias=is_last)
            if self.shape(added) != shape:
                flat, added = added, self.fresh(f"{added}/tokens")
                self._know(added, shape)
                nodes.append(self.reshape(flat, added, shape))
            result = node.output if is_last else self.fresh(f"{node.output}{group.title}")
            self._know(result, shape)
            title = node.name if is_last or not node.name else f"{node.name}{group.title}"
            nodes.append(node.replaced([total, added], [result], title))
            total = result
        return nodes

    def _of_group(self, node: Node, hidden: _Hidden, group: "_Group") -> Node:
        """Return ``node`` as it makes the channels of ``group``."""
        n_channels = group.channels.stop - group.channels.start
        result = self.fresh(f"{node.output}{group.title}")
        group.names[node.output] = result
        shape = (*self.shape(node.output)[:-1], n_channels)
        self._know(result, shape)
        name = f"{node.name}{group.title}" if node.name else ""
        inputs = [group.names.get(item, item) for item in node.inputs]
        product = self._product(node)
        if product is not None:
            axis = 0 if product.turned[1] else 1
            inputs[1:] = [
                self._slice(item, group, min(axis, self.constants[item].ndim - 1))
                for item in filter(None, node.inputs[1:])
            ]
            return node.replaced(inputs, [result], name)
        if node.operator == Op.Reshape:
            return self.reshape(group.names[self._before_reshapes(node)], result, shape)
        if node.operator == Op.MultiHeadAttention:
            heads = n_channels // hidden.head
            return node.replaced(inputs, [result], name).with_attributes(num_heads=heads)
        return node.replaced(inputs, [result], name)

    def _summed(
        self,
        dense: Node,
        group: "_Group",
        factors: NDArray[np.float32],
        nodes: list[Node],
        *,
        with_bias: bool,
    ) -> str:
        """Return what ``dense`` makes of a group, times ``factors``; the bias is added once."""
        product = self._product(dense)
        assert product is not None
        axis = 1 if product.turned[1] else 0
        columns = factors.reshape(-1, 1) if product.turned[1] else factors
        weights = self._slice(dense.inputs[1], group, axis, columns)
        bias = [
            self.constant(f"{name}/factors", self.constants[name] * factors)
            for name in filter(None, dense.inputs[2:])
            if with_bias
        ]
        result = self.fresh(f"{dense.output}{group.title}")
        self._know(result, self.shape(dense.output))
        source = group.names[dense.inputs[0]]
        nodes.append(
            dense.replaced([source, weights, *bias], [result], f"{dense.label}{group.title}")
        )
        return result

    def _slice(
        self,
        name: str,
        group: "_Group",
        axis: int,
        factors: NDArray[np.float32] | None = None,
    ) -> str:
        """Return the constant that is the channels of ``group`` of ``name``, along ``axis``."""
        array = self.constants[name]
        selected = array[group.channels] if axis == 0 else array[:, group.channels]
        if factors is not None and (factors != 1).any():
            selected = selected * factors
        return self.constant(f"{name}{group.title}", np.ascontiguousarray(selected))

    def _know(self, name: str, shape: Sequence[int]) -> None:
        self.values[name] = Array(dtype="float32", shape=tuple(shape))


@dataclass
class _Group:
    """A group of channels: what its values are called, by what they are parts of."""

    channels: slice
    title: str
    names: dict[str, str]


def _is_reshape(node: Node) -> bool:
    return node.operator == Op.Reshape


def _is_number(array: NDArray[Any] | None) -> bool:
    return array is not None and array.size == 1


def _are_factors(constants: Sequence[NDArray[Any] | None], channels: int) -> bool:
    """Return whether ``constants`` are one of floats, a number or one a channel."""
    (array, *others) = constants or [None]
    if array is None or others or array.dtype != np.float32:
        return False
    return array.size == 1 or (array.size == channels == array.shape[-1])
