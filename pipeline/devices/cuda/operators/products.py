"""Launches of kernels/matrix.cu: products of matrices.

The bits of a result depend neither on its rows nor on its columns: weights may come in chunks.
"""

import math

import numpy as np

from models.network.node import UnsuitedError
from models.network.operators.movement import broadcast_strides
from models.network.operators.reading import MatrixProduct
from pipeline.devices.cuda.call import KernelLaunch
from pipeline.devices.cuda.operators.launches import (
    MAX_ELEMENTS,
    activation_arguments,
    collapse,
)
from pipeline.devices.cuda.scope import Scope

_THREADS = 128
#: Warps of a block of ``fully_connected``; each has one output.
_ROWS = 4
_IMAGES = 4
#: Rows and columns of a tile of ``multiply``.
_TILE = 64
#: From more images on, the product by tiles reads the weights less often.
_MOST_IMAGES = 16


def product(it: MatrixProduct, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a product; few rows by weights that lie by rows have a kernel of their own.

    Raises:
        UnsuitedError: the batches broadcast along some axes only, or there is too much to compute.
    """
    plain = it.turned == (False, True) and not any(it.batches)
    if plain and it.rows <= _MOST_IMAGES and _adds_a_row(it):
        return [_fully_connected(it, scope)]
    return [_multiplied(it, scope)]


def _adds_a_row(it: MatrixProduct) -> bool:
    """Return whether nothing is added, or a number a column; a chunk may be one column."""
    if it.addend is None:
        return True
    row, column = broadcast_strides(it.addend.shape, it.y.shape)
    return row == 0 and (column == 1 or it.columns == 1)


def _fully_connected(it: MatrixProduct, scope: Scope) -> KernelLaunch:
    """Return the launch of y = activation(scale * x w^T + bias_scale * bias)."""
    images, depth, outputs = it.rows, it.depth, it.columns
    _check(images * depth, outputs * depth, images * outputs)
    at_once = 1 if images == 1 else _IMAGES
    grid = (-(-outputs // _ROWS), -(-images // at_once), 1)
    pointers = scope.read(it.a), scope.read(it.b), scope.write(it.y), scope.optional(it.addend)
    numbers = (images, depth, outputs, it.scale, it.addend_scale)
    arguments = (*pointers, *numbers, *activation_arguments(it.activation))
    return KernelLaunch("matrix", f"fully_connected_{at_once}", grid, _THREADS, arguments)


def _multiplied(it: MatrixProduct, scope: Scope) -> KernelLaunch:
    """Return the launch of y = activation(scale * a b + addend), batch times."""
    rows, depth, columns = it.rows, it.depth, it.columns
    batch = np.broadcast_shapes(*it.batches)
    whole = (*batch, rows, columns)
    added = (0,) * len(whole)
    if it.addend is not None:
        added = broadcast_strides(it.addend.shape, whole)
    elif math.prod(it.batches[1]) == 1 and not it.turned[0]:
        # All that is on the left is one matrix.
        rows, batch = math.prod(batch) * rows, ()
    steps = (
        _matrices(it.batches[0], batch, rows * depth),
        _matrices(it.batches[1], batch, depth * columns),
        added[: len(batch)],
    )
    layout = collapse(batch, *steps)
    if layout.rank > 1:
        raise UnsuitedError(f"batches {list(it.batches[0])} and {list(it.batches[1])}")
    count = math.prod(batch)
    _check(rows * depth, depth * columns, count * rows * columns)
    tiles = -(-rows // _TILE) * -(-columns // _TILE) * count
    numbers = (rows, columns, depth, *(step for (step,) in layout.strides), *added[-2:])
    name = "".join("t" if turned else "n" for turned in it.turned)
    pointers = scope.read(it.a), scope.read(it.b), scope.write(it.y), scope.optional(it.addend)
    scales = (it.scale, it.addend_scale if it.addend is not None else 0.0)
    arguments = (*pointers, numbers, *scales, *activation_arguments(it.activation))
    return KernelLaunch("matrix", f"multiply_{name}", (tiles, 1, 1), _THREADS, arguments)


def _matrices(batch: tuple[int, ...], whole: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """Return the steps along ``whole`` from matrix to matrix, each of ``elements``."""
    if not whole:
        return ()
    return tuple(step * elements for step in broadcast_strides(batch, whole))


def _check(*counts: int) -> None:
    if min(counts) < 1 or max(counts) > MAX_ELEMENTS:
        raise UnsuitedError(f"matrices of {counts} elements")
