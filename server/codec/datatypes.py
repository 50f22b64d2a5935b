"""Datatypes of the Open Inference Protocol, version 2, and how large its requests may be."""

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from models.network.fields import STRINGS
from models.packs.records.ports import Port

DATATYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": STRINGS,
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}

_SLACK_BYTES = 1 << 20
_BYTES_A_NUMBER = 64
_BYTES_A_STRING = 64 << 10


@cache
def datatype(dtype: "str | np.dtype[Any]") -> str:
    """Return the protocol's name of a dtype ("FP32" for "float32"; strings are objects in NumPy)."""
    name = str(dtype)
    return "BYTES" if name == "object" else _NAMES.get(name, name.upper())


def body_limit(ports: Iterable[Port]) -> int:
    """Return how many bytes an infer request for ``ports`` may have: generous, yet bounded."""
    return _SLACK_BYTES + sum(
        math.prod(port.shape) * (_BYTES_A_STRING if port.dtype == STRINGS else _BYTES_A_NUMBER)
        for port in ports
    )
