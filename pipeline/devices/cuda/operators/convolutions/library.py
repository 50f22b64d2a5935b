"""Convolutions by cuBLAS: the products of matrices are its, the epilogue is a kernel of ours.

A call of module "cublas", function "sgemm", grid (0, 0, 0) has the library's own arguments: transa,
transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc; 0 is not transposed, 1 is. It knows columns
behind each other: our matrix [rows, columns] is its transposed one.
"""

import math

from models.network.operators.reading import Convolution
from pipeline.devices.cuda.call import DevicePointer, KernelLaunch
from pipeline.devices.cuda.operators.convolutions.direct import (
    behind,
    numbers,
    plain,
    with_epilogue,
)
from pipeline.devices.cuda.operators.launches import blocks
from pipeline.devices.cuda.scope import Scope

#: Of gathered pixels; layers with deep windows get at least so many pixels at once.
_SLAB_FLOATS = 2 << 20
_MIN_SLAB = 256


def _sgemm(
    a: DevicePointer,
    b: DevicePointer,
    c: DevicePointer,
    *,
    rows: int,
    columns: int,
    depth: int,
    stride: int,
) -> KernelLaunch:
    """Return c = a b with a [rows, depth], b [depth, columns], c's rows ``stride`` numbers apart."""
    arguments = (0, 0, columns, rows, depth, 1.0, b, columns, a, depth, 0.0, c, stride)
    return KernelLaunch("cublas", "sgemm", (0, 0, 0), 0, arguments)


def pointwise(it: Convolution, scope: Scope) -> list[KernelLaunch]:
    """Return the calls of a 1x1 convolution: its input is a factor as it lies."""
    filters, depth, pixels = it.filters // it.groups, it.depth, it.pixels
    x, w, y = scope.read(it.x), scope.read(it.weight), scope.write(it.y)
    calls = [
        _sgemm(
            behind(w, image % it.groups * filters * depth),
            behind(x, image * depth * pixels),
            behind(y, image * filters * pixels),
            rows=filters,
            columns=pixels,
            depth=depth,
            stride=pixels,
        )
        for image in range(it.x.shape[0] * it.groups)
    ]
    return [*calls, *_epilogue(it, scope)]


def im2col(it: Convolution, scope: Scope) -> list[KernelLaunch]:
    """Return the calls of any convolution: the windows of a slab of pixels are gathered in between."""
    filters, depth, pixels = it.filters // it.groups, it.depth, it.pixels
    plane = it.weight.shape[1] * math.prod(it.windows.size)
    # Of how many pixels at once the windows are gathered.
    slab = min(pixels, max(_MIN_SLAB, _SLAB_FLOATS // depth // 64 * 64))
    x, w, y = scope.read(it.x), scope.read(it.weight), scope.write(it.y)
    gathered = scope.write(scope.temporary((slab, depth)))
    calls = []
    for image in range(it.x.shape[0] * it.groups):
        for first in range(0, pixels, slab):
            count = min(slab, pixels - first)
            grid = (-(-count // 256), min(depth, 64), 1)
            source = behind(x, image * plane)
            arguments = (source, gathered, numbers(it), first, count)
            calls.append(KernelLaunch("im2col", "im2col", grid, 256, arguments))
            weights = behind(w, image % it.groups * filters * depth)
            target = behind(y, image * filters * pixels + first)
            calls.append(
                _sgemm(
                    *(weights, gathered, target),
                    rows=filters,
                    columns=count,
                    depth=depth,
                    stride=pixels,
                )
            )
    return [*calls, *_epilogue(it, scope)]


def _epilogue(it: Convolution, scope: Scope) -> list[KernelLaunch]:
    if it == plain(it):
        return []
    count = math.prod(it.y.shape)
    arguments = with_epilogue(it, scope, (scope.write(it.y),), (count, it.filters, it.pixels))
    return [KernelLaunch("convolution", "bias_activate", blocks(count), 256, arguments)]
