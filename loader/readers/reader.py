"""The one interface through which weights are read. Every OS call stays behind it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [offset, offset + length) of a file and the xxh3-64 that they must have."""

    offset: int
    length: int
    checksum: str


class Reader(ABC):
    """Reads ranges of one file. Methods may be called from several threads at once."""

    #: What it is called in statistics: "direct", "buffered", "memory".
    kind: str
    #: What it is called in errors: the path of its file.
    name: str
    #: Offset, length and memory address of a read must be multiples of this.
    alignment: int

    @abstractmethod
    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes of the file from ``offset`` on; blocks.

        Raises:
            ReadError: an IO error, or the file ends before ``target`` is full.
            ClosedError: the reader was closed.
        """

    def check(self) -> None:  # noqa: B027  what is no file cannot change behind our back
        """Look whether the file is still the one that was opened; cheap, no byte is read.

        Raises:
            FileChangedError: it was written to, truncated or removed. FileReplacedError: another took its
                place.
            ClosedError: the reader was closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file. The caller has seen every read of it end."""
