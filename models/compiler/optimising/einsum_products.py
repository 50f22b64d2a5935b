"""Einsums that are products of matrices, as MatMul.

ONNX Runtime's Einsum copies both tensors with other axes before it multiplies them, and the result behind
it, in memory of its own: three times the queries for SAM's relative positions. MatMul has none.
"""

import re
from typing import NamedTuple

import numpy as np

from models.graphs.rewriter import Rewriter
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node

_EQUATION = re.compile(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)")


class _Labels(NamedTuple):
    """Axes, a letter each: of the tensor, the constant, the result; of both as they are multiplied.

    The constant has one that all have, one that is summed up, and one of its own.
    """

    left: str
    right: str
    result_axes: str
    first: str
    product: str
    factors: str


class EinsumProducts(Rewriter):
    """Makes MatMul of each Einsum of a tensor and a constant for each place of one axis.

    The product is [..., axis, other, sum] times [axis, sum, own].
    """

    def replaced(self, node: Node) -> list[Node] | None:
        if node.operator != Op.Einsum or len(node.inputs) != 2:
            return None
        source, name = node.inputs
        labels = _labels(str(node.attributes.get("equation", "")))
        constant, array = self.constants.get(name), self.array(source)
        if labels is None or constant is None or array is None:
            return None
        sizes = dict(zip(labels.right, constant.shape, strict=False))
        sizes.update(zip(labels.left, array.shape, strict=False))
        # Other ranks are none of ours, and an axis of one is spread.
        if not array.dtype == constant.dtype.name == "float32" or [
            *(sizes.get(label) for label in labels.right),
            *(sizes.get(label) for label in labels.left),
        ] != [*constant.shape, *array.shape]:
            return None
        factors = constant.transpose([labels.right.index(label) for label in labels.factors])
        factors_name = self.constant(f"{name}/factors", np.ascontiguousarray(factors))
        nodes: list[Node] = []
        if labels.first != labels.left:
            turned = self.fresh(f"{source}/turned")
            perm = [labels.left.index(label) for label in labels.first]
            self._know(turned, [sizes[label] for label in labels.first])
            nodes.append(self.node(Op.Transpose, [source], [turned], perm=perm))
            source = turned
        if labels.product == labels.result_axes:
            return [*nodes, self.node(Op.MatMul, [source, factors_name], [node.output], node.name)]
        result = self.fresh(f"{node.output}/product")
        self._know(result, [sizes[label] for label in labels.product])
        perm = [labels.product.index(label) for label in labels.result_axes]
        return [
            *nodes,
            self.node(Op.MatMul, [source, factors_name], [result], node.name),
            self.node(Op.Transpose, [result], [node.output], perm=perm),
        ]

    def _know(self, name: str, shape: list[int]) -> None:
        self.values[name] = Array(dtype="float32", shape=tuple(shape))


def _labels(equation: str) -> _Labels | None:
    """Return the axes of an Einsum that is such a product; None: it is another one."""
    match = _EQUATION.fullmatch(equation.replace(" ", ""))
    if match is None or any(len(set(group)) != len(group) for group in match.groups()):
        return None
    left, right, result_axes = match.groups()
    shared = [label for label in right if label in left and label in result_axes]
    summed = [label for label in right if label in left and label not in result_axes]
    other = [label for label in right if label not in left and label in result_axes]
    rows = [label for label in left if label not in right]
    counts = [len(shared), len(summed), len(other), len(right)]
    if counts != [1, 1, 1, 3] or not rows or {*result_axes} != {*shared, *other, *rows}:
        return None
    outer = "".join([*rows[:-1], *shared, rows[-1]])
    return _Labels(
        left,
        right,
        result_axes,
        outer + summed[0],
        outer + other[0],
        "".join([*shared, *summed, *other]),
    )
