"""Folders of packs: their format, their names, which one a path means, and hidden ones that were left over.

The lock is the kernel's (flock): it ends with the process, however that ends, and is seen from other
containers, where a process number means nothing. A file system without such locks keeps its left-overs.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from models.errors import PackError, absent

#: Of the format of packs: the one that is written and read.
FORMAT_VERSION: Literal[4] = 4

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VERSION = re.compile("[1-9][0-9]*")


def is_model_name(text: str) -> bool:
    """Return whether a model may be called ``text``: letters, digits, ``._-``, at most 100."""
    return _NAME.fullmatch(text) is not None


def versions(folder: Path) -> list[Path]:
    """Return the version folders of a model, lowest first; other names than 1, 2, ... are no packs."""
    folders = [path for path in folder.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name))


def find_pack(path: Path) -> Path:
    """Return the pack folder that ``path`` means: itself, or its latest version.

    Raises:
        PackError: there is no pack.
    """
    if path.is_file():
        raise PackError(f"{path}: a file, not a pack (compile makes one of an ONNX file)")
    if not path.is_dir():
        raise PackError(f"{path}: no such folder") from absent(path)
    if path.resolve().name.startswith("."):
        raise PackError(f"{path}: not a pack: its name starts with a dot")
    if (path / "manifest.json").exists():
        return path
    folders = versions(path)
    if not folders:
        reason = f"{path}: no pack in it (a pack is NAME/VERSION with a manifest.json)"
        raise PackError(reason) from absent(path / "1")
    return folders[-1]


# Hidden folders that packs are built in: whose compilation runs is locked, any other is left over.

PREFIX = ".compiling-"


@contextlib.contextmanager
def locked_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new hidden folder in ``parent`` to build ``name`` in; no process removes it as a leftover.

    It is removed at the end, unless it was renamed.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        folder = parent / f"{PREFIX}{name}-{os.getpid()}-{os.urandom(4).hex()}"
        folder.mkdir()
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # without locks none is removed as a leftover
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.exists():
            break
        os.close(descriptor)  # taken for left over in the moment before it was locked
    try:
        yield folder
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(parent: Path) -> list[Path]:
    """Remove what compilations left in ``parent`` that were killed; return what is gone."""
    return [folder for folder in sorted(parent.glob(f"{PREFIX}*")) if _removed(folder)]


def clear_repository(repository: Path) -> list[Path]:
    """Remove what killed compilations left of any model of ``repository``; return what is gone.

    A model's folder in which there was nothing else goes, too. What may not be removed stays.
    """
    try:
        models = sorted(path for path in repository.iterdir() if path.is_dir())
    except OSError:
        return []
    removed = remove_leftovers(repository)
    for folder in models:
        gone = remove_leftovers(folder)
        removed += gone
        if gone:
            with contextlib.suppress(OSError):  # there is more in it
                folder.rmdir()
    return removed


def _removed(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    except OSError:  # locked, or locks do not work
        return False
    finally:
        os.close(descriptor)
