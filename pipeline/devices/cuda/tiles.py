"""Tiles of kernels/convolution.cu and half.cu: how a launch is cut into blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.devices.cuda.convolution import Convolution


@dataclass(frozen=True)
class Tile:
    """``rows`` filters and ``columns`` pixels of a block of ``threads``.

    ``speed``: of a multiprocessor that has enough such blocks, relative to the best tile.
    """

    name: str
    rows: int
    columns: int
    threads: int
    speed: float

    def blocks(self, shape: Convolution) -> int:
        """Return how many blocks compute ``shape`` without splits."""
        rows = -(-shape.filters // shape.groups // self.rows)
        return rows * -(-shape.pixels // self.columns) * shape.batch * shape.groups


# Not measured: a thread with 8x8 sums reads 16 numbers from shared memory for 64 products, one with
# 8x4 reads 12 for 32, one with 4x4 reads 8 for 16, for which Volta's shared memory is just fast
# enough. The bits of a result are the same for all of them.
TILES = (
    Tile("convolve_128x128", 128, 128, 256, 1.0),
    Tile("convolve_128x64", 128, 64, 128, 0.95),
    Tile("convolve_64x64", 64, 64, 128, 0.85),
    Tile("convolve_32x128", 32, 128, 128, 0.85),
    Tile("convolve_64x32", 64, 32, 128, 0.65),
)
HALF_TILES = (
    Tile("convolve_half_128x64", 128, 64, 256, 1.0),
    Tile("convolve_half_64x64", 64, 64, 128, 0.9),
)


def best_tile(
    tiles: Sequence[Tile], shape: Convolution, multiprocessors: int, splits: int = 1
) -> Tile:
    """Return the tile that should take least time.

    A multiprocessor works off its blocks at a rate that hardly depends on how many it holds at once;
    the one with most blocks is the last. This weighs idle multiprocessors and sums that nobody needs
    (at the edges) against the speed of large tiles.
    """

    def time(tile: Tile) -> float:
        turns = -(-tile.blocks(shape) * splits // multiprocessors)
        return turns * tile.rows * tile.columns / tile.speed

    return min(tiles, key=time)


def suffix(shape: Convolution) -> str:
    """Return what the names of kernels for this kind of window end with."""
    if shape.is_plain:
        return "k1"
    return "k3" if shape.kernel == (3, 3) else "any"
