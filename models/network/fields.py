"""What fields of a manifest are made of: names, counts, element types and shapes.

A manifest stays in memory as long as its model is served: records have slots, and what is said many times
is there once (``Shared``).
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo

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


_T = TypeVar("_T", bound=Hashable)


def _shared(value: _T, info: ValidationInfo) -> _T:
    """Return what is equal and was read before, if anything; ``read_manifest`` gives the context."""
    same: dict[Hashable, _T] | None = info.context
    return value if same is None else same.setdefault(value, value)


#: Marks fields whose equal values are to be one object.
Shared = AfterValidator(_shared)

Name = Annotated[str, Shared]
Count = Annotated[int, Field(ge=0), Shared]
DType = Annotated[str, AfterValidator(_known_dtype)]
Dimension = Annotated[int, Field(ge=UNKNOWN)]
Shape = Annotated[tuple[Dimension, ...], AfterValidator(_possible_shape), Shared]
Checksum = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class Record:
    """Something that a manifest says, with these fields and no others."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid")


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
