"""Batch norms with constant statistics become part of the convolutions before them, a layer at a time.

ONNX Runtime does the same, with the same bits, and holds all that it rewrites until the model is written:
of ResNet-50 all of its weights. Here a layer is scaled in its file.
"""

import numpy as np
from numpy.typing import NDArray

from models.graphs.ranges import range_of
from models.graphs.rewriter import Rewriter
from models.network.names import Op
from models.network.node import Node

_EPSILON = 1e-5


class FoldNorms(Rewriter):
    """Folds batch norms into convolutions whose weights lie in files, which change."""

    def replaced(self, node: Node) -> list[Node] | None:
        convolution = self.makers.get(node.inputs[0]) if node.inputs else None
        if convolution is None or not self._folds(convolution, node):
            return None
        scale, shift, mean, variance = map(self._array, node.inputs[1:])
        epsilon = np.float32(node.attributes.get("epsilon", _EPSILON))
        factor = scale / np.sqrt(variance + epsilon)
        if any(convolution.inputs[2:]):
            bias = (self._array(convolution.inputs[2]) - mean) * factor + shift
        else:
            bias = shift - mean * factor
        weights = self._mapped(convolution.inputs[1])
        weights *= factor.reshape(-1, *(1,) * (weights.ndim - 1))
        title = self.constant(f"{node.output}/bias", bias)
        return [convolution.replaced([*convolution.inputs[:2], title], node.outputs)]

    def _folds(self, convolution: Node, node: Node) -> bool:
        """Return whether ``node`` is a batch norm that nothing but constants keeps from ``convolution``."""
        if node.operator != Op.BatchNormalization or convolution.operator != Op.Conv:
            return False
        weights = self.constants.get(convolution.inputs[1])
        names = [*filter(None, (*convolution.inputs[2:], *node.inputs[1:]))]
        vectors = [self._constant(name) for name in names]
        is_float = all(
            item is not None and item.dtype == np.float32 for item in (weights, *vectors)
        )
        modes = node.attributes
        is_inference = not modes.get("training_mode", 0) and modes.get("spatial", 1)
        if weights is None or not is_float or not is_inference or len(node.outputs) != 1:
            return False
        sizes = {vector.shape for vector in vectors if vector is not None}
        has_one_reader = all(
            self.uses[name] == 1 for name in (node.inputs[0], convolution.inputs[1])
        )
        is_vectors = sizes == {weights.shape[:1]}
        return has_one_reader and is_vectors and range_of(weights) is not None

    def _negated(self, name: str) -> str:
        """Return the constant of which ``name`` has the other sign (rewrite.py); empty: none."""
        producer = self.makers.get(name)
        return producer.inputs[0] if producer is not None and producer.operator == Op.Neg else ""

    def _constant(self, name: str) -> NDArray[np.float32] | None:
        return self.constants.get(self._negated(name) or name)

    def _array(self, name: str) -> NDArray[np.float32]:
        array = self._constant(name)
        assert array is not None, name
        return -array if self._negated(name) else array

    def _mapped(self, name: str) -> NDArray[np.float32]:
        """Return a constant in its file; what is written to it is written there."""
        weights = self.constants[name]
        held = range_of(weights)
        assert held is not None, name
        return np.memmap(held.path, np.float32, "r+", held.offset, weights.shape)
