"""Tiles of kernels/convolution.cu and half.cu: how a launch is cut into blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.devices.cuda.calls.convolutions.geometry import Convolution


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


# Not measured, but counted in the machine code: where a multiprocessor starts one product for each
# instruction (Hopper), a large tile's products take 86 % of the instructions of the loop over k, those
# of 64x64 80 % and those of the small ones 75 %; these three also read shared memory nearly as fast as
# it goes. Volta, with half as many lanes, comes close to its peak with all of them but for what it reads
# from the cache. The bits of a result are the same for all of them.
TILES = (
    Tile("convolve_128x128", 128, 128, 256, 1.0),
    Tile("convolve_128x64", 128, 64, 128, 0.97),
    Tile("convolve_64x64", 64, 64, 128, 0.88),
    Tile("convolve_32x128", 32, 128, 128, 0.82),
    Tile("convolve_64x32", 64, 32, 128, 0.62),
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
