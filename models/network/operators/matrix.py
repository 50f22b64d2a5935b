"""Products of matrices."""

from dataclasses import dataclass

import numpy as np

from models.network.activations import Activation
from models.network.node import NamedTensor, NodeReader, Shape, UnsuitedError


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """activation(scale A B + addend_scale C), of the last two axes of ``a`` and ``b``.

    Axes before them are a batch; both have two or more. ``turned``: whether the last two of each are
    exchanged first. ``addend``: broadcast to ``y``.
    """

    a: NamedTensor
    b: NamedTensor
    y: NamedTensor
    turned: tuple[bool, bool] = (False, False)
    scale: float = 1.0
    addend: NamedTensor | None = None
    addend_scale: float = 1.0
    activation: Activation | None = None

    @property
    def rows(self) -> int:
        return self._sides(0)[0]

    @property
    def depth(self) -> int:
        return self._sides(0)[1]

    @property
    def columns(self) -> int:
        return self._sides(1)[1]

    @property
    def batches(self) -> tuple[Shape, Shape]:
        """The axes of ``a`` and ``b`` before the last two."""
        return self.a.shape[:-2], self.b.shape[:-2]

    def _sides(self, number: int) -> Shape:
        sides = (self.a, self.b)[number].shape[-2:]
        return sides[::-1] if self.turned[number] else sides


def gemm(read: NodeReader) -> MatrixProduct:
    """Gemm, and FusedGemm."""
    a, b = read.floats(0), read.floats(1)
    turned = bool(read.attribute("transA")), bool(read.attribute("transB"))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise UnsuitedError(f"matrices {list(a.shape)} and {list(b.shape)}")
    rows, depth = a.shape[::-1] if turned[0] else a.shape
    others, columns = b.shape[::-1] if turned[1] else b.shape
    if depth != others:
        raise UnsuitedError(f"matrices {list(a.shape)} and {list(b.shape)}")
    return MatrixProduct(
        a=a,
        b=b,
        y=read.made(a, (rows, columns)),
        turned=turned,
        scale=float(read.attribute("alpha")),
        addend=read.optional(2),
        addend_scale=float(read.attribute("beta")),
    )


def matmul(read: NodeReader) -> MatrixProduct:
    """MatMul, and FusedMatMul: a vector is a matrix of one row or column."""
    if read.attribute("transBatchA", 0) or read.attribute("transBatchB", 0):
        raise UnsuitedError("matrices whose rows lie apart: transBatchA or transBatchB")
    a, b = read.floats(0), read.floats(1)
    left = (1, *a.shape) if len(a.shape) == 1 else a.shape
    right = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    turned = bool(read.attribute("transA", 0)), bool(read.attribute("transB", 0))
    rows, depth = left[-2:][::-1] if turned[0] else left[-2:]
    others, columns = right[-2:][::-1] if turned[1] else right[-2:]
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        batch = (-1,)
    if depth != others or min(batch, default=1) < 0:
        raise UnsuitedError(f"matrices {list(a.shape)} and {list(b.shape)}")
    result_shape = (*batch, *(rows,) * (len(a.shape) > 1), *(columns,) * (len(b.shape) > 1))
    return MatrixProduct(
        a=a.shaped(left),
        b=b.shaped(right),
        y=read.made(a, result_shape),
        turned=turned,
        scale=float(read.attribute("alpha", 1.0)),
    )
