"""Which algorithm computes a convolution: the one that was measured, or the default."""

from pipeline.devices.cuda.calls.convolutions.algorithms import Algorithm, is_possible
from pipeline.devices.cuda.calls.convolutions.geometry import Convolution
from pipeline.devices.cuda.calls.convolutions.tiled import candidates, default_algorithm
from pipeline.devices.cuda.lowering.settings import Settings


def geometry_key(shape: Convolution) -> str:
    """Return what algorithms are chosen by.

    The number of filters is no part of it: chunks of a layer take one algorithm.
    """
    pairs = {
        "k": shape.kernel,
        "s": shape.strides,
        "p": shape.pads,
        "d": shape.dilations,
        "o": (shape.out_height, shape.out_width),
    }
    sizes = f"n{shape.batch} c{shape.channels} x{shape.height}x{shape.width} g{shape.groups}"
    return " ".join([sizes, *(f"{name}{a}x{b}" for name, (a, b) in pairs.items())])


def choose(shape: Convolution, settings: Settings, with_residual: bool) -> Algorithm:
    """Return the algorithm for ``shape``: as measured, if it can be taken."""
    measured = settings.algorithms.get(geometry_key(shape))
    if measured is not None:
        algorithm = Algorithm.parse(measured)
        fits = is_possible(shape, algorithm) and _is_allowed(algorithm, settings)
        # The library's products go to the output before the epilogue reads the residual there.
        if fits and not (with_residual and algorithm.is_library):
            return algorithm
    if settings.precision == "fp16" and not shape.is_depthwise:
        return Algorithm("half")
    return default_algorithm(shape, settings.multiprocessors)


def worth_measuring(shape: Convolution, settings: Settings) -> tuple[str, ...]:
    """Return the algorithms that may be the fastest for ``shape``."""
    found = candidates(shape, settings.multiprocessors)
    return tuple(
        str(item)
        for item in found
        if _is_allowed(item, settings) and (settings.libraries or not item.is_library)
    )


def _is_allowed(algorithm: Algorithm, settings: Settings) -> bool:
    return algorithm.kind != "half" or settings.precision == "fp16"
