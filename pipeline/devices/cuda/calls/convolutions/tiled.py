"""Launches that compute a convolution."""

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.convolutions.algorithms import (
    Algorithm,
    candidates,
    default_algorithm,
    is_possible,
    split_depth,
)
from pipeline.devices.cuda.calls.convolutions.depthwise import depthwise
from pipeline.devices.cuda.calls.convolutions.geometry import (
    Convolution,
    Epilogue,
    blocks,
    with_epilogue,
)
from pipeline.devices.cuda.calls.convolutions.library import im2col, im2col_floats, pointwise
from pipeline.devices.cuda.calls.convolutions.tiles import (
    HALF_TILES,
    TILES,
    Tile,
    best_tile,
    suffix,
)
from pipeline.devices.cuda.calls.convolutions.winograd import winograd, winograd_floats

__all__ = [
    "Algorithm",
    "Convolution",
    "Epilogue",
    "candidates",
    "convolve",
    "default_algorithm",
    "depthwise",
    "scratch_bytes",
]


def scratch_bytes(shape: Convolution, algorithm: Algorithm) -> int:
    """Return how much scratch ``convolve`` needs."""
    if algorithm.kind == "split":
        return 4 * _splits(shape, algorithm) * shape.outputs
    if algorithm.kind == "winograd":
        return 4 * winograd_floats(shape)
    return 4 * im2col_floats(shape) if algorithm.kind == "im2col" else 0


def convolve(
    shape: Convolution,
    x: Pointer,
    w: Pointer,
    y: Pointer,
    epilogue: Epilogue,
    *,
    scratch: Pointer | None = None,
    algorithm: Algorithm,
    multiprocessors: int = 8,
    tile: Tile | None = None,
) -> list[Call]:
    """Return the launches of a convolution, all float32 in memory.

    Args:
        shape: of x [batch, channels, height, width], w [filters, channels / groups, *kernel] and
            y [batch, filters, out_height, out_width].
        x: the input.
        w: the weights.
        y: the output.
        epilogue: what is done to the sums.
        scratch: ``scratch_bytes`` bytes, a multiple of 16 bytes from the start of its memory.
        algorithm: any that is possible for the shape.
        multiprocessors: that the launch should fill; says nothing about bits.
        tile: for tests; None: the one that should be fastest.

    Raises:
        ValueError: the algorithm cannot compute this shape, or lacks scratch.
    """
    if not is_possible(shape, algorithm):
        raise ValueError(f"{algorithm} cannot compute {shape}")
    if algorithm.kind == "depthwise":
        return [depthwise(shape, x, w, y, epilogue)]
    if algorithm.kind == "cublas":
        return pointwise(shape, x, w, y, epilogue)
    if algorithm.kind in {"direct", "half"}:
        tiles = TILES if algorithm.kind == "direct" else HALF_TILES
        chosen = tile or best_tile(tiles, shape, multiprocessors)
        return [_tiled(shape, chosen, x, w, y, epilogue)]
    if scratch is None:
        raise ValueError(f"{algorithm} needs scratch")
    if algorithm.kind == "im2col":
        return im2col(shape, x, w, y, epilogue, scratch)
    if algorithm.kind == "winograd":
        return winograd(shape, x, w, y, epilogue, scratch=scratch, multiprocessors=multiprocessors)
    splits = _splits(shape, algorithm)
    chosen = tile or best_tile(TILES, shape, multiprocessors, splits)
    return [
        _tiled(shape, chosen, x, w, scratch, Epilogue(), splits=splits),
        _reduction(shape, scratch, y, epilogue, splits),
    ]


def _splits(shape: Convolution, algorithm: Algorithm) -> int:
    """Return how many ranges there are: some that were asked for may be empty."""
    return -(-shape.depth // split_depth(shape, algorithm.splits))


def _tiled(
    shape: Convolution,
    tile: Tile,
    x: Pointer,
    w: Pointer,
    y: Pointer,
    epilogue: Epilogue,
    *,
    splits: int = 1,
) -> Call:
    module = "half" if tile in HALF_TILES else "convolution"
    grid = (tile.blocks(shape), splits, 1)
    numbers = shape.numbers(split_depth(shape, splits))
    arguments = with_epilogue((x, w, y), epilogue, (numbers,))
    return Call(module, f"{tile.name}_{suffix(shape)}", grid, tile.threads, arguments)


def _reduction(
    shape: Convolution, partial: Pointer, y: Pointer, epilogue: Epilogue, splits: int
) -> Call:
    sizes = (splits, shape.outputs, shape.filters, shape.pixels)
    arguments = with_epilogue((partial, y), epilogue, sizes)
    return Call("convolution", "reduce_splits", blocks(shape.outputs, 256), 256, arguments)
