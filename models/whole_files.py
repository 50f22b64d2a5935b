"""Files that are there as a whole or not at all: written beside their place, then renamed.

Who writes one holds a lock on it (flock), as of `atomic_folders`: a partial one that nobody locks was left
over.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# Why a file that may be written cannot be renamed over: it is mounted by itself, or another user's.
_KEEPS_ITS_PLACE = frozenset((errno.EBUSY, errno.EACCES, errno.EPERM))
_PARTIAL = re.compile(r"\.[0-9a-f]{16}\.part")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open what becomes ``path`` when the block ends: readers have the old file until then.

    A link at ``path`` is replaced, whatever it leads to. Of an old file the permissions stay.

    Raises:
        OSError: it cannot be written; the old one stays, as with any other error of the block.
    """
    file = _partial_file(path)
    partial = Path(file.name)
    try:
        with file:
            if path.is_file():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield file
            sync(file)
            _put(partial, path)  # while it is locked: unlocked, it would count as left over
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _partial_file(path: Path) -> BinaryIO:
    """Return a new file in the folder of ``path``, open and locked.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        partial = path.with_name(f".{os.urandom(8).hex()}.part")
        file = partial.open("xb")
        with contextlib.suppress(OSError):  # without locks none is removed as a leftover
            fcntl.flock(file, fcntl.LOCK_EX)
        if partial.exists():
            return file
        file.close()  # taken for left over in the moment before it was locked


def remove_partial_files(folder: Path) -> list[Path]:
    """Remove the files in ``folder`` that processes left which were killed; return those that are gone."""
    with contextlib.suppress(OSError):
        files = sorted(path for path in folder.iterdir() if _PARTIAL.fullmatch(path.name))
        return [file for file in files if _is_removed(file)]
    return []


def _is_removed(partial: Path) -> bool:
    try:
        with os.fdopen(os.open(partial, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()
    except OSError:  # locked, or locks do not work, or it has its place by now
        return False
    return True


def _put(partial: Path, path: Path) -> None:
    """Have ``partial`` take the place of ``path``, or, of a file mounted by itself, write over it."""
    try:
        partial.replace(path)
    except OSError as exc:
        if exc.errno not in _KEEPS_ITS_PLACE or not path.is_file():
            raise
        import shutil

        shutil.copyfile(partial, path)


def sync(file: BinaryIO) -> None:
    """Have all that was written to ``file`` on its disk; a pipe or a device has none.

    Raises:
        OSError: the disk does not take it.
    """
    file.flush()
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        os.fsync(file.fileno())


@contextlib.contextmanager
def users_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that the user named as `whole_file` does; one that cannot be replaced is written over.

    Of a link what it leads to is replaced. Standard output and error, whatever they are called,
    go on from where they are.

    Raises:
        OSError: it cannot be written, as one that is there for reading only; otherwise as `whole_file`.
    """
    standard = _standard(path)
    if standard is not None:
        sys.stdout.flush()  # what was said before comes before
        with os.fdopen(os.dup(standard), "wb") as file:
            yield file
    elif path.exists() and not _is_replaceable(path):
        with path.open("wb") as file:
            yield file
    else:
        with whole_file(Path(os.path.realpath(path))) as file:
            yield file


def _standard(path: Path) -> int | None:
    """Return the descriptor of standard output or error if ``path`` is one of them, as /dev/stdout is."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # one of them is not there
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
    return None


def _is_replaceable(path: Path) -> bool:
    """Return whether another file can take the place of ``path``, which is there.

    Raises:
        OSError: it may not be written at all.
    """
    if not path.is_file():  # a pipe, a device
        return False
    with path.open("r+b"):
        pass
    try:
        check_writable(Path(os.path.realpath(path)).parent)
    except OSError:
        return False
    return True


def check_users_file(path: Path) -> None:
    """Do what `users_file` does first, for callers that write only after a long while.

    Raises:
        OSError: it cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists():
        _is_replaceable(path)
    else:
        check_writable(Path(os.path.realpath(path)).parent)


def write_atomically(path: Path, text: str) -> None:
    """Write ``path`` all at once, readable for all users.

    Raises:
        OSError: as `whole_file`.
    """
    with whole_file(path) as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text.encode())


def check_writable(folder: Path) -> None:
    """Do what ``write_atomically`` does first, for callers that write only after a long while.

    Raises:
        OSError: no file can be made in ``folder``.
    """
    import tempfile

    with tempfile.TemporaryFile(dir=folder):
        pass
