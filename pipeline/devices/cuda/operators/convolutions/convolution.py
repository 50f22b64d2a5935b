"""Convolutions, with what is fused into them, by the algorithm that is chosen for each."""

from models.network.node import UnsuitedError
from models.network.operators.reading import Convolution
from pipeline.devices.cuda.call import KernelLaunch
from pipeline.devices.cuda.operators.convolutions.algorithms import (
    Algorithm,
    choose,
    is_possible,
)
from pipeline.devices.cuda.operators.convolutions.direct import (
    Tile,
    check_size,
    numbers,
    split,
    tiled,
    with_epilogue,
)
from pipeline.devices.cuda.operators.convolutions.library import im2col, pointwise
from pipeline.devices.cuda.operators.convolutions.winograd import winograd
from pipeline.devices.cuda.operators.launches import blocks
from pipeline.devices.cuda.scope import Scope

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
            return pointwise(it, scope)
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
