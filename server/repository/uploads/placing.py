"""A new pack becomes the next version of its model: by a rename, so whole or not at all."""

import errno
import os
from pathlib import Path

from models.packs.pack import versions
from server.errors import ConflictError

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def check_takes_versions(root: Path, name: str) -> None:
    """Check that what becomes a version of ``name`` in the repository ``root`` can be served; blocks.

    Raises:
        ConflictError: it cannot, as long as what is there under that name stays.
    """
    folder = root / name
    if folder.exists() and not folder.is_dir():
        raise ConflictError(f"model {name!r}: {name} in the repository is not a folder")
    if (folder / "manifest.json").exists():
        raise ConflictError(
            f"model {name!r}: {name} is a pack itself, beside which no version is served; move its files "
            f"to {name}/1 and load it, then upload the next version"
        )


def place(made: Path, root: Path) -> Path:
    """Move ``made``, FOLDER/NAME with version 1 of a pack in it, into the repository ``root``.

    Return the pack's folder there: the next version of NAME, or its first; blocks.

    Raises:
        OSError: the disk refuses it.
    """
    folder = root / made.name
    if not folder.exists() and _moved(made, folder):
        return folder / "1"
    while True:  # others put versions there, too
        number = max((int(path.name) for path in versions(folder)), default=0) + 1
        if _moved(made / "1", folder / str(number)):
            return folder / str(number)


def _moved(source: Path, destination: Path) -> bool:
    """Rename ``source``; return False where the name is taken."""
    try:
        source.rename(destination)
    except OSError as exc:
        if exc.errno in _TAKEN:
            return False
        raise
    descriptor = os.open(destination.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True
