"""Launches of kernels/winograd.cu, and of the products between them."""

from dataclasses import replace

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.convolutions.geometry import (
    Convolution,
    Epilogue,
    blocks,
    moved,
    with_epilogue,
)
from pipeline.devices.cuda.calls.convolutions.tiles import TILES, best_tile, suffix

#: Places of a 4x4 tile of inputs: each has a product of matrices.
_PLACES = 16
#: Of transformed inputs and products together: a slab of tiles is as wide as they allow.
_SLAB_FLOATS = 2 << 20
_MIN_SLAB = 64


def _tiles(shape: Convolution) -> int:
    """Return how many 2x2 tiles of outputs an image has."""
    return -(-shape.out_height // 2) * -(-shape.out_width // 2)


def _slab(shape: Convolution) -> int:
    wanted = _SLAB_FLOATS // (_PLACES * (shape.channels + shape.filters)) // 64 * 64
    return min(_tiles(shape), max(_MIN_SLAB, wanted))


def _filter_floats(shape: Convolution) -> int:
    return _PLACES * shape.filters * shape.channels


def winograd_floats(shape: Convolution) -> int:
    """Return how many numbers of scratch ``winograd`` needs."""
    return _filter_floats(shape) + _PLACES * _slab(shape) * (shape.channels + shape.filters)


def winograd(
    shape: Convolution,
    x: Pointer,
    w: Pointer,
    y: Pointer,
    epilogue: Epilogue,
    *,
    scratch: Pointer,
    multiprocessors: int,
) -> list[Call]:
    """Return the launches of a 3x3 convolution, stride 1, no dilation, one group.

    Scratch has the transformed filters, then the inputs and the products of a slab of tiles.
    """
    pairs = shape.filters * shape.channels
    calls = [_call("transform_filters", pairs, (w, scratch, pairs))]
    inputs = moved(scratch, _filter_floats(shape))
    products = moved(inputs, _PLACES * _slab(shape) * shape.channels)
    for image in range(shape.batch):
        for first in range(0, _tiles(shape), _slab(shape)):
            count = min(_slab(shape), _tiles(shape) - first)
            sizes = (shape.numbers(), first, count)
            source = moved(x, image * shape.channels * shape.height * shape.width)
            calls += [
                _call("transform_input", shape.channels * count, (source, inputs, *sizes)),
                _product(shape, count, inputs, scratch, products, multiprocessors),
                _outputs(shape, image, products, y, epilogue, (first, count)),
            ]
    return calls


def _call(
    function: str, threads: int, arguments: tuple[Pointer | int | tuple[int, ...], ...]
) -> Call:
    return Call("winograd", function, blocks(threads, 256), 256, arguments)


def _product(
    shape: Convolution, count: int, x: Pointer, w: Pointer, y: Pointer, multiprocessors: int
) -> Call:
    """Return the products for all places: a 1x1 convolution whose groups are the places."""
    pointwise = Convolution(
        batch=1,
        channels=_PLACES * shape.channels,
        height=1,
        width=count,
        filters=_PLACES * shape.filters,
        kernel=(1, 1),
        strides=(1, 1),
        pads=(0, 0),
        dilations=(1, 1),
        out_height=1,
        out_width=count,
        groups=_PLACES,
    )
    tile = best_tile(TILES, pointwise, multiprocessors)
    return Call(
        "convolution",
        f"{tile.name}_{suffix(pointwise)}",
        (tile.blocks(pointwise), 1, 1),
        tile.threads,
        with_epilogue((x, w, y), Epilogue(), (pointwise.numbers(),)),
    )


def _outputs(
    shape: Convolution,
    image: int,
    products: Pointer,
    y: Pointer,
    epilogue: Epilogue,
    tiles: tuple[int, int],
) -> Call:
    skipped = image * shape.filters * shape.pixels
    residual = None if epilogue.residual is None else moved(epilogue.residual, skipped)
    arguments = with_epilogue(
        (products, moved(y, skipped)),
        replace(epilogue, residual=residual),
        (shape.numbers(), *tiles),
    )
    return Call(
        "winograd", "transform_output", blocks(shape.filters * tiles[1], 256), 256, arguments
    )
