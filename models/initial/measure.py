"""What is measured on activations, and how coarsely it is kept.

Processors and ONNX Runtime's kernels for them differ in the last bits. Kept to four bits, nearly no
measurement differs, and with it no weight; batch norms do not need to be more exact than that.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

_BITS = 4


def channel_statistics(arrays: Sequence[NDArray[Any]], axis: int) -> tuple[Float64, Float64]:
    """Return mean and standard deviation of each channel along ``axis``, over all of ``arrays``.

    The arrays have the same shape.
    """
    axis %= arrays[0].ndim
    others = tuple(i for i in range(arrays[0].ndim) if i != axis)
    mean = np.mean([array.mean(others, np.float64) for array in arrays], 0)
    shape = [1] * arrays[0].ndim
    shape[axis] = -1
    # Float32 keeps the copies small; what it rounds off is far below what is kept of the result.
    centre = mean.astype(np.float32).reshape(shape)
    squares = [np.square(array - centre).mean(others, np.float64) for array in arrays]
    return mean, np.sqrt(np.mean(squares, 0))


def coarse(values: Float64) -> Float64:
    """Return ``values`` rounded to four significant bits each."""
    mantissa, exponent = np.frexp(values)
    rounded: Float64 = np.ldexp(np.round(np.ldexp(mantissa, _BITS)), exponent - _BITS)
    return rounded


def coarse_mean(mean: Float64, deviation: Float64) -> Float64:
    """Return ``mean`` rounded to about a sixteenth of ``deviation`` (positive)."""
    _, exponent = np.frexp(deviation)
    rounded: Float64 = np.ldexp(np.round(np.ldexp(mean, _BITS - exponent)), exponent - _BITS)
    return rounded
