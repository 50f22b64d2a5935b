"""A folder of files that appears whole or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from models.compiler.writing.write import put_in_place
from pipeline.export_c.errors import ExportError

Content = bytes | Iterable[str]


def write_folder(destination: Path, files: Mapping[str, Content], force: bool) -> dict[str, int]:
    """Write ``files`` (bytes, or lines of text) to a new folder; return their sizes.

    What an earlier export wrote there is replaced with ``force``; a folder with anything else in it is not.

    Raises:
        ExportError: the folder exists and ``force`` is not given, has other files, or cannot be written.
    """
    _check_free(destination, files, force)
    destination = Path(os.path.realpath(destination))  # "." has no name, and a link is not replaced
    folder = destination.with_name(f".{destination.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        sizes = {name: _write(folder / name, content) for name, content in files.items()}
        put_in_place(folder, destination)
    except OSError as exc:
        raise ExportError(f"{destination}: cannot write: {exc.strerror or exc}") from exc
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return sizes


def _check_free(destination: Path, files: Mapping[str, Content], force: bool) -> None:
    if not destination.exists():
        return
    if not destination.is_dir():
        raise ExportError(f"{destination}: exists and is no folder")
    present = [f"{path.name}{'/' * _is_folder(path)}" for path in destination.iterdir()]
    stranger = _stranger(present, files)
    if stranger is not None:
        raise ExportError(f"{destination}: has {stranger!r}, which no export wrote; not replaced")
    if not force:
        raise ExportError(f"{destination}: exists; replace what is in it with --force")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _stranger(present: Sequence[str], files: Iterable[str]) -> str | None:
    """Return the first that is of no export: all of one have one name, that of ``files`` or another."""
    names = sorted({Path(name).stem for name in (*files, *present)})
    strangers = [
        sorted(set(present) - {f"{name}{suffix}" for suffix in (".c", ".h", ".weights")})
        for name in names
    ]
    fewest = min(strangers, key=len)
    return fewest[0] if fewest else None


def _write(path: Path, content: Content) -> int:
    with path.open("wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            for line in content:
                file.write(f"{line}\n".encode("ascii"))
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size
