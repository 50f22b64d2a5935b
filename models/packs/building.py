"""A pack that appears whole or not at all: hidden folder, verdict, fsync, rename."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from models.atomic_folders import locked_folder, put_in_place, remove_leftovers
from models.errors import CompileError
from models.packs.folders import clear_model, is_model_name, versions

# What a rename answers where another process has put a folder by now, and an overlay that has no extended
# attributes where the folder around it is of a lower layer.
_NOT_MOVED = frozenset((errno.EEXIST, errno.ENOTEMPTY, errno.EXDEV))


def check_destination(destination: Path, version: int) -> None:
    """Check that ``destination``, REPOSITORY/NAME, may get the folder of ``version``.

    Raises:
        CompileError: it may not; the message says why.
    """
    if not is_model_name(destination.name):
        raise CompileError(
            f"{destination}: {destination.name!r} is not a model name (letters, digits, ._-)"
        )
    if destination.name.isdecimal() and _is_model(destination.parent):
        raise CompileError(
            f"{destination}: {destination.parent.name} is a model; "
            f"-o {destination.parent} --version {destination.name} makes a version of it"
        )
    if version < 1:
        raise CompileError(f"{destination}: version {version} is not a positive integer")


def _is_model(folder: Path) -> bool:
    """Return whether ``folder`` has versions with packs in them."""
    return folder.is_dir() and any((pack / "manifest.json").exists() for pack in versions(folder))


@dataclass
class Unfinished:
    """A pack that is not visible yet: ``pack``, named as it will be, and ``work`` for what is not in it.

    The folder around ``work`` has room for others whose names begin with a dot. ``destination``: where the
    pack shall be, and after the block, where it is.
    """

    pack: Path
    work: Path
    destination: Path


@contextlib.contextmanager
def building(destination: Path, force: bool, warn: Callable[[str], None]) -> Iterator[Unfinished]:
    """Yield two empty folders; the pack becomes ``destination`` when the block ends without an error.

    They are on its disk, which may be another than the repository's if its model's folder is a link. The
    folder of a new model appears with its first version. An overlay moves no folder of its lower layers, as
    of a container's image: where it has the one that is to be replaced, the pack is the next version, and
    ``warn`` is called.

    Raises:
        CompileError: the destination exists and ``force`` is not given, or cannot be written.
    """
    model, repository = destination.parent, destination.parent.parent
    missing = [folder for folder in (repository, *repository.parents) if not folder.exists()]
    try:
        for folder in (repository, model):
            if os.path.lexists(folder) and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        repository.mkdir(parents=True, exist_ok=True)
        remove_leftovers(repository)
        clear_model(model)
        if destination.exists() and not force:
            raise CompileError(f"{destination}: exists; replace it with --force or use --version")
        new = destination if model.is_dir() else model
        with locked_folder(new.parent, new.name) as hidden:
            pack = hidden / destination.relative_to(new.parent)
            pack.mkdir(parents=True)
            (hidden / ".work").mkdir()
            unfinished = Unfinished(pack, hidden / ".work", destination)
            yield unfinished
            unfinished.destination = _moved(pack, destination, hidden / new.name)
            if unfinished.destination != destination:
                warn(
                    f"{destination}: an overlay file system does not move folders of its lower layers: "
                    f"the pack is version {unfinished.destination.name}"
                )
    except OSError as exc:
        _remove_empty(missing)
        where = exc.filename or destination
        raise CompileError(f"{where}: cannot write the pack: {exc.strerror or exc}") from exc
    except BaseException:
        _remove_empty(missing)
        raise


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of ``folders``, from the innermost out, in which nothing is."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _moved(pack: Path, destination: Path, built: Path) -> Path:
    """Move the finished ``pack`` to ``destination`` once all of it is on the disk; return where it is.

    ``built``: what is renamed: the pack, or the folder of a new model with the pack in it.
    """
    for file in pack.iterdir():
        _fsync(file)
    _fsync(pack)
    if built == pack:
        destination = _version_put(pack, destination)
    else:
        _fsync(built)
        _move_model(pack, destination)
        _fsync(destination.parent.parent)
    _fsync(destination.parent)
    return destination


def _version_put(pack: Path, destination: Path) -> Path:
    """Put ``pack`` at ``destination``, or behind the last version where that cannot be moved away."""
    try:
        put_in_place(pack, destination)
    except OSError as exc:
        if exc.errno != errno.EXDEV:
            raise
        last = versions(destination.parent)[-1]
        destination = destination.with_name(str(int(last.name) + 1))
        pack.rename(destination)
    return destination


def _move_model(pack: Path, destination: Path) -> None:
    """Move the folder around ``pack``, a new model's, or ``pack`` alone where that cannot be."""
    try:
        pack.parent.rename(destination.parent)
    except OSError as exc:
        if exc.errno not in _NOT_MOVED:
            raise
        destination.parent.mkdir(exist_ok=True)
        pack.rename(destination)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
