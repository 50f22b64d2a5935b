"""Values of JSON to NumPy, piece by piece: every number and string survives, or is refused.

JSON has one kind of number and no promise of its width, so an integer becomes any float, and a fraction
no integer, not even 3.0. Booleans are no numbers.
"""

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.fields import STRINGS
from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.errors import InvalidRequestError

# What orjson makes of a value that each kind of dtype takes.
_TAKEN: dict[str, frozenset[type]] = {
    "f": frozenset({int, float}),
    "i": frozenset({int}),
    "u": frozenset({int}),
    "b": frozenset({bool}),
    "O": frozenset({str}),
}
_NAMES = {
    bool: "booleans",
    int: "integers",
    float: "fractions",
    str: "strings",
    dict: "objects",
    list: "lists",
    type(None): "null",
}
#: So many numbers are checked faster one by one than by NumPy.
SHORT = 64
_LARGEST = {name: float(np.finfo(name).max) for name in ("float16", "float32", "float64")}


class PortArray:
    """The array of one input, filled from the front; ``where`` names the input in errors."""

    def __init__(self, where: str, port: Port) -> None:
        self._where = where
        self._port = port
        dtype = np.dtype(object if port.dtype == STRINGS else port.dtype)
        self._kind = dtype.kind
        self._largest = _LARGEST.get(port.dtype, 0.0)
        #: How many values the port has.
        self.n_values = math.prod(port.shape)
        #: The array, with the shape of its port; whole when all values were added.
        self.array: NDArray[Any] = np.empty(port.shape, dtype)
        self._values = self.array.reshape(-1)
        self._filled = 0
        self._string_bytes = 0

    @property
    def array_bytes(self) -> int:
        """What the array takes; strings lie beside it."""
        return self._values.nbytes

    @property
    def held_bytes(self) -> int:
        return self.array_bytes + self._string_bytes

    def add(self, values: list[Any]) -> None:
        """Put ``values``, as orjson made them, behind those that are there; there is room for them.

        Raises:
            InvalidRequestError: the dtype of the port cannot hold one.
        """
        if not _TAKEN[self._kind].issuperset(map(type, values)):
            raise self._of_another_kind(values)
        stop = self._filled + len(values)
        target = self._values[self._filled : stop]
        self._filled = stop
        if self._kind == "f":
            # By way of float64, also for integers: else a value would depend on its neighbours.
            wide = np.array(values, np.float64)
            if 0 < len(values) <= SHORT and max(map(abs, values)) <= self._largest:
                target[...] = wide
            else:
                self._put_floats(target, wide)
        elif self._kind in "iu":
            try:
                target[...] = np.array(values, target.dtype)
            except OverflowError:
                raise self._too_large() from None
        else:
            target[...] = values
            if self._kind == "O":
                self._string_bytes += sum(map(sys.getsizeof, values))

    def _put_floats(self, target: NDArray[Any], wide: NDArray[np.float64]) -> None:
        """Round ``wide`` to ``target``; raises as ``add``."""
        if np.maximum.reduce(np.absolute(wide), initial=0.0) <= self._largest:
            target[...] = wide
            return
        # Numbers that are a little above round to the largest, others to infinity.
        with np.errstate(over="ignore"):
            target[...] = wide
        if not np.isfinite(target).all():
            raise self._too_large()

    def _too_large(self) -> InvalidRequestError:
        name = datatype(self._port.dtype)
        return InvalidRequestError(f"{self._where}: data has numbers that {name} cannot hold")

    def _of_another_kind(self, values: list[Any]) -> InvalidRequestError:
        found = next(value for value in values if type(value) not in _TAKEN[self._kind])
        if isinstance(found, float) and self._kind in "iu" and abs(found) >= 1 << 63:
            return self._too_large()
        return self.holds(_NAMES[type(found)])

    def holds(self, what: str) -> InvalidRequestError:
        """Return the error that the data are ``what``."""
        wanted = "strings" if self._kind == "O" else self._port.dtype
        return InvalidRequestError(f"{self._where}: data holds {what}, not {wanted}")
