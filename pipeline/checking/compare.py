"""Whether two answers are the same but for rounding."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.checking.comparison import Tolerance

Arrays = Mapping[str, NDArray[Any]]

# Inputs are about 1: differences of values much smaller than that, and the last digit of those, are what
# cancellation leaves.
_LEAST_SCALE, _LAST_DIGIT = 1e-3, 2.0**-23
#: Numbers that are compared at a time.
_BLOCK = 1 << 16


def largest_error(got: Arrays, expected: Arrays) -> float:
    """Return by how much floats differ at most, as a part of the largest of their output."""
    return max((_error(got[name], array) for name, array in expected.items()), default=0.0)


def _error(got: NDArray[Any], expected: NDArray[Any]) -> float:
    if expected.dtype.kind != "f" or got.shape != expected.shape:
        return 0.0
    largest = off = 0.0
    for one, other in _blocks(got, expected):
        finite = np.isfinite(one) & np.isfinite(other)
        largest = float(np.abs(other[finite]).max(initial=largest))
        off = max(off, _farthest(one[finite], other[finite]))
    return off / max(largest, _LEAST_SCALE)


def _blocks(
    got: NDArray[Any], expected: NDArray[Any]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield both some numbers at a time: a mask of all classes is many times as large in float64."""
    one, other = got.ravel(), expected.ravel()
    for start in range(0, other.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        yield one[part].astype(np.float64), other[part].astype(np.float64)


def _farthest(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return by how much finite numbers differ at most; infinite where no float64 holds it."""
    with np.errstate(over="ignore"):
        return float(np.abs(one - other).max(initial=0))


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
    largest = off = 0.0
    is_finite = True
    for one, other in _blocks(got, expected):
        finite = np.isfinite(other)
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
            return "has other NaN or infinite values"
        is_finite = is_finite and bool(np.isfinite(one[finite]).all())
        largest = float(np.abs(other[finite]).max(initial=largest))
        off = max(off, _farthest(one[finite], other[finite]))
    if not is_finite:
        return "has NaN or infinite values"
    limit = tolerance.fraction * max(largest, _LEAST_SCALE)
    if off <= max(limit, min(tolerance.fraction, _LAST_DIGIT)):
        return ""
    return f"is off by {off:.3g}, where its largest value is {largest:.3g}"


def _unequal(got: NDArray[Any], expected: NDArray[Any], steps: int) -> str:
    if steps:
        count = int((np.abs(got.astype(np.int64) - expected.astype(np.int64)) > steps).sum())
    else:
        count = int((got != expected).sum())
    return f"differs in {count} of {expected.size} values" if count else ""
