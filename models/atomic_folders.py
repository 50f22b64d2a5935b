"""Folders that are there as a whole or not at all: built inside a hidden folder, then renamed.

Invariant: who builds holds a lock on a file in the hidden folder, so a folder whose lock is free was left
by a process that was killed, and may be removed by who takes the lock. The lock is the kernel's (flock):
it ends with the process, however that ends, and is seen from other containers, where a process number
means nothing. It is of a file that is open for writing, since NFS grants no other. A file system without
such locks keeps its left-overs.
"""

import contextlib
import errno
import fcntl
import gc
import os
import sys
import traceback
from collections.abc import Iterator
from ctypes import CDLL, get_errno
from pathlib import Path

#: Hidden folders that are built in begin so.
PREFIX = ".compiling-"
# In such a folder: the file that is locked, and a folder of what is replaced; no model is called so.
_LOCK, _REPLACED = ".lock", ".replaced"
# From linux/fs.h and fcntl.h: exchange two paths in one step, paths relative to the working folder.
_RENAME_EXCHANGE = 2
_HERE = -100
# What a file system answers that cannot exchange two paths: NFS, FUSE and overlays, and old kernels.
_NO_EXCHANGE = frozenset((errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP))


@contextlib.contextmanager
def locked_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new hidden folder in ``parent`` to build ``name`` in; no process removes it as a leftover.

    It is removed at the end; what was built is renamed before.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        folder = parent / f"{PREFIX}{name}-{os.getpid()}-{os.urandom(4).hex()}"
        folder.mkdir()
        try:
            lock = _open_lock(folder)
        except FileNotFoundError:
            continue  # taken for left over in the moment before it was locked
        with contextlib.suppress(OSError):  # without locks none is removed as a leftover
            fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_lock_of(folder, lock):
            break
        os.close(lock)
        with contextlib.suppress(OSError):
            folder.rmdir()  # on NFS it could not be removed while its lock was open
    try:
        yield folder
    finally:
        _remove(folder, lock)


def remove_leftovers(parent: Path) -> list[Path]:
    """Remove what processes left in ``parent`` that were killed; return what is gone.

    If one was killed while it replaced a folder, the old one is put back first.
    """
    return [folder for folder in sorted(parent.glob(f"{PREFIX}*")) if _is_removed(folder)]


def put_in_place(folder: Path, destination: Path) -> None:
    """Put ``folder``, which lies in a `locked_folder` next to ``destination``, at ``destination``.

    What is there is replaced in one step and never missing. A file system that cannot do that gets two
    renames: in between the old one is in the locked folder, from which `remove_leftovers` puts it back.

    Raises:
        OSError: the disk refuses it; what was there stays.
    """
    if not destination.exists():
        folder.rename(destination)
        return
    try:
        _exchange(folder, destination)
    except OSError as exc:
        if exc.errno not in _NO_EXCHANGE:
            raise
        _replace(folder, destination)


def _exchange(folder: Path, destination: Path) -> None:
    libc = CDLL(None, use_errno=True)
    paths = (os.fsencode(folder), os.fsencode(destination))
    if libc.renameat2(_HERE, paths[0], _HERE, paths[1], _RENAME_EXCHANGE) != 0:
        code = get_errno()
        raise OSError(code, os.strerror(code), str(destination))


def _replace(folder: Path, destination: Path) -> None:
    old = folder.parent / _REPLACED / destination.name
    old.parent.mkdir()
    destination.rename(old)
    try:
        folder.rename(destination)
    except BaseException:
        old.rename(destination)
        raise


# The lock of a hidden folder, and its end.


def _open_lock(folder: Path) -> int:
    """Return the file to lock in ``folder``, which is there afterwards.

    Raises:
        OSError: ``folder`` is gone, is a link, or takes no file.
    """
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=within)
    finally:
        os.close(within)


def _is_lock_of(folder: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), (folder / _LOCK).lstat())
    except OSError:
        return False


def _is_removed(folder: Path) -> bool:
    try:
        lock = _open_lock(folder)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked, or locks do not work
        os.close(lock)
        return False
    if not _is_lock_of(folder, lock):  # another process has removed it
        os.close(lock)
        return False
    _remove(folder, lock)
    return not folder.exists()


def _remove(folder: Path, lock: int) -> None:
    """Remove ``folder``, as far as the disk lets it, and then end its ``lock``."""
    try:
        if not _is_put_back(folder):
            return
        if not _is_emptied(folder):
            _close_maps()
            _is_emptied(folder)
        # Its name goes first: who waits for the lock sees by it that the folder is not to be used.
        with contextlib.suppress(OSError):
            (folder / _LOCK).unlink()
    finally:
        os.close(lock)
    with contextlib.suppress(OSError):  # NFS removes a file that was open when it is closed
        folder.rmdir()


def _is_put_back(folder: Path) -> bool:
    """Put back what was to be replaced in the folder around ``folder`` and is not; return whether it is."""
    replaced = folder / _REPLACED
    try:
        for old in replaced.iterdir() if replaced.is_dir() else ():
            if not os.path.lexists(folder.parent / old.name):
                old.rename(folder.parent / old.name)
    except OSError:
        return False
    return True


def _is_emptied(folder: Path) -> bool:
    """Remove all but the lock in ``folder``; return whether nothing else is left."""
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                import shutil

                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink(missing_ok=True)
        return {path.name for path in folder.iterdir()} <= {_LOCK}
    except OSError:
        return False


def _close_maps() -> None:
    """Drop what still refers to mapped files: objects in circles, and frames of the error that goes on.

    NFS and FUSE keep a file that is open or mapped under another name, with which its folder stays.
    """
    exc = sys.exception()
    while exc is not None:
        traceback.clear_frames(exc.__traceback__)
        exc = exc.__cause__ or exc.__context__
    gc.collect()
