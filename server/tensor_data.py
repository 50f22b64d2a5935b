"""Data of JSON tensors to NumPy: the value of every number and string survives, or is refused."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.manifest import Array
from server.errors import InvalidRequestError


def numbers(where: str, values: list[Any], port: Array, datatype: str) -> NDArray[Any]:
    """Return ``values``, flat or nested, as an array of the dtype and shape of ``port``.

    Raises:
        InvalidRequestError: they are other values, too many or few, or ``datatype`` cannot hold them;
            ``where`` names the tensor.
    """
    try:
        data = np.array(values)
    except (ValueError, TypeError, OverflowError) as exc:
        raise InvalidRequestError(f"{where}: data: {exc}") from exc
    dtype = np.dtype(port.dtype)
    if data.dtype.kind == "f" and dtype.kind in "iu":
        data = _whole(values, data)
    # JSON has one kind of number and no promise of its width: the value must survive.
    if data.size and data.dtype.kind not in _KINDS[dtype.kind]:
        raise InvalidRequestError(f"{where}: data holds {_kind_name(data)}, not {port.dtype}")
    if data.size and dtype.kind != "b" and _has_booleans(values):
        raise InvalidRequestError(f"{where}: data holds booleans, not {port.dtype}")
    if data.size != math.prod(port.shape):
        raise _wrong_count(where, data.size, port)
    with np.errstate(over="ignore"):
        array = data.astype(dtype)
    survived = np.isfinite(array).all() if dtype.kind == "f" else np.array_equal(array, data)
    if not survived:
        raise InvalidRequestError(f"{where}: data has numbers that {datatype} cannot hold")
    return array.reshape(port.shape)


def _whole(data: list[Any], found: NDArray[Any]) -> NDArray[Any]:
    """Return ``data`` as uint64 where NumPy made ``found``, floats, of integers on both sides of 2**63."""
    objects = np.array(data, object)
    if all(type(item) is int and 0 <= item < 1 << 64 for item in objects.flat):
        return objects.astype(np.uint64)
    return found


def strings(where: str, values: list[Any], port: Array) -> NDArray[np.object_]:
    """Return ``values``, flat or nested, as objects: an array of NumPy's own would cut zeros off.

    Raises:
        InvalidRequestError: they are no strings, or too many or few; ``where`` names the tensor.
    """
    data = values
    while data and all(isinstance(part, list) for part in data):
        data = [item for part in data for item in part]
    for item in data:
        if not isinstance(item, str):
            raise InvalidRequestError(f"{where}: data holds {type(item).__name__}, not strings")
        if not _is_text(item):
            raise InvalidRequestError(f"{where}: data has half a character (a lone surrogate)")
    if len(data) != math.prod(port.shape):
        raise _wrong_count(where, len(data), port)
    array = np.empty(len(data), object)
    array[:] = data
    return array.reshape(port.shape)


def _wrong_count(where: str, count: int, port: Array) -> InvalidRequestError:
    shape = list(port.shape)
    return InvalidRequestError(f"{where}: {count} elements, shape {shape} has {math.prod(shape)}")


def _is_text(item: str) -> bool:
    try:
        item.encode()
    except UnicodeEncodeError:
        return False
    return True


# Kinds of what NumPy makes of JSON data that may become a kind of tensor.
_KINDS = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}


def _kind_name(data: NDArray[Any]) -> str:
    names = {"f": "fractions", "b": "booleans", "U": "strings", "O": "mixed or ragged values"}
    return names.get(data.dtype.kind, str(data.dtype))


def _has_booleans(data: list[Any]) -> bool:
    """Return whether a boolean is among numbers, where NumPy takes it for one."""
    kinds = set(map(type, data))
    return bool in kinds or (list in kinds and any(_has_booleans(part) for part in data))
