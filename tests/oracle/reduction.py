"""Many numbers to one: means and maxima over whole axes."""

import numpy as np

from tests.oracle.base import Array, Call, Operator, wide


def global_average(x: Array) -> Array:
    """Return the mean over all spatial axes, [N, C, 1, ...], of ``x`` [N, C, ...]."""
    return np.asarray(wide(x).mean(tuple(range(2, x.ndim)), keepdims=True)).astype(x.dtype)


def global_max(x: Array) -> Array:
    """Return the maximum over all spatial axes, [N, C, 1, ...], of ``x`` [N, C, ...]."""
    return np.asarray(x.max(tuple(range(2, x.ndim)), keepdims=True))


def _reduce_mean(call: Call) -> list[Array]:
    """ReduceMean: no axes means all of them, or none with noop_with_empty_axes."""
    x = call.input(0)
    axes = call.integers(1, "axes")
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return [x]
    keep = bool(call.attribute("keepdims", 1))
    mean = np.mean(wide(x), axis=tuple(axes) if axes else None, keepdims=keep)
    return [np.asarray(mean).astype(x.dtype)]


OPERATORS: dict[str, Operator] = {
    "GlobalAveragePool": lambda call: [global_average(call.input(0))],
    "GlobalMaxPool": lambda call: [global_max(call.input(0))],
    "ReduceMean": _reduce_mean,
}
