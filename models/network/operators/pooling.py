"""Pools with a window, and everything that makes one number of whole axes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from models.network.node import NamedTensor, NodeReader, UnsuitedError, axis_of
from models.network.operators.movement import Reshape
from models.network.windows import Windows

PoolKind = Literal["largest", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """The largest or the mean of each window of the planes of ``x`` [N, C, ...].

    ``counts_padding``: a mean is over the padding, too, whose numbers are zeros.
    """

    kind: PoolKind
    x: NamedTensor
    y: NamedTensor
    windows: Windows
    counts_padding: bool = False


Reduced = Literal[
    "largest", "mean", "product", "root_of_squares", "smallest", "sum", "magnitudes", "squares"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Reduction of ``axes`` of ``x``, ascending: mean, the largest number, the sum of ``squares``, ..."""

    kind: Reduced
    x: NamedTensor
    y: NamedTensor
    axes: tuple[int, ...]


def pool(kind: PoolKind) -> Callable[[NodeReader], Pooling]:
    """Return the reader of pools of a kind."""

    def read_pool(read: NodeReader) -> Pooling:
        """MaxPool, AveragePool."""
        read.require("storage_order", 0)
        x, kernel = read.floats(0), read.attribute("kernel_shape")
        if kernel is None or len(kernel) != len(x.shape) - 2:
            raise UnsuitedError(f"a kernel of {kernel} on {list(x.shape)}")
        windows = read.windows(kernel, x.shape[2:])
        return Pooling(
            kind=kind,
            x=x,
            y=read.made(x, (*x.shape[:2], *windows.result)),
            windows=windows,
            counts_padding=kind == "mean" and bool(read.attribute("count_include_pad")),
        )

    return read_pool


def over_planes(kind: Reduced) -> Callable[[NodeReader], Reduction]:
    """Return the reader of reductions of all axes behind the channels."""

    def read_global(read: NodeReader) -> Reduction:
        """GlobalMaxPool, GlobalAveragePool: over all axes behind the channels."""
        x = read.floats(0)
        axes = tuple(range(2, len(x.shape)))
        y = read.made(x, (*x.shape[:2], *[1] * len(axes)))
        return Reduction(kind=kind, x=x, y=y, axes=axes)

    return read_global


def over_axes(kind: Reduced) -> Callable[[NodeReader], Reduction | Reshape]:
    """Return the reader of reductions of axes that nodes say."""

    def read_reduction(read: NodeReader) -> Reduction | Reshape:
        """The operators Reduce...: axes are an attribute or, in new operator sets, an input."""
        x, given = read.floats(0), read.integers(1, "axes")
        if not given and read.attribute("noop_with_empty_axes"):
            return Reshape(x=x, y=read.made(x))
        rank = len(x.shape)
        axes = sorted({axis_of(axis, rank) for axis in given or range(rank)})
        ones = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
        kept = [n for axis, n in enumerate(x.shape) if axis not in axes]
        y = read.made(x, ones if read.attribute("keepdims") else kept)
        return Reduction(kind=kind, x=x, y=y, axes=tuple(axes))

    return read_reduction
