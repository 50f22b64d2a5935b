"""Convolutions by cuBLAS: the products of matrices are its, the epilogue is a kernel of ours.

A call of module "cublas", function "sgemm", grid (0, 0, 0) has the library's own arguments: transa,
transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc; 0 is not transposed, 1 is. It knows columns
behind each other: our matrix [rows, columns] is its transposed one.
"""

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.convolutions.geometry import (
    Convolution,
    Epilogue,
    blocks,
    moved,
    with_epilogue,
)

#: Of gathered pixels; layers with deep windows get at least so many pixels at once.
_SLAB_FLOATS = 2 << 20
_MIN_SLAB = 256


def sgemm(
    a: Pointer, b: Pointer, c: Pointer, *, rows: int, columns: int, depth: int, stride: int
) -> Call:
    """Return c = a b with a [rows, depth], b [depth, columns], c's rows ``stride`` numbers apart."""
    arguments = (0, 0, columns, rows, depth, 1.0, b, columns, a, depth, 0.0, c, stride)
    return Call("cublas", "sgemm", (0, 0, 0), 0, arguments)


def _slab(shape: Convolution) -> int:
    """Return of how many pixels at once the windows are gathered."""
    return min(shape.pixels, max(_MIN_SLAB, _SLAB_FLOATS // shape.depth // 64 * 64))


def im2col_floats(shape: Convolution) -> int:
    """Return how many numbers of scratch ``im2col`` needs."""
    return _slab(shape) * shape.depth


def pointwise(
    shape: Convolution, x: Pointer, w: Pointer, y: Pointer, epilogue: Epilogue
) -> list[Call]:
    """Return the calls of a 1x1 convolution: its input is a factor as it lies."""
    filters, depth, pixels = shape.filters // shape.groups, shape.depth, shape.pixels
    calls = [
        sgemm(
            moved(w, image % shape.groups * filters * depth),
            moved(x, image * depth * pixels),
            moved(y, image * filters * pixels),
            rows=filters,
            columns=pixels,
            depth=depth,
            stride=pixels,
        )
        for image in range(shape.batch * shape.groups)
    ]
    return [*calls, *_epilogue(shape, y, epilogue)]


def im2col(
    shape: Convolution, x: Pointer, w: Pointer, y: Pointer, epilogue: Epilogue, scratch: Pointer
) -> list[Call]:
    """Return the calls of any convolution: the windows of a slab of pixels are gathered into scratch."""
    filters, depth = shape.filters // shape.groups, shape.depth
    plane = shape.channels // shape.groups * shape.height * shape.width
    calls = []
    for image in range(shape.batch * shape.groups):
        for first in range(0, shape.pixels, _slab(shape)):
            count = min(_slab(shape), shape.pixels - first)
            grid = (-(-count // 256), min(depth, 64), 1)
            sizes = (shape.numbers(), first, count)
            source = moved(x, image * plane)
            calls.append(Call("im2col", "im2col", grid, 256, (source, scratch, *sizes)))
            weights = moved(w, image % shape.groups * filters * depth)
            target = moved(y, image * filters * shape.pixels + first)
            calls.append(
                sgemm(
                    *(weights, scratch, target),
                    rows=filters,
                    columns=count,
                    depth=depth,
                    stride=shape.pixels,
                )
            )
    return [*calls, *_epilogue(shape, y, epilogue)]


def _epilogue(shape: Convolution, y: Pointer, epilogue: Epilogue) -> list[Call]:
    if epilogue == Epilogue():
        return []
    sizes = (shape.outputs, shape.filters, shape.pixels)
    arguments = with_epilogue((y,), epilogue, sizes)
    return [Call("convolution", "bias_activate", blocks(shape.outputs, 256), 256, arguments)]
