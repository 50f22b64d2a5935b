"""Operators without weights, each as the usual exporters (torch.onnx, operator set 17) write it."""

import math
from collections.abc import Sequence

import numpy as np

from models.zoo.graph import ZooGraph, ZooTensor


class Operators(ZooGraph):
    """Each method adds one operator, or a function of several, and returns what it makes."""

    def relu(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("Relu", [x], x.shape)

    def relu6(self, x: ZooTensor) -> ZooTensor:
        return self.add_node(
            "Clip", [x, self.constant("zero", 0.0), self.constant("six", 6.0)], x.shape
        )

    def sigmoid(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("Sigmoid", [x], x.shape)

    def silu(self, x: ZooTensor) -> ZooTensor:
        return self.mul(x, self.sigmoid(x))

    def hard_sigmoid(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("HardSigmoid", [x], x.shape, alpha=1 / 6, beta=0.5)

    def hard_swish(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("HardSwish", [x], x.shape)

    def gelu(self, x: ZooTensor) -> ZooTensor:
        """Add x / 2 (1 + erf(x / sqrt 2)): operator set 17 has no Gelu."""
        erf = self.add_node("Erf", [self.div(x, self.constant("sqrt2", math.sqrt(2)))], x.shape)
        wide = self.mul(x, self.add(erf, self.constant("one", 1.0)))
        return self.mul(wide, self.constant("half", 0.5))

    def softmax(self, x: ZooTensor, axis: int) -> ZooTensor:
        return self.add_node("Softmax", [x], x.shape, axis=axis)

    def add(self, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        return self._elements("Add", x, y)

    def sub(self, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        return self._elements("Sub", x, y)

    def mul(self, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        """Add a product; ``y`` may be one number for each channel of ``x``."""
        return self._elements("Mul", x, y)

    def div(self, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        return self._elements("Div", x, y)

    def square(self, x: ZooTensor) -> ZooTensor:
        return self._elements("Pow", x, self.constant("two", 2.0))

    def matmul(self, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        """Add the product of the matrices in the last two axes."""
        before = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        return self.add_node("MatMul", [x, y], (*before, x.shape[-2], y.shape[-1]))

    def concat(self, *parts: ZooTensor, axis: int = 1) -> ZooTensor:
        """Join tensors, by default along the channels."""
        first = parts[0].shape
        total = sum(part.shape[axis] for part in parts)
        shape = (*first[:axis], total, *first[axis + 1 :])
        return self.add_node("Concat", parts, shape, axis=axis)

    def split(self, x: ZooTensor, sizes: Sequence[int], axis: int = 1) -> list[ZooTensor]:
        """Take ``x`` apart, by default along the channels."""
        label = self.next_label("Split")
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        given = self.constant(f"{label}.sizes", sizes)
        return self.add_nodes("Split", [x, given], shapes, axis=axis)

    def reshape(self, x: ZooTensor, *shape: int) -> ZooTensor:
        """Give ``x`` another shape of as many elements; -1 is what is left."""
        left = math.prod(x.shape) // math.prod(size for size in shape if size > 0)
        given = self.constant(f"{self.next_label('Reshape')}.shape", shape)
        known = tuple(left if size < 0 else size for size in shape)
        return self.add_node("Reshape", [x, given], known)

    def squeeze(self, x: ZooTensor, axis: int) -> ZooTensor:
        """Take away ``axis``, which has one element."""
        axes = self.constant(f"axes{axis}", [axis])
        return self.add_node("Squeeze", [x, axes], (*x.shape[:axis], *x.shape[axis + 1 :]))

    def transpose(self, x: ZooTensor, *axes: int) -> ZooTensor:
        return self.add_node("Transpose", [x], tuple(x.shape[axis] for axis in axes), perm=axes)

    def take(self, x: ZooTensor, index: int, axis: int) -> ZooTensor:
        """Take one element of ``axis``, which goes."""
        where = self.constant(f"index{index}", np.array(index))
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        return self.add_node("Gather", [x, where], shape, axis=axis)

    def crop(self, x: ZooTensor, top: int, left: int, height: int, width: int) -> ZooTensor:
        """Take rows [top, top + height) and columns [left, left + width) of a feature map."""
        label = self.next_label("Slice")
        starts = self.constant(f"{label}.starts", (top, left))
        ends = self.constant(f"{label}.ends", (top + height, left + width))
        inputs = [x, starts, ends, self.constant("rows_columns", (2, 3))]
        return self.add_node("Slice", inputs, (*x.shape[:2], height, width))

    def whole_numbers(self, name: str, values: Sequence[int] | np.ndarray) -> ZooTensor:
        """Add whole numbers of a formula as real ones: a cast, so that they do not count as trained."""
        given = self.constant(name, values)
        return self.add_node("Cast", [given], given.shape, to=1)

    def flatten(self, x: ZooTensor) -> ZooTensor:
        return self.add_node("Flatten", [x], (1, math.prod(x.shape[1:])))

    def _elements(self, kind: str, x: ZooTensor, y: ZooTensor) -> ZooTensor:
        return self.add_node(kind, [x, y], np.broadcast_shapes(x.shape, y.shape))
