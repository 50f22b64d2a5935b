"""Inputs for measurements and checks: what a model takes, without a picture."""

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from models.network.fields import STRINGS
from models.packs.records.ports import Port

#: Standard normal numbers and small integers, or the same number everywhere.
Kind = Literal["random", "ones", "zeros"]


class Taking(Protocol):
    """A network, or the record of one, as far as it says what it takes."""

    @property
    def inputs(self) -> tuple[Port, ...]: ...

    @property
    def required_inputs(self) -> tuple[Port, ...]: ...


def random_inputs(network: Taking) -> dict[str, NDArray[Any]]:
    """Return one input set from a fixed seed; inputs with a default are left out."""
    return drawn_inputs(network)


def drawn_inputs(
    network: Taking, seed: int = 0, kind: Kind = "random", required_only: bool = True
) -> dict[str, NDArray[Any]]:
    """Return one input set: standard normal numbers, integers of 0 and 1, or all the same.

    So small an integer is an index of nearly everything. Dimensions that only a run gives are 1.
    """
    generator = np.random.default_rng(seed)
    ports = network.required_inputs if required_only else network.inputs
    return {port.name: _drawn(port, kind, generator) for port in ports}


def _drawn(port: Port, kind: Kind, generator: np.random.Generator) -> NDArray[Any]:
    shape = tuple(max(n, 1) if n < 0 else n for n in port.shape)
    is_float = port.dtype != STRINGS and np.dtype(port.dtype).kind == "f"
    if kind != "random":
        numbers: NDArray[Any] = np.full(shape, 1 if kind == "ones" else 0)
    elif is_float:
        numbers = generator.standard_normal(shape)
    else:
        numbers = generator.integers(0, 2, shape)
    return numbers.astype(str if port.dtype == STRINGS else port.dtype)
