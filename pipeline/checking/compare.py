"""Whether two answers are the same but for rounding."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graphs.traits import Traits

Arrays = Mapping[str, NDArray[Any]]

# What an order of additions changes, beside the largest value: sums of 10,000 products in float32 differ by
# 1e-6; fused and rewritten operators (models/compiler/optimising/rewrite.py) by 1e-5.
# 16-bit floats have three digits.
_FLOAT, _HALF, _QUANTISED = 1e-4, 2e-2, 5e-2
# Inputs are about 1: differences of values much smaller than that are what cancellation leaves.
_LEAST_SCALE = 1e-3


@dataclass(frozen=True)
class Tolerance:
    """``fraction``: of an output's largest value. ``steps``: of quantised integers."""

    fraction: float = _FLOAT
    steps: int = 0


def tolerance_of(traits: Traits) -> Tolerance:
    """Return how far apart two right answers of a model may be."""
    if traits.quantised:
        return Tolerance(_QUANTISED, 1)
    return Tolerance(_HALF if traits.half else _FLOAT)


def difference(got: Arrays, expected: Arrays, tolerance: Tolerance) -> str:
    """Return which output differs and how far it is off, in words; empty where none does."""
    for name, array in expected.items():
        fault = _difference(got[name], array, tolerance)
        if fault:
            return f"output {name!r} {fault}"
    return ""


def _difference(got: NDArray[Any], expected: NDArray[Any], tolerance: Tolerance) -> str:
    if got.shape != expected.shape or (got.dtype != expected.dtype and expected.dtype.kind != "O"):
        return f"is {got.dtype}{list(got.shape)}, not {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind != "f":
        steps = tolerance.steps if expected.dtype.itemsize == 1 else 0
        return _unequal(got, expected, steps if expected.dtype.kind in "iu" else 0)
    one, other = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return "has other NaN or infinite values"
    if not np.isfinite(one[finite]).all():
        return "has NaN or infinite values"
    largest = float(np.abs(other[finite]).max(initial=0))
    off = float(np.abs(one[finite] - other[finite]).max(initial=0))
    if off <= tolerance.fraction * max(largest, _LEAST_SCALE):
        return ""
    return f"is off by {off:.3g}, where its largest value is {largest:.3g}"


def _unequal(got: NDArray[Any], expected: NDArray[Any], steps: int) -> str:
    if steps:
        count = int((np.abs(got.astype(np.int64) - expected.astype(np.int64)) > steps).sum())
    else:
        count = int((got != expected).sum())
    return f"differs in {count} of {expected.size} values" if count else ""
