"""Files of a pack, and the spans of its weights: where they lie, and how they are stored."""

from dataclasses import dataclass
from typing import Annotated, Literal

from models.network.fields import Checksum, Count
from models.records import SHARED, Bounds, PositiveInt, Record

SPAN_ALIGNMENT = 4096
_MAX_BLOCK = 1 << 10

#: How numbers are stored; "bytes": as they are.
Encoding = Literal["bytes", "float16", "bfloat16", "int8", "planes"]
#: How a plane of bytes is stored: as it is, or as codes of fewer bits.
PlaneBits = Literal[0, 1, 2, 3, 4, 8]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord(Record):
    """A file of the pack; ``checksum`` is None for weights.bin, whose spans have their own."""

    n_bytes: Count
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane(Record):
    """A byte of each of many numbers: as it is, or a code of ``bits`` with ``exceptions`` beside them."""

    bits: Annotated[PlaneBits, SHARED]
    exceptions: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart(Record):
    """The bytes [offset, offset + length) of a span in memory, and how they are stored.

    ``channels`` and ``block``, of "int8": the numbers are an array [channels / block, -1, block], in which
    a channel is the first index and the last. ``planes``, of "planes": four; ``kept`` numbers are in them,
    0: all.
    """

    encoding: Annotated[Encoding, SHARED]
    offset: Count
    length: PositiveInt
    channels: Count = 0
    block: Annotated[int, Bounds(ge=1, le=_MAX_BLOCK), SHARED] = 1
    planes: tuple[Annotated[Plane, SHARED], ...] = ()
    kept: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Record):
    """The bytes [offset, offset + length) of weights.bin that a span is made of."""

    offset: Count
    length: PositiveInt
    parts: tuple[StoredPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Record):
    """Weights that come and go together: ``length`` bytes in memory; ``resident`` ones stay there.

    ``offset`` is where they are among all weights, each as long as in memory. They lie there in
    weights.bin, too, but for those that are ``stored`` otherwise, and those that lie ``at`` another place,
    as one before them has the same bytes. ``checksum``: of the bytes in the file.
    """

    offset: Count
    length: PositiveInt
    checksum: Checksum
    resident: bool = False
    stored: Stored | None = None
    at: Count | None = None

    @property
    def file_offset(self) -> int:
        plain = self.offset if self.at is None else self.at
        return plain if self.stored is None else self.stored.offset

    @property
    def file_end(self) -> int:
        return self.file_offset + self.file_length

    @property
    def file_length(self) -> int:
        """What the disk brings."""
        return self.length if self.stored is None else self.stored.length
