"""Files of a pack, and the spans of its weights: where they lie, and how they are stored."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from models.packs.records.fields import Checksum, Count, Record, Shared

SPAN_ALIGNMENT = 4096
_MAX_BLOCK = 1 << 10

#: How numbers are stored; "bytes": as they are.
Encoding = Literal["bytes", "float16", "bfloat16", "int8", "planes"]
#: What ``compile --store`` asks for.
Store = Literal["fp32", "fp16", "bf16", "int8", "lossless"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord(Record):
    """A file of the pack; ``checksum`` is None for weights.bin, whose spans have their own."""

    n_bytes: Count
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart(Record):
    """The bytes [offset, offset + length) of a span in memory, and how they are stored.

    ``channels`` and ``block``, of "int8": the numbers are an array [channels / block, -1, block], in which
    a channel is the first index and the last. ``planes``, of "planes": the stored bytes of each of four.
    """

    encoding: Annotated[Encoding, Shared]
    offset: Count
    length: PositiveInt
    channels: Count = 0
    block: Annotated[int, Field(ge=1, le=_MAX_BLOCK), Shared] = 1
    planes: tuple[PositiveInt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Record):
    """The bytes [offset, offset + length) of weights.bin that a span is made of."""

    offset: Count
    length: PositiveInt
    parts: tuple[StoredPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Record):
    """Weights that come and go together: ``length`` bytes in memory; ``resident`` ones stay there.

    Without ``stored`` they are the bytes [offset, offset + length) of weights.bin; with it ``offset`` is
    where they would be if all spans were. ``checksum``: of the bytes in the file.
    """

    offset: Count
    length: PositiveInt
    checksum: Checksum
    resident: bool = False
    stored: Stored | None = None

    @property
    def file_offset(self) -> int:
        return self.offset if self.stored is None else self.stored.offset

    @property
    def file_length(self) -> int:
        """What the disk brings."""
        return self.length if self.stored is None else self.stored.length
