"""Tensors whose size no plan knows: strings, and shapes that only a run gives."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.fields import STRINGS, Array


class Cell:
    """Holds one such tensor during a sweep; its memory is NumPy's."""

    def __init__(self) -> None:
        self._array: NDArray[Any] | None = None

    @property
    def array(self) -> NDArray[Any]:
        assert self._array is not None, "read before a kernel or a request put something here"
        return self._array

    @array.setter
    def array(self, array: NDArray[Any]) -> None:
        self._array = array

    def clear(self) -> None:
        self._array = None


def takes(port: Array, array: Any) -> bool:
    """Return whether ``array``, NumPy's or its like, has the dtype and shape of ``port``.

    Strings may have any NumPy form.
    """
    if array.shape != port.shape:
        return False
    if port.dtype != STRINGS:
        return bool(array.dtype == np.dtype(port.dtype))
    if array.dtype.kind == "O":
        return all(isinstance(item, str | bytes) for item in array.flat)
    return str(array.dtype.kind) in "US"


def as_strings(array: NDArray[Any]) -> NDArray[np.object_]:
    """Return ``array`` as objects of type str; bytes are UTF-8.

    Raises:
        UnicodeDecodeError: they are not.
    """
    strings = np.empty(array.shape, object)
    # Assigned one by one: NumPy would take apart what has a length.
    for index, item in enumerate(array.flat):
        strings.flat[index] = item.decode() if isinstance(item, bytes) else str(item)
    return strings
