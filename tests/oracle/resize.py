"""Resize to the nearest element, along each axis apart."""

from collections.abc import Callable

import numpy as np

from tests.oracle.base import Array, Call, Operator

# From here on the second input is a region of interest, and scales are the third.
_WITH_REGION = 11

#: By coordinate_transformation_mode: where on the input an element of the result lies.
COORDINATES: dict[str, Callable[[Array, float], Array]] = {
    "asymmetric": lambda place, scale: place / scale,
    "half_pixel": lambda place, scale: (place + 0.5) / scale - 0.5,
}

_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda place: np.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: np.floor(place + 0.5),
}


def _resize(call: Call) -> list[Array]:
    """Resize, mode nearest: by scales, or to sizes."""
    x = call.input(0)
    old = call.opset < _WITH_REGION
    place = COORDINATES[
        "asymmetric" if old else call.attribute("coordinate_transformation_mode", "half_pixel")
    ]
    rounded = _ROUNDED["floor" if old else call.attribute("nearest_mode", "round_prefer_floor")]
    factors, sizes = call.optional(1 if old else 2), call.optional(3)
    if factors is not None and factors.size:
        scales = [float(factor) for factor in factors]
        lengths = [int(n * scale) for n, scale in zip(x.shape, scales, strict=True)]
    elif sizes is not None:
        lengths = [int(length) for length in sizes]
        scales = [length / n for n, length in zip(x.shape, lengths, strict=True)]
    else:
        raise ValueError("neither scales nor sizes")
    for axis, (length, scale) in enumerate(zip(lengths, scales, strict=True)):
        nearest = rounded(place(np.arange(length, dtype=np.float64), scale))
        x = x.take(np.clip(nearest, 0, x.shape[axis] - 1).astype(np.intp), axis)
    return [x]


OPERATORS: dict[str, Operator] = {"Resize": _resize}
