"""What fields of a manifest are made of: names, counts, element types and shapes.

A manifest stays in memory as long as its model is served: records have slots, and what is said many times
is there once (``SHARED``).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from models.records import SHARED, Bounds, Check, Record

_MAX_DIMENSIONS = 64
_MAX_ELEMENTS = 1 << 48

#: Element types that NumPy and ONNX Runtime both have.
DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"}
    | {"uint8", "uint16", "uint32", "uint64"}
)

#: Element type of strings of any length: BYTES in the Open Inference Protocol, objects in NumPy.
STRINGS = "bytes"
#: A dimension that is known only when the model has run.
UNKNOWN = -1


_NAMES = {name: name for name in (*DTYPES, STRINGS)}
_ITEM_BYTES = {name: np.dtype(name).itemsize for name in DTYPES}


def _known_dtype(name: str) -> str:
    if name not in _NAMES:
        raise ValueError(f"{name!r} is not an element type")
    return _NAMES[name]


def _possible_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    # NumPy counts the elements of an empty array, too, as if no dimension was zero.
    if len(shape) > _MAX_DIMENSIONS or math.prod([n for n in shape if n > 0]) > _MAX_ELEMENTS:
        raise ValueError("no array can have this shape")
    return shape


_CHECKSUM = re.compile("[0-9a-f]{16}")


def _possible_checksum(text: str) -> str:
    if not _CHECKSUM.fullmatch(text):
        raise ValueError("no checksum, which has 16 hexadecimal digits")
    return text


Name = Annotated[str, SHARED]
Count = Annotated[int, Bounds(ge=0), SHARED]
DType = Annotated[str, Check(_known_dtype)]
Dimension = Annotated[int, Bounds(ge=UNKNOWN)]
Shape = Annotated[tuple[Dimension, ...], Check(_possible_shape), SHARED]
Checksum = Annotated[str, Check(_possible_checksum)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Array(Record):
    """Something with a dtype and a shape.

    It is *loose* where its size is not known before it exists: strings, or an unknown dimension.
    """

    dtype: DType
    shape: Shape

    @property
    def is_loose(self) -> bool:
        return self.dtype == STRINGS or UNKNOWN in self.shape

    @property
    def item_bytes(self) -> int:
        """Bytes of one element; there are none of strings."""
        return _ITEM_BYTES[self.dtype]

    @property
    def n_bytes(self) -> int:
        """Bytes in memory; 0 of what is loose."""
        return 0 if self.is_loose else math.prod(self.shape) * self.item_bytes


def stretches(part: Sequence[int], whole: Sequence[int]) -> bool:
    """Return whether an array of shape ``part`` stretches to one of shape ``whole``."""
    axes = zip(reversed(part), reversed(whole), strict=False)
    return len(part) <= len(whole) and all(own in (1, length) for own, length in axes)
