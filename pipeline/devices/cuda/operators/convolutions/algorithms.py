"""Ways to compute a convolution, and which of them to take.

A layer may be computed whole or in chunks of filters, with equal bits: nothing here that decides
about the arithmetic looks at the number of filters.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from models.network.operators.reading import Convolution
from pipeline.devices.cuda.scope import ConvolutionSettings

Kind = Literal["direct", "split", "winograd", "half", "depthwise", "cublas", "im2col"]

_SPLITS = (2, 4, 8, 16)
#: Products of a partial sum, at least. To write and read a partial sum takes about as long as 50
#: products; a split that puts idle multiprocessors to work saves half of the products or more.
_MIN_SPLIT_DEPTH = 128
#: Pixels of the tiles of which there are most.
_TILE_PIXELS = 64
#: Library calls of one convolution, at most: each takes some microseconds to launch.
_MOST_PRODUCTS = 64


@dataclass(frozen=True)
class Algorithm:
    """A way to compute a convolution; its text is "direct", "split:8" and so on.

    direct: implicit product of matrices. split: that in ``splits`` ranges of k, which are added
    behind it. winograd: F(2x2, 3x3). half: direct on tensor cores, factors rounded to float16.
    depthwise: one channel for each group. cublas: 1x1 by the library; im2col: any by the library,
    pixels gathered before. The library's bits may depend on the number of filters.
    """

    kind: Kind
    splits: int = 1

    def __str__(self) -> str:
        return f"{self.kind}:{self.splits}" if self.kind == "split" else self.kind

    @property
    def is_library(self) -> bool:
        """Whether cuBLAS computes the products."""
        return self.kind in {"cublas", "im2col"}

    @classmethod
    def parse(cls, text: str) -> "Algorithm":
        """Return the algorithm with this text.

        Raises:
            ValueError: there is none.
        """
        kind, _, splits = text.partition(":")
        for known in get_args(Kind):
            if kind == known:
                algorithm = cls(known, int(splits) if splits else 1)
                if str(algorithm) == text and algorithm.splits > 0:
                    return algorithm
        raise ValueError(f"no algorithm {text!r}")


def is_possible(it: Convolution, algorithm: Algorithm) -> bool:
    """Return whether ``algorithm`` can compute ``it`` at all."""
    windows = it.windows
    if algorithm.kind == "winograd":
        unit = windows.strides == windows.dilations == (1, 1)
        return windows.kernel == (3, 3) and unit and it.groups == 1
    if algorithm.kind == "cublas":
        return it.is_pointwise
    return algorithm.kind != "depthwise" or it.is_depthwise


def candidates(it: Convolution, multiprocessors: int) -> tuple[Algorithm, ...]:
    """Return what is worth measuring, the default first.

    ``half`` is among it: callers that need float32 leave it out.
    """
    default = default_algorithm(it, multiprocessors)
    if it.is_depthwise:
        return (default,)
    algorithms = [default, Algorithm("direct")]
    algorithms += [
        Algorithm("split", splits) for splits in _SPLITS if splits * _MIN_SPLIT_DEPTH <= it.depth
    ]
    libraries: tuple[Kind, ...] = ("cublas",) if it.is_pointwise else ("im2col",)
    kinds: tuple[Kind, ...] = ("winograd", "half", *libraries)
    for algorithm in map(Algorithm, kinds):
        products = it.x.shape[0] * it.groups if algorithm.kind in libraries else 0
        if is_possible(it, algorithm) and products <= _MOST_PRODUCTS:
            algorithms.append(algorithm)
    return tuple(dict.fromkeys(algorithms))


def default_algorithm(it: Convolution, multiprocessors: int) -> Algorithm:
    """Return what to take before anything was measured."""
    if it.is_depthwise:
        return Algorithm("depthwise")
    splits = _default_splits(it, multiprocessors)
    return Algorithm("split", splits) if splits > 1 else Algorithm("direct")


def _default_splits(it: Convolution, multiprocessors: int) -> int:
    """Return how many ranges of k give the smallest chunk blocks for most multiprocessors.

    The smallest chunk may be one tile high, so that the tiles of pixels and the splits alone must
    fill three quarters of the device; most chunks are higher, and for them more splits would only mean
    more partial sums. Layers that need splits for it have few pixels: their partial sums are small,
    about 64 pixels for each multiprocessor and filter, and cost far less than idle multiprocessors.
    """
    tiles = -(-it.pixels // _TILE_PIXELS) * it.x.shape[0] * it.groups
    filling = multiprocessors * 3 // (4 * tiles)
    return max(1, min(filling, it.depth // _MIN_SPLIT_DEPTH, _SPLITS[-1]))


def split_depth(it: Convolution, splits: int) -> int:
    """Return how many products a range has: a multiple of what any tile takes at once."""
    return -(-it.depth // splits // 16) * 16


def geometry_key(it: Convolution) -> str:
    """Return what algorithms are chosen by.

    The number of filters is no part of it: chunks of a layer take one algorithm.
    """
    windows, (batch, channels, *_) = it.windows.on_a_plane, it.x.shape
    pairs = {
        "k": windows.kernel,
        "s": windows.strides,
        "p": windows.before,
        "d": windows.dilations,
        "o": windows.result,
    }
    height, width = windows.size
    sizes = f"n{batch} c{channels} x{height}x{width} g{it.groups}"
    return " ".join([sizes, *(f"{name}{a}x{b}" for name, (a, b) in pairs.items())])


def choose(it: Convolution, settings: ConvolutionSettings) -> Algorithm:
    """Return the algorithm for ``it``: as measured, if it can be taken, or the default."""
    if not settings.scratch and not it.is_depthwise:
        return Algorithm("half" if settings.precision == "fp16" else "direct")
    measured = settings.algorithms.get(geometry_key(it))
    if measured is not None:
        algorithm = Algorithm.parse(measured)
        fits = is_possible(it, algorithm) and _is_allowed(algorithm, settings)
        # The library's products go to the output before the epilogue reads the addend there.
        if fits and not (it.addend is not None and algorithm.is_library):
            return algorithm
    if settings.precision == "fp16" and not it.is_depthwise:
        return Algorithm("half")
    return default_algorithm(it, settings.multiprocessors)


def worth_measuring(it: Convolution, settings: ConvolutionSettings) -> tuple[str, ...]:
    """Return the algorithms that may be the fastest for ``it``."""
    algorithms = candidates(it, settings.multiprocessors)
    return tuple(
        str(item)
        for item in algorithms
        if _is_allowed(item, settings) and (settings.libraries or not item.is_library)
    )


def _is_allowed(algorithm: Algorithm, settings: ConvolutionSettings) -> bool:
    return algorithm.kind != "half" or settings.precision == "fp16"
