"""Launches of kernels/matrix.cu."""

from dataclasses import dataclass

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.activation import Activated
from pipeline.devices.cuda.calls.launches import MAX_ELEMENTS

_THREADS = 128
#: Warps of a block of ``fully_connected``; each has one output.
_ROWS = 4
_IMAGES = 4
#: Rows and columns of a tile of ``multiply``.
_TILE = 64
#: From more images on, the product by tiles reads the weights less often.
_MOST_IMAGES = 16


@dataclass(frozen=True)
class Addend:
    """Numbers to add to a product [batch, rows, columns].

    ``strides``: numbers from matrix to matrix, row to row, column to column; 0 where all have the
    same.
    """

    pointer: Pointer
    strides: tuple[int, int, int]
    scale: float = 1.0


@dataclass(frozen=True)
class Factors:
    """[rows, depth] times [depth, columns], ``batch`` times.

    ``transposed``: of A and of B, which then lie as [depth, rows] and [columns, depth].
    ``strides``: numbers from matrix to matrix in A and in B; 0 where all are the same.
    """

    rows: int
    columns: int
    depth: int
    batch: int = 1
    transposed: tuple[bool, bool] = (False, False)
    strides: tuple[int, int] = (0, 0)


def fully_connected(
    x: Pointer,
    w: Pointer,
    y: Pointer,
    bias: Pointer | None,
    *,
    images: int,
    depth: int,
    outputs: int,
    scale: float = 1.0,
    bias_scale: float = 1.0,
    activated: Activated | None = None,
) -> Call:
    """Return the launch of y = activation(scale * x w^T + bias_scale * bias), float32.

    The bits of y do not depend on ``outputs``: rows of w may come in chunks.

    Args:
        x: [images, depth].
        w: [outputs, depth].
        y: [images, outputs].
        bias: [outputs], or None.
        images: rows of x.
        depth: products of a sum.
        outputs: rows of w.
        scale: of the sums.
        bias_scale: of the bias.
        activated: None: nothing.

    Raises:
        ValueError: there is nothing to compute, or too much.
    """
    if images > _MOST_IMAGES:
        factors = Factors(images, outputs, depth, transposed=(False, True))
        addend = None if bias is None else Addend(bias, (0, 0, 1), bias_scale)
        return multiply(x, w, y, factors, addend=addend, scale=scale, activated=activated)
    _check(images * depth, outputs * depth, images * outputs)
    at_once = 1 if images == 1 else _IMAGES
    grid = (-(-outputs // _ROWS), -(-images // at_once), 1)
    sizes = (images, depth, outputs, float(scale), float(bias_scale))
    arguments = (x, w, y, bias, *sizes, *(activated or Activated()).tail)
    return Call("matrix", f"fully_connected_{at_once}", grid, _THREADS, arguments)


def multiply(
    a: Pointer,
    b: Pointer,
    y: Pointer,
    factors: Factors,
    *,
    addend: Addend | None = None,
    scale: float = 1.0,
    activated: Activated | None = None,
) -> Call:
    """Return the launch of y = activation(scale * a b + addend), float32 [batch, rows, columns].

    The bits of y depend neither on ``rows`` nor on ``columns``.

    Raises:
        ValueError: there is nothing to compute, or too much.
    """
    rows, columns, depth = factors.rows, factors.columns, factors.depth
    _check(rows * depth, depth * columns, factors.batch * rows * columns)
    tiles = -(-rows // _TILE) * -(-columns // _TILE) * factors.batch
    numbers = (rows, columns, depth, *factors.strides, *(addend.strides if addend else (0, 0, 0)))
    name = "".join("t" if transposed else "n" for transposed in factors.transposed)
    scales = (float(scale), float(addend.scale) if addend else 0.0)
    added = addend.pointer if addend else None
    arguments = (a, b, y, added, numbers, *scales, *(activated or Activated()).tail)
    return Call("matrix", f"multiply_{name}", (tiles, 1, 1), _THREADS, arguments)


def _check(*counts: int) -> None:
    if min(counts) < 1 or max(counts) > MAX_ELEMENTS:
        raise ValueError(f"matrices of {counts} elements")
