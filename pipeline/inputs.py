"""Inputs for measurements: what a model takes, without a picture."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.manifest import STRINGS, Manifest, Port


def random_inputs(manifest: Manifest) -> dict[str, NDArray[Any]]:
    """Return one input set: standard normal numbers, or small integers, from a fixed seed.

    Dimensions that only a run gives are 1.
    """
    generator = np.random.default_rng(0)
    return {port.name: _random(port, generator) for port in manifest.inputs}


def _random(port: Port, generator: np.random.Generator) -> NDArray[Any]:
    shape = tuple(max(n, 1) if n < 0 else n for n in port.shape)
    if port.dtype == STRINGS:
        return generator.integers(0, 2, shape).astype(str)
    if np.dtype(port.dtype).kind == "f":
        return generator.standard_normal(shape).astype(port.dtype)
    return generator.integers(0, 2, shape).astype(port.dtype)
