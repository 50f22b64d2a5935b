"""Readers of real files: O_DIRECT, and a buffered one that leaves nothing in the page cache."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

from loader.buffers import PAGE_BYTES, Buffer
from loader.errors import (
    ClosedError,
    FileChangedError,
    FileLostError,
    FileReplacedError,
    ReadError,
)
from loader.readers.interface import FileAccess, Filling, Reader

_log = logging.getLogger(__name__)

_REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})


class _FileReader(Reader):
    """Reads with preadv until the target is full; short reads and interruptions are normal."""

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        self.name = str(path)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        except OSError as exc:
            raise ReadError(f"{path}: {exc.strerror or exc}") from exc
        try:
            self._opened = os.fstat(self._descriptor)
        except OSError as exc:
            self.close()
            raise ReadError(f"{path}: {exc.strerror or exc}") from exc
        self._looks = _looks(self._opened)
        self.access = FileAccess(self._descriptor, drops_pages=False)

    def read_into(self, offset: int, target: memoryview) -> None:
        self._require_open()
        filling = Filling(self.name, self.alignment, offset, target)
        complete = not target.nbytes
        while not complete:
            try:
                count = os.preadv(self._descriptor, [filling.rest], filling.position)
            except OSError as exc:
                raise filling.failure(exc) from exc
            complete = filling.add(count)

    def check(self) -> None:
        self._require_open()
        try:
            status = os.stat(self.name)  # noqa: PTH116  before and after each sweep: a Path takes as long again
        except OSError:
            status = None
        if status is None or _looks(status) != self._looks:
            self._find_change()

    def _find_change(self) -> None:
        """Raise what has changed; a file that was moved away and back has not."""
        try:
            now = os.fstat(self._descriptor)
        except OSError as exc:
            raise FileLostError(f"{self._path}: {exc.strerror or exc}") from exc
        if (now.st_size, now.st_mtime_ns) != (self._opened.st_size, self._opened.st_mtime_ns):
            raise FileChangedError(f"{self._path}: the file was changed since it was opened")
        try:
            there = self._path.stat()
        except OSError as exc:
            raise FileLostError(f"{self._path}: {exc.strerror or exc}") from exc
        if (there.st_dev, there.st_ino) != (now.st_dev, now.st_ino):
            raise FileReplacedError(f"{self._path}: another file took its place")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self.access = None

    def _require_open(self) -> None:
        if self._descriptor < 0:
            raise ClosedError(f"{self._path}: reader closed")


def _looks(status: os.stat_result) -> tuple[int, ...]:
    """Return what shows whether a path still leads to the same file, with the same bytes."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class DirectReader(_FileReader):
    """Reads around the page cache (O_DIRECT): no copy, no second place where weights lie."""

    kind = "direct"
    alignment = 4096

    def __init__(self, path: Path) -> None:
        super().__init__(path, os.O_DIRECT)


class BufferedReader(_FileReader):
    """Reads through the page cache and drops the pages again, where O_DIRECT is refused."""

    kind = "buffered"
    alignment = 1

    def __init__(self, path: Path) -> None:
        super().__init__(path, 0)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        self.access = FileAccess(self._descriptor, drops_pages=True)

    def read_into(self, offset: int, target: memoryview) -> None:
        super().read_into(offset, target)
        os.posix_fadvise(self._descriptor, offset, len(target), os.POSIX_FADV_DONTNEED)


def open_reader(path: Path, direct: Callable[[Path], Reader] = DirectReader) -> Reader:
    """Return a direct reader of ``path``, or a buffered one (with a warning) where that is refused.

    One block is read to find out: some file systems accept the flag and refuse the read.

    Raises:
        ReadError: the file cannot be read at all.
    """
    try:
        size = path.stat().st_size
    except OSError as exc:
        raise ReadError(f"{path}: {exc.strerror or exc}") from exc
    if not size:
        return BufferedReader(path)
    try:
        reader = direct(path)
        try:
            block = Buffer(min(PAGE_BYTES, size))
            reader.read_into(0, block.bytes.data)
            block.close()
        except BaseException:
            reader.close()
            raise
        return reader
    except ReadError as exc:
        cause = exc.__cause__
        if not isinstance(cause, OSError) or cause.errno not in _REFUSALS:
            raise
    _log.warning(
        "%s: the file system refuses O_DIRECT; reading through the page cache and dropping it", path
    )
    return BufferedReader(path)


# A reader of a file whose path another file may take meanwhile: the one that was opened is read
# on.


class ReplaceableReader(Reader):
    """Reads as ``reader`` does, and takes it for sound while the file that it has open is.

    A file that was replaced is to be opened anew: until then what was loaded of the old one stays whole.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._was_replaced = False
        self.kind, self.name, self.alignment = reader.kind, reader.name, reader.alignment
        self.access = reader.access

    def read_into(self, offset: int, target: memoryview) -> None:
        """Do as the reader does.

        Raises:
            FileLostError: the system refuses to read a file that was replaced, as where its disk was pulled
                out and another is mounted there: the one that was opened does not come back.
        """
        try:
            self._reader.read_into(offset, target)
        except ReadError as exc:
            if not isinstance(exc.__cause__, OSError):
                raise
            try:
                self._reader.check()
            except FileReplacedError:
                raise FileLostError(str(exc)) from exc.__cause__
            except FileChangedError:  # the next sweep begins with that check
                pass
            raise

    def check(self) -> None:
        """Do as the reader does, but for FileReplacedError, which is logged once."""
        try:
            self._reader.check()
        except FileReplacedError as exc:
            if not self._was_replaced:
                _log.info("%s: the one that was opened is read until it is loaded again", exc)
            self._was_replaced = True

    def close(self) -> None:
        self._reader.close()
