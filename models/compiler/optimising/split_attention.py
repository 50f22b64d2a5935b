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
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class _Sum:
    """A bias that is the sum ``node``, whose ``axis`` is that of images or of queries of the attention.

    ``divided``: which of both it is; each of ``length`` places of ``axis`` stands for ``n_each`` of these.
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
        if any(node.inputs[3:_BIAS]) or len(node.made) != 1:
            return None
        n_bytes = _FLOAT_BYTES * math.prod(self.shape(node.inputs[_BIAS]))
        found = self._sum(node) if n_bytes > self._max_bytes else None
        if found is None:
            return None
        fewest = -(-n_bytes // self._max_bytes)
        counts = (n for n in range(2, found.length + 1) if found.length % n == 0)
        count = next((n for n in counts if n >= fewest), found.length)
        return self._divided(node, found, count) if count > 1 else None

    def _sum(self, node: Node) -> _Sum | None:
        """Return the sum that is the bias of ``node`` and of nothing else; None: it is none."""
        name = node.inputs[_BIAS]
        images, heads, queries, _ = self.shape(name)
        maker = self.makers.get(name)
        while maker is not None and maker.operator == Op.Reshape and self.uses[name] == 1:
            name = maker.inputs[0]
            maker = self.makers.get(name)
        if maker is None or maker.operator != Op.Add or self.uses[name] != 1:
            return None
        if images != self.shape(node.inputs[0])[0] or not all(map(self.shape, maker.inputs)):
            return None
        shape = self.shape(name)
        if images > 1 and shape[0] in (images, images * heads):
            return _Sum(maker, 0, _IMAGES, images, 1)
        axis = next((i for i in range(len(shape)) if math.prod(shape[:i]) == heads), len(shape))
        while axis < len(shape) and shape[axis] == 1:
            axis += 1
        if images > 1 or axis == len(shape) or queries % shape[axis]:
            return None
        return _Sum(maker, axis, _QUERIES, shape[axis], queries // shape[axis])

    def _divided(self, node: Node, found: _Sum, count: int) -> list[Node]:
        """Return ``count`` attentions that make together what ``node`` makes."""
        nodes: list[Node] = []
        results: list[str] = []
        shape, bias_shape = self.shape(found.node.output), self.shape(node.inputs[_BIAS])
        places, n_rows = shape[found.axis] // count, found.length // count * found.n_each
        bias_axis = 0 if found.divided == _IMAGES else 2
        for i in range(count):
            terms = [
                self._part(name, self._axis_of(name, shape, found.axis), i, places, nodes)
                for name in found.node.inputs
            ]
            whole, bias = self.fresh(f"{node.output}/sum{i}"), self.fresh(f"{node.output}/bias{i}")
            self._know(whole, _with(shape, found.axis, places))
            self._know(bias, _with(bias_shape, bias_axis, n_rows))
            nodes.append(self.node(Op.Add, terms, [whole]))
            nodes.append(self.reshape(whole, bias, self.shape(bias)))
            divided = node.inputs[: 3 if found.divided == _IMAGES else 1]
            tokens = [self._part(name, found.divided, i, n_rows, nodes) for name in divided]
            result = self.fresh(f"{node.output}/part{i}")
            self._know(result, _with(self.shape(node.output), found.divided, n_rows))
            inputs = [*tokens, *node.inputs[len(tokens) : _BIAS], bias]
            name = f"{node.name}/part{i}"
            attention = self.node(node.operator, inputs, [result], name, **node.attributes)
            nodes.append(attention)
            results.append(result)
        return [*nodes, self.node(Op.Concat, results, [node.output], axis=found.divided)]

    def _axis_of(self, name: str, shape: Sequence[int], axis: int) -> int | None:
        """Return which axis of a term is ``axis`` of the sum; None: it has the same for all places."""
        array = self.array(name)
        assert array is not None
        own = axis - len(shape) + len(array.shape)
        return own if own >= 0 and array.shape[own] != 1 else None

    def _part(self, name: str, axis: int | None, number: int, n: int, nodes: list[Node]) -> str:
        """Return ``n`` places of ``axis`` of ``name``, the ``number``-th ones; itself where it has none."""
        array = self.array(name)
        assert array is not None
        if axis is None:
            return name
        result = self.fresh(f"{name}/part{number}")
        self._know(result, _with(array.shape, axis, n))
        bounds = [number * n, (number + 1) * n, axis]
        given = [self.constant(f"{result}/bound", np.array([bound], np.int64)) for bound in bounds]
        nodes.append(self.node(Op.Slice, [name, *given], [result]))
        return result

    def _know(self, name: str, shape: Sequence[int]) -> None:
        self.values[name] = Array(dtype="float32", shape=tuple(shape))


def _with(shape: Sequence[int], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])
