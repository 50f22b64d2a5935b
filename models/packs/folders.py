"""Folders of packs: their format, their names, which one a path means, and what is left over in them."""

import contextlib
import re
from pathlib import Path
from typing import Literal

from models.atomic_folders import remove_leftovers
from models.errors import PackError, absent
from models.whole_files import remove_partial_files

#: Of the format of packs: the one that is written and read.
FORMAT_VERSION: Literal[5] = 5

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


# What killed processes leave in a repository.

#: In the folder of a model that `up` compiles: what its pack is of; nothing as long as there is none.
SOURCES_FILE, NO_SOURCES = "made.json", b"{}"


def clear_repository(repository: Path) -> list[Path]:
    """Remove what killed processes left of any model of ``repository``; return what is gone.

    A model's folder in which there was nothing else goes, too. What may not be removed stays.
    """
    try:
        models = sorted(path for path in repository.iterdir() if path.is_dir())
    except OSError:
        return []
    removed = remove_leftovers(repository)
    for folder in models:
        gone = clear_model(folder)
        removed += gone
        with contextlib.suppress(OSError):  # there is more in it, or no access
            is_partial = [path.name for path in folder.iterdir()] == [SOURCES_FILE]
            if is_partial and (folder / SOURCES_FILE).read_bytes() == NO_SOURCES:
                (folder / SOURCES_FILE).unlink()
                removed.append(folder / SOURCES_FILE)
                gone.append(folder)
            if gone:
                folder.rmdir()
    return removed


def clear_model(folder: Path) -> list[Path]:
    """Remove what killed processes left in a model's ``folder``, if it is there; return what is gone."""
    removed = [*remove_leftovers(folder), *remove_partial_files(folder)]
    with contextlib.suppress(OSError):
        for version in versions(folder):
            removed += remove_partial_files(version)
    return removed
