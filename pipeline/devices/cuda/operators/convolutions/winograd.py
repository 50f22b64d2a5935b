"""Launches of kernels/winograd.cu, and of the products between them."""

import math

from models.network.node import NamedTensor
from models.network.operators.reading import Convolution
from models.network.windows import SAME, Windows
from pipeline.devices.cuda.call import Argument, KernelLaunch
from pipeline.devices.cuda.operators.convolutions.direct import (
    behind,
    numbers,
    tiled,
    with_epilogue,
)
from pipeline.devices.cuda.operators.launches import blocks
from pipeline.devices.cuda.scope import Scope

#: Places of a 4x4 tile of inputs: each has a product of matrices.
_PLACES = 16
#: Of transformed inputs and products together: a slab of tiles is as wide as they allow.
_SLAB_FLOATS = 2 << 20
_MIN_SLAB = 64


def winograd(it: Convolution, scope: Scope) -> list[KernelLaunch]:
    """Return the launches of a 3x3 convolution, stride 1, no dilation, one group.

    In between lie the transformed filters, and the inputs and the products of a slab of tiles.
    """
    channels, filters = it.x.shape[1], it.filters
    # 2x2 tiles of outputs of an image.
    tiles = math.prod(-(-length // 2) for length in it.windows.result)
    wanted = _SLAB_FLOATS // (_PLACES * (channels + filters)) // 64 * 64
    slab = min(tiles, max(_MIN_SLAB, wanted))
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
