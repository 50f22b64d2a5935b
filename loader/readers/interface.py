"""The one interface through which weights are read. Every OS call stays behind it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from loader.errors import ReadError

# How far the read of one range of a file has come. Pure: counts of bytes in, errors out.
#
# Short reads are normal; what follows one must start on a block again with O_DIRECT, and less than
# a block is the end of the file.


class Filling:
    """Fills ``target`` from ``offset`` of the file ``name`` on, in as many reads as it takes."""

    def __init__(self, name: str, alignment: int, offset: int, target: memoryview) -> None:
        self._name = name
        self._alignment = alignment
        self._offset = offset
        self._target = target
        self._done = 0

    @property
    def rest(self) -> memoryview:
        return self._target[self._done :]

    @property
    def position(self) -> int:
        """Where in the file ``rest`` comes from."""
        return self._offset + self._done

    def add(self, count: int) -> bool:
        """Note that a read into ``rest`` gave ``count`` bytes; return whether the target is full.

        Raises:
            ReadError: the file ends before.
        """
        missing = len(self._target) - self._done - count
        if missing == 0:
            self._done += count
            return True
        usable = count - count % self._alignment
        if usable == 0:
            raise ReadError(
                f"{self._name}: ends at {self.position + count}, {missing} bytes short of "
                f"[{self._offset}, {self._offset + len(self._target)})"
            )
        self._done += usable
        return False

    def failure(self, cause: OSError) -> ReadError:
        """Return the error that says where ``cause`` struck; raise it from ``cause``."""
        where = f"{self._name}: bytes [{self._offset}, {self._offset + len(self._target)})"
        return ReadError(f"{where}: {cause.strerror or cause}")


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [offset, offset + length) of a file and the xxh3-64 that they must have."""

    offset: int
    length: int
    checksum: str


class FileAccess(NamedTuple):
    """How to read a file without its reader: by preadv, as it is, from ``descriptor``.

    ``drops_pages``: of the page cache, once they were read.
    """

    descriptor: int
    drops_pages: bool


class Reader(ABC):
    """Reads ranges of one file. Methods may be called from several threads at once."""

    #: What it is called in statistics: "direct", "buffered", "memory".
    kind: str
    #: What it is called in errors: the path of its file.
    name: str
    #: Offset, length and memory address of a read must be multiples of this.
    alignment: int
    #: None: what is read is no file, or it takes this reader to read it.
    access: FileAccess | None = None

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
