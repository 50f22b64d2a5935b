"""Batch norms with constant statistics become part of the convolutions before them, a layer at a time.

ONNX Runtime does the same, with the same bits, and holds all that it rewrites until the model is written:
of ResNet-50 all of its weights. Here a layer is scaled in its file.
"""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from models.graphs.file import numbers_of, reference
from models.graphs.nodes import attributes, copied
from models.graphs.rewriting import Rewriter
from models.network.names import Op, op_of

_EPSILON = 1e-5


class FoldNorms(Rewriter):
    """Folds batch norms into convolutions whose weights lie in a file of ``folder``, which changes."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        super().__init__(model)
        self._folder = folder

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        convolution = self.makers.get(node.input[0]) if node.input else None
        if convolution is None or not self._folds(convolution, node):
            return None
        scale, shift, mean, variance = map(self._array, node.input[1:])
        epsilon = np.float32(attributes(node).get("epsilon", _EPSILON))
        factor = scale / np.sqrt(variance + epsilon)
        if any(convolution.input[2:]):
            bias = (self._array(convolution.input[2]) - mean) * factor + shift
        else:
            bias = shift - mean * factor
        weights = self._mapped(convolution.input[1])
        weights *= factor.reshape(-1, *(1,) * (weights.ndim - 1))
        title = self.constant(f"{node.output[0]}/bias", bias)
        return [copied(convolution, [*convolution.input[:2], title], node.output)]

    def _folds(self, convolution: onnx.NodeProto, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` is a batch norm that nothing but constants keeps from ``convolution``."""
        if op_of(node) != Op.BatchNormalization or op_of(convolution) != Op.Conv:
            return False
        weights = self.tensors.get(convolution.input[1])
        names = [*filter(None, (*convolution.input[2:], *node.input[1:]))]
        vectors = [self._constant(name) for name in names]
        is_float = all(item and item.data_type == TensorProto.FLOAT for item in (weights, *vectors))
        modes = attributes(node)
        is_inference = not modes.get("training_mode", 0) and modes.get("spatial", 1)
        if weights is None or not is_float or not is_inference or len(node.output) != 1:
            return False
        sizes = {tuple(vector.dims) for vector in vectors if vector is not None}
        has_one_reader = all(self.uses[name] == 1 for name in (node.input[0], weights.name))
        is_vectors = sizes == {tuple(weights.dims[:1])}
        return has_one_reader and is_vectors and reference(weights) is not None

    def _negated(self, name: str) -> str:
        """Return the constant of which ``name`` has the other sign (rewrite.py); empty: none."""
        producer = self.makers.get(name)
        return producer.input[0] if producer is not None and op_of(producer) == Op.Neg else ""

    def _constant(self, name: str) -> TensorProto | None:
        return self.tensors.get(self._negated(name) or name)

    def _array(self, name: str) -> NDArray[np.float32]:
        tensor = self._constant(name)
        assert tensor is not None, name
        array = numbers_of(tensor, self._folder)
        return -array if self._negated(name) else array

    def _mapped(self, name: str) -> NDArray[np.float32]:
        """Return a constant in its file; what is written to it is written there."""
        tensor = self.tensors[name]
        data = reference(tensor)
        assert data is not None, name
        shape = tuple(tensor.dims)
        return np.memmap(self._folder / data.path, np.float32, "r+", data.offset, shape)
