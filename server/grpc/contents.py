"""Typed contents of a message to the array of an input."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.fields import STRINGS
from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.errors import InvalidRequestError
from server.grpc.messages.inference_pb2 import InferTensorContents

# Which field has the values of a dtype; of those that are missing here none has.
_FIELDS = {
    "bool": "bool_contents",
    **dict.fromkeys(("int8", "int16", "int32"), "int_contents"),
    "int64": "int64_contents",
    **dict.fromkeys(("uint8", "uint16", "uint32"), "uint_contents"),
    "uint64": "uint64_contents",
    "float32": "fp32_contents",
    "float64": "fp64_contents",
    STRINGS: "bytes_contents",
}


def contents_array(where: str, port: Port, contents: InferTensorContents) -> NDArray[Any]:
    """Return ``contents`` as the array of ``port``; ``where`` names the input in errors.

    Raises:
        InvalidRequestError: they are of another datatype, too many or too few, or over what it holds.
    """
    field = _FIELDS.get(port.dtype)
    if field is None:
        kind = datatype(port.dtype)
        raise InvalidRequestError(f"{where}: {kind} travels in raw_input_contents alone")
    for found, _ in contents.ListFields():
        if found.name != field:
            raise InvalidRequestError(
                f"{where}: has {found.name}; {datatype(port.dtype)} is in {field}"
            )
    values = getattr(contents, field)
    if len(values) != math.prod(port.shape):
        raise InvalidRequestError(
            f"{where}: {len(values)} values in {field}, shape {list(port.shape)} has "
            f"{math.prod(port.shape)}"
        )
    if port.dtype == STRINGS:
        return _strings(where, values).reshape(port.shape)
    return _numbers(where, port, values).reshape(port.shape)


def _numbers(where: str, port: Port, values: Any) -> NDArray[Any]:
    dtype = np.dtype(port.dtype)
    if dtype.kind in "iu" and dtype.itemsize < 4 and len(values):
        limits = np.iinfo(dtype)
        if min(values) < limits.min or max(values) > limits.max:
            name = datatype(port.dtype)
            raise InvalidRequestError(f"{where}: data has numbers that {name} cannot hold")
    return np.fromiter(values, dtype, len(values))


def _strings(where: str, values: Any) -> NDArray[Any]:
    found: NDArray[Any] = np.empty(len(values), object)
    for index, value in enumerate(values):
        try:
            found[index] = value.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(f"{where}: element {index} is not UTF-8") from None
    return found
