"""Convolutions, with what is fused into them, by the algorithm that is chosen for each."""

import math

from models.network.node import NamedTensor, UnsuitedError
from models.network.operators.reading import Convolution
from models.network.windows import SAME, Windows
from pipeline.devices.cuda.call import Argument, DevicePointer, KernelLaunch
from pipeline.devices.cuda.operators.convolutions.algorithms import (
    Algorithm,
    choose,
    is_possible,
)
from pipeline.devices.cuda.operators.convolutions.direct import (
    Tile,
    behind,
    check_size,
    numbers,
    plain,
    split,
    tiled,
    with_epilogue,
)
from pipeline.devices.cuda.operators.launches import blocks
from pipeline.devices.cuda.scope import Scope

# Convolutions by cuBLAS: the products of matrices are its, the epilogue is a kernel of ours.
#
# A call of module "cublas", function "sgemm", grid (0, 0, 0) has the library's own arguments: transa,
# transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc; 0 is not transposed, 1 is. It takes columns behind
# each other: our matrix [rows, columns] is its transposed one.

#: Of gathered pixels; layers with deep windows get at least so many pixels at once.
_SLAB_FLOATS = 2 << 20
_MIN_SLAB_PIXELS = 256


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


def _pointwise(it: Convolution, scope: Scope) -> list[KernelLaunch]:
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
    slab = min(pixels, max(_MIN_SLAB_PIXELS, _SLAB_FLOATS // depth // 64 * 64))
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


# Launches of kernels/winograd.cu, and of the products between them.

#: Places of a 4x4 tile of inputs: each has a product of matrices.
_PLACES = 16
#: Of transformed inputs and products together: a slab of tiles is as wide as they allow.
_MIN_SLAB_TILES = 64


def winograd(it: Convolution, scope: Scope) -> list[KernelLaunch]:
    """Return the launches of a 3x3 convolution, stride 1, no dilation, one group.

    In between lie the transformed filters, and the inputs and the products of a slab of tiles.
    """
    channels, filters = it.x.shape[1], it.filters
    # 2x2 tiles of outputs of an image.
    tiles = math.prod(-(-length // 2) for length in it.windows.result)
    wanted = _SLAB_FLOATS // (_PLACES * (channels + filters)) // 64 * 64
    slab = min(tiles, max(_MIN_SLAB_TILES, wanted))
    weight = scope.temporary((_PLACES * filters, channels, 1, 1))
    inputs, products = (scope.temporary((1, _PLACES * n, 1, slab)) for n in (channels, filters))
    x, pairs = scope.read(it.x), filters * channels
    calls = [_call("transform_filters", pairs, (scope.read(it.weight), scope.read(weight), pairs))]
    for image in range(it.x.shape[0]):
        source = behind(x, image * channels * math.prod(it.windows.size))
        for first in range(0, tiles, slab):
            count = min(slab, tiles - first)
            arguments = (source, scope.write(inputs), numbers(it), first, count)
            calls += [
                _call("transform_input", channels * count, arguments),
                tiled(_product(inputs, weight, products, count), scope),
                _outputs(it, image, products, (first, count), scope),
            ]
    return calls


def _call(function: str, threads: int, arguments: tuple[Argument, ...]) -> KernelLaunch:
    return KernelLaunch("winograd", function, blocks(threads), 256, arguments)


def _product(
    inputs: NamedTensor, weight: NamedTensor, products: NamedTensor, count: int
) -> Convolution:
    """Return the products for all places and ``count`` tiles: a 1x1 convolution, a group a place."""
    return Convolution(
        x=inputs.shaped((*inputs.shape[:3], count)),
        weight=weight,
        y=products.shaped((*products.shape[:3], count)),
        windows=Windows((SAME, SAME), (1, count), (1, count), (0, 0)),
        groups=_PLACES,
    )


def _outputs(
    it: Convolution, image: int, products: NamedTensor, tiles: tuple[int, int], scope: Scope
) -> KernelLaunch:
    skipped = image * it.filters * it.pixels
    head = (scope.read(products), behind(scope.write(it.y), skipped))
    arguments = with_epilogue(it, scope, head, (numbers(it), *tiles), skipped)
    return _call("transform_output", it.filters * tiles[1], arguments)


# All algorithms, and depthwise convolutions, which have one.

_DEPTHWISE_THREADS = 128
#: Outputs of a thread, below each other, in the kernels for one size of window.
_STRIP = 4
_SIZES = (3, 5)
_STRIDES = (1, 2)


def convolution(it: Convolution, scope: Scope) -> list[KernelLaunch]:
    """Return the launches of a convolution by the algorithm that is measured or the default."""
    return convolve(it, choose(it, scope.settings), scope)


def convolve(
    it: Convolution, algorithm: Algorithm, scope: Scope, tile: Tile | None = None
) -> list[KernelLaunch]:
    """Return the launches of a convolution, all float32 in memory.

    ``y`` may lie where ``addend`` lies, which is then overwritten. ``tile``: for tests; None: the one
    that should be fastest.

    Raises:
        UnsuitedError: there is too much to compute, or ``algorithm`` cannot.
    """
    check_size(it)
    if not is_possible(it, algorithm):
        raise UnsuitedError(f"{algorithm} cannot compute {it}")
    match algorithm.kind:
        case "depthwise":
            return [_depthwise(it, scope)]
        case "cublas":
            return _pointwise(it, scope)
        case "im2col":
            return im2col(it, scope)
        case "winograd":
            return winograd(it, scope)
        case "split":
            return split(it, algorithm, scope, tile)
        case "direct" | "half":
            return [tiled(it, scope, tile, half=algorithm.kind == "half")]


def _depthwise(it: Convolution, scope: Scope) -> KernelLaunch:
    """Return the launch of kernels/depthwise.cu, for one channel for each group."""
    windows, batch = it.windows.on_a_plane, it.x.shape[0]
    size, stride = windows.kernel[0], windows.strides[0]
    special = (
        windows.kernel == (size, size)
        and windows.strides == (stride, stride)
        and windows.dilations == (1, 1)
        and size in _SIZES
        and stride in _STRIDES
    )
    name = f"depthwise_{size}x{size}_s{stride}" if special else "depthwise_any"
    height, width = windows.result
    strips = -(-height // _STRIP) if special else height
    head = (scope.read(it.x), scope.read(it.weight), scope.write(it.y))
    arguments = with_epilogue(it, scope, head, (numbers(it), batch))
    grid = blocks(batch * it.filters * strips * width, _DEPTHWISE_THREADS)
    return KernelLaunch("depthwise", name, grid, _DEPTHWISE_THREADS, arguments)
