"""A folder of files in memory, with as much of pathlib.Path as the repository uses of one.

A sequence of changes looks at hundreds of files: of a file system, also one in memory, that takes half of
its time.
"""

import errno
import io
import os
import stat
from collections.abc import Iterator
from functools import total_ordering
from typing import Any, NamedTuple


class _State(NamedTuple):
    """What ``stat`` says of a file or a folder."""

    st_mode: int
    st_ino: int = 0
    st_size: int = 0
    st_mtime_ns: int = 0
    st_dev: int = 0


_FOLDER = _State(stat.S_IFDIR)


@total_ordering
class ImaginedFolder:
    """The path of a folder, of a file, or of nothing, by what was written there.

    There is one object for a path, so that paths are the same if the objects are.
    """

    def __init__(self, path: str = "/imagined", parent: "ImaginedFolder | None" = None) -> None:
        self._path = path
        self.name = path.rpartition("/")[2]
        self.parent = parent or self
        self._children: dict[str, ImaginedFolder] = {}
        self._state: _State | None = None
        self._data = b""
        #: Changes of files so far, of the topmost folder.
        self._changes = 0

    def __truediv__(self, name: str) -> "ImaginedFolder":
        child = self._children.get(name)
        if child is None:
            child = self._children[name] = ImaginedFolder(f"{self._path}/{name}", self)
        return child

    def __str__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"ImaginedFolder({self._path!r})"

    def __lt__(self, other: "ImaginedFolder") -> bool:
        return self._path < other._path

    def stat(self) -> _State:
        if self._state is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        return self._state

    def exists(self) -> bool:
        return self._state is not None

    def is_dir(self) -> bool:
        return self._state is _FOLDER

    def is_file(self) -> bool:
        return self._state is not None and self._state is not _FOLDER

    def iterdir(self) -> "Iterator[ImaginedFolder]":
        self.stat()
        return iter([child for child in self._children.values() if child._state is not None])

    def glob(self, _: str) -> "list[ImaginedFolder]":
        """Return nothing: it stands for a search of what killed processes have left."""
        return []

    def open(self, _: str) -> Any:
        return io.BytesIO(self.read_bytes())

    def read_bytes(self) -> bytes:
        self.stat()
        return self._data

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def mkdir(self) -> None:
        """Make this folder and those above it, if they are not there."""
        if self._state is None:
            self._state = _FOLDER
            if self.parent is not self:
                self.parent.mkdir()

    def write_text(self, text: str) -> None:
        """Write a file, whose folder is there."""
        top = self.parent
        while top.parent is not top:
            top = top.parent
        top._changes += 1
        self._data = text.encode()
        before = self._state.st_ino if self._state else top._changes
        self._state = _State(stat.S_IFREG, before, len(self._data), top._changes)

    def remove(self) -> None:
        """Remove this folder with all that is in it."""
        self._state = None
        for child in self._children.values():
            child.remove()
