"""Files that are there as a whole or not at all: written beside their place, then renamed."""

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open what becomes ``path`` when the block ends: whoever reads it meanwhile has the old one.

    A link at ``path`` is replaced, whatever it leads to. Of an old file the permissions stay.

    Raises:
        OSError: it cannot be written; the old one stays, as with any other error of the block.
    """
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            if path.is_file():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


@contextlib.contextmanager
def users_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that the user named as `whole_file` does: what a link leads to, and devices as they are.

    Raises:
        OSError: as `whole_file`.
    """
    if path.exists() and not path.is_file():  # /dev/stdout, a pipe: nothing that could be renamed
        with path.open("wb") as file:
            yield file
        return
    with whole_file(path.resolve()) as file:
        yield file


def write_atomically(path: Path, text: str) -> None:
    """Write ``path`` all at once, for everybody to read.

    Raises:
        OSError: as `whole_file`.
    """
    with whole_file(path) as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text.encode())


def check_writable(folder: Path) -> None:
    """Do what ``write_atomically`` does first, for those who write only after a long while.

    Raises:
        OSError: no file can be made in ``folder``.
    """
    with tempfile.TemporaryFile(dir=folder):
        pass
