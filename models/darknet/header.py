"""The header of a weights file: three int32 of Darknet's version, then how many images were seen."""

import struct
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.darknet.errors import DarknetError

# Versions of Darknet are below 10, above 1000 where matrices are transposed; others are not its files.
_LARGEST_VERSION = (1 << 16) - 1
_VERSION_BYTES = 12

_Version = Annotated[int, Field(ge=0, le=_LARGEST_VERSION)]


class Header(BaseModel):
    """Version of the Darknet that wrote a file, and how many images the network had ``seen``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    major: _Version = 0
    minor: _Version = 2
    revision: _Version = 5
    seen: Annotated[int, Field(ge=0)] = 0

    @property
    def seen_format(self) -> str:
        """How ``seen`` is stored: 64 bits since version 0.2."""
        recent = self.major * 10 + self.minor >= 2
        return "<Q" if recent and max(self.major, self.minor) < 1000 else "<I"

    @property
    def transposed(self) -> bool:
        """Whether matrices of connected layers are stored [inputs, outputs]."""
        return max(self.major, self.minor) > 1000

    def to_bytes(self) -> bytes:
        versions = struct.pack("<iii", self.major, self.minor, self.revision)
        return versions + struct.pack(self.seen_format, self.seen)

    @model_validator(mode="after")
    def _seen_fits(self) -> Self:
        if self.seen >= 1 << 8 * struct.calcsize(self.seen_format):
            raise ValueError(f"seen={self.seen} does not fit into its field")
        return self


def read_header(path: Path) -> tuple[Header, int, int]:
    """Return the header of ``path``, its length, and the file's length, both in bytes.

    Raises:
        DarknetError: the file cannot be read, or does not start as a weights file does.
    """
    try:
        if path.exists() and not path.is_file():
            raise DarknetError(f"{path}: is not a file")
        n_bytes = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_VERSION_BYTES + 8)
    except OSError as exc:
        raise DarknetError(f"{path}: {exc.strerror or exc}") from exc
    if len(start) < _VERSION_BYTES:
        raise DarknetError(f"{path}: {n_bytes} bytes are too few for a header")
    major, minor, revision = struct.unpack("<iii", start[:_VERSION_BYTES])
    try:
        header = Header(major=major, minor=minor, revision=revision)
        end = _VERSION_BYTES + struct.calcsize(header.seen_format)
        if n_bytes < end:
            raise DarknetError(f"{path}: {n_bytes} bytes are too few for a header of {end}")
        (seen,) = struct.unpack(header.seen_format, start[_VERSION_BYTES:end])
        return Header(major=major, minor=minor, revision=revision, seen=seen), end, n_bytes
    except ValidationError as exc:
        raise DarknetError(
            f"{path}: header: version {major}.{minor}.{revision} is none of Darknet's"
        ) from exc
