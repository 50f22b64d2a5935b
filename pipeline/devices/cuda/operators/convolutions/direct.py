"""Launches of kernels/convolution.cu and half.cu: implicit products of matrices, by tiles.

What all kernels of convolutions are given is here, too: sizes, and what is done to the sums.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.network.node import UnsuitedError
from models.network.operators.reading import Convolution
from pipeline.devices.cuda.call import Argument, DevicePointer, KernelLaunch
from pipeline.devices.cuda.operators.convolutions.algorithms import Algorithm, split_depth
from pipeline.devices.cuda.operators.launches import (
    MAX_ELEMENTS,
    activation_arguments,
    blocks,
    members_of,
)
from pipeline.devices.cuda.scope import Scope
from pipeline.devices.interface.cuda import packed


def check_size(it: Convolution) -> None:
    """Check that kernels can count what there is.

    Raises:
        UnsuitedError: they cannot.
    """
    sizes = (math.prod(each.shape) for each in (it.x, it.weight, it.y))
    # The second limit is that of the kernels' division of k by the kernel's area.
    if max(sizes) > MAX_ELEMENTS or it.depth * math.prod(it.windows.kernel) >= 1 << 32:
        raise UnsuitedError(f"too large: {list(it.x.shape)} by {list(it.weight.shape)}")


def numbers(it: Convolution, split_k: int | None = None) -> tuple[int, ...]:
    """Return the structure Convolution of a launch; by default k is not split."""
    windows = it.windows.on_a_plane
    return packed(
        "Convolution",
        channels=it.weight.shape[1],
        filters=it.filters // it.groups,
        groups=it.groups,
        **members_of(windows),
        split_k=it.depth if split_k is None else split_k,
        split_stride=math.prod(it.y.shape),
        area_reciprocal=_reciprocal(math.prod(windows.kernel)),
        width_reciprocal=_reciprocal(windows.kernel[1]),
    )


def _reciprocal(divisor: int) -> int:
    """Return 2^32 / divisor + 1 in the 32 bits of a signed number; 0 for 1."""
    if divisor == 1:
        return 0
    quotient = (1 << 32) // divisor + 1
    return quotient - (1 << 32) if quotient >= 1 << 31 else quotient


def behind(pointer: DevicePointer, floats: int) -> DevicePointer:
    """Return where ``floats`` numbers behind ``pointer`` lie."""
    return pointer.moved(4 * floats)


def with_epilogue(
    it: Convolution,
    scope: Scope,
    head: Sequence[Argument],
    sizes: Sequence[Argument],
    skipped: int = 0,
) -> tuple[Argument, ...]:
    """Return the arguments of a kernel: its own, bias and addend, sizes, what is done to the sums.

    ``skipped``: numbers of the output before those that the kernel computes.
    """
    bias, addend = scope.optional(it.bias), scope.optional(it.addend)
    added = None if addend is None else behind(addend, skipped)
    end = activation_arguments(it.activation)
    return (*head, bias, added, *sizes, int(it.adds_last), *end)


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

    def blocks(self, it: Convolution) -> int:
        """Return how many blocks compute ``it`` without splits."""
        rows = -(-it.filters // it.groups // self.rows)
        return rows * -(-it.pixels // self.columns) * it.x.shape[0] * it.groups


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
    tiles: Sequence[Tile], it: Convolution, multiprocessors: int, splits: int = 1
) -> Tile:
    """Return the tile that should take least time.

    A multiprocessor works off its blocks at a rate that hardly depends on how many it holds at once;
    the one with most blocks is the last. This weighs idle multiprocessors and sums that are not needed
    (at the edges) against the speed of large tiles.
    """

    def time(tile: Tile) -> float:
        turns = -(-tile.blocks(it) * splits // multiprocessors)
        return turns * tile.rows * tile.columns / tile.speed

    return min(tiles, key=time)


def tiled(
    it: Convolution,
    scope: Scope,
    tile: Tile | None = None,
    *,
    splits: int = 1,
    half: bool = False,
) -> KernelLaunch:
    """Return the launch of ``it`` by tiles; with ``splits`` ``y`` has so many partial sums.

    ``tile``: None: the one that should be fastest.
    """
    tiles = HALF_TILES if half else TILES
    chosen = tile or best_tile(tiles, it, scope.settings.multiprocessors, splits)
    head = (scope.read(it.x), scope.read(it.weight), scope.write(it.y))
    sizes = (numbers(it, split_depth(it, splits)),)
    return KernelLaunch(
        "half" if half else "convolution",
        f"{chosen.name}_{_window(it)}",
        (chosen.blocks(it), splits, 1),
        chosen.threads,
        with_epilogue(it, scope, head, sizes),
    )


def _window(it: Convolution) -> str:
    """Return what the names of kernels for this kind of window end with."""
    if it.is_pointwise:
        return "k1"
    return "k3" if it.windows.kernel == (3, 3) else "any"


def plain(it: Convolution) -> Convolution:
    """Return ``it`` with nothing done to its sums."""
    return replace(it, bias=None, addend=None, adds_last=False, activation=None)


def split(
    it: Convolution, algorithm: Algorithm, scope: Scope, tile: Tile | None
) -> list[KernelLaunch]:
    """Return the launches of ranges of k, and of what adds these."""
    # Some that were asked for may be empty.
    splits = -(-it.depth // split_depth(it, algorithm.splits))
    count = math.prod(it.y.shape)
    partial = scope.temporary((splits, *it.y.shape))
    sums = replace(plain(it), y=partial.shaped(it.y.shape))
    first = tiled(sums, scope, tile, splits=splits)
    head, sizes = (scope.read(partial), scope.write(it.y)), (splits, count, it.filters, it.pixels)
    arguments = with_epilogue(it, scope, head, sizes)
    return [first, KernelLaunch("convolution", "reduce_splits", blocks(count), 256, arguments)]
