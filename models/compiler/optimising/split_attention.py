"""Attention whose bias is made of sums that are small: some images or queries at a time.

SAM's relative positions are a sum of a term for rows and one for columns of keys. Each term is as large as
the queries, the sum as the scores. Of some queries it is small, too, and is forgotten once they are done.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.graphs.graph import Graph
from models.graphs.rewriter import Rewriter
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node

#: What a bias of all queries may take, and about what that of some takes.
MAX_BIAS_BYTES = 16 << 20
_BIAS = 5
_IMAGES, _QUERIES = 0, 1
# With others a query's index counts, or there are other inputs.
_PLAIN = {"num_heads", "scale", "mask_filter_value"}
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class _Sum:
    """A bias that is the sum ``node``, whose ``axis`` is that of images or of queries of the attention.

    ``divided``: which of both it is; each of ``length`` indices of ``axis`` stands for ``n_each`` of these.
    """

    node: Node
    axis: int
    divided: int
    length: int
    n_each: int


class SplitAttention(Rewriter):
    """Divides each MultiHeadAttention whose bias is a sum of more than ``max_bytes``."""

    def __init__(self, graph: Graph, max_bytes: int = MAX_BIAS_BYTES) -> None:
        super().__init__(graph)
        self._max_bytes = max_bytes

    def replaced(self, node: Node) -> list[Node] | None:
        if node.operator != Op.MultiHeadAttention or len(node.inputs) != _BIAS + 1:
            return None
        if any(node.inputs[3:_BIAS]) or len(node.made) != 1 or not node.attributes.keys() <= _PLAIN:
            return None
        arrays = [self.array(name) for name in (*node.inputs[:3], node.output)]
        if any(one is None or one.dtype != "float32" or len(one.shape) != 3 for one in arrays):
            return None
        n_bytes = _FLOAT_BYTES * math.prod(self.shape(node.inputs[_BIAS]))
        bias_sum = self._sum(node) if n_bytes > self._max_bytes else None
        if bias_sum is None:
            return None
        fewest = -(-n_bytes // self._max_bytes)
        counts = (n for n in range(2, bias_sum.length + 1) if bias_sum.length % n == 0)
        count = next((n for n in counts if n >= fewest), bias_sum.length)
        return self._divided(node, bias_sum, count) if count > 1 else None

    def _sum(self, node: Node) -> _Sum | None:
        """Return the sum that is the bias of ``node`` and of nothing else; None: it is none."""
        name = node.inputs[_BIAS]
        images, heads, queries, _ = self.shape(name)
        producer = self.makers.get(name)
        while producer is not None and producer.operator == Op.Reshape and self.uses[name] == 1:
            name = producer.inputs[0]
            producer = self.makers.get(name)
        if producer is None or producer.operator != Op.Add or self.uses[name] != 1:
            return None
        if images != self.shape(node.inputs[0])[0] or not all(map(self.shape, producer.inputs)):
            return None
        shape = self.shape(name)
        if images > 1 and shape[0] in (images, images * heads):
            return _Sum(producer, 0, _IMAGES, images, 1)
        axis = next((i for i in range(len(shape)) if math.prod(shape[:i]) == heads), len(shape))
        while axis < len(shape) and shape[axis] == 1:
            axis += 1
        if images > 1 or axis == len(shape) or queries % shape[axis]:
            return None
        return _Sum(producer, axis, _QUERIES, shape[axis], queries // shape[axis])

    def _divided(self, node: Node, bias_sum: _Sum, count: int) -> list[Node]:
        """Return ``count`` attentions that make together what ``node`` makes."""
        nodes: list[Node] = []
        results: list[str] = []
        shape, bias_shape = self.shape(bias_sum.node.output), self.shape(node.inputs[_BIAS])
        n_indices = shape[bias_sum.axis] // count
        n_rows = bias_sum.length // count * bias_sum.n_each
        bias_axis = 0 if bias_sum.divided == _IMAGES else 2
        for i in range(count):
            terms = [
                self._slice(name, self._axis_of(name, shape, bias_sum.axis), i, n_indices, nodes)
                for name in bias_sum.node.inputs
            ]
            total, bias = self.fresh(f"{node.output}/sum{i}"), self.fresh(f"{node.output}/bias{i}")
            self._know(total, _with(shape, bias_sum.axis, n_indices))
            self._know(bias, _with(bias_shape, bias_axis, n_rows))
            nodes.append(self.node(Op.Add, terms, [total]))
            nodes.append(self.reshape(total, bias, self.shape(bias)))
            divided = node.inputs[: 3 if bias_sum.divided == _IMAGES else 1]
            tokens = [self._slice(name, bias_sum.divided, i, n_rows, nodes) for name in divided]
            result = self.fresh(f"{node.output}/part{i}")
            self._know(result, _with(self.shape(node.output), bias_sum.divided, n_rows))
            inputs = [*tokens, *node.inputs[len(tokens) : _BIAS], bias]
            name = f"{node.name}/part{i}"
            nodes.append(self.node(node.operator, inputs, [result], name, **node.attributes))
            results.append(result)
        return [*nodes, self.node(Op.Concat, results, [node.output], axis=bias_sum.divided)]

    def _axis_of(self, name: str, shape: Sequence[int], axis: int) -> int | None:
        """Return which axis of a term is ``axis`` of the sum; None: it has the same for all indices."""
        array = self.array(name)
        assert array is not None
        aligned = axis - len(shape) + len(array.shape)
        return aligned if aligned >= 0 and array.shape[aligned] != 1 else None

    def _slice(self, name: str, axis: int | None, index: int, n: int, nodes: list[Node]) -> str:
        """Return slice ``index`` of ``name``, of ``n`` indices of ``axis``; itself where that is None."""
        array = self.array(name)
        assert array is not None
        if axis is None:
            return name
        result = self.fresh(f"{name}/part{index}")
        self._know(result, _with(array.shape, axis, n))
        ends = [index * n, (index + 1) * n, axis]
        bounds = [self.constant(f"{result}/bound", np.array([bound], np.int64)) for bound in ends]
        nodes.append(self.node(Op.Slice, [name, *bounds], [result]))
        return result

    def _know(self, name: str, shape: Sequence[int]) -> None:
        self.values[name] = Array(dtype="float32", shape=tuple(shape))


def _with(shape: Sequence[int], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])
