"""A folder of pictures, or of folders that are named like their classes."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from models.datasets.samples import SUFFIXES, DataError, Dataset, Sample, picture


def read_folder(folder: Path) -> Dataset:
    """Return the pictures of ``folder``: those of its folders have these as classes, else none has one.

    Raises:
        DataError: it is no folder, has no pictures, or has both.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    own = _pictures(folder)
    classes = {path.name: _pictures(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    classes = {name: found for name, found in classes.items() if found}
    if own and classes:
        raise DataError(
            f"{folder}: pictures beside folders of pictures ({own[0].name}, {next(iter(classes))}/): "
            "either all are in folders named like their classes, or none is"
        )
    if not own and not classes:
        raise DataError(f"{folder}: no pictures in it ({', '.join(sorted(SUFFIXES))})")
    labelled: list[tuple[Path, str | None]] = [(path, None) for path in own]
    labelled += [(path, name) for name, found in classes.items() for path in found]

    def samples() -> Iterator[Sample]:
        for path, label in labelled:
            name = str(path.relative_to(folder))
            yield Sample(name, partial(picture, str(path), path), label)

    return Dataset(folder.name, len(labelled), samples, tuple(classes))


def _pictures(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        # A link that leads nowhere is a broken picture.
        if path.suffix.lower() in SUFFIXES and (path.is_file() or not path.exists())
    )
