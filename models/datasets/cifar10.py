"""CIFAR-10's test images: the binary version of its authors, or JPEGs in one .npz file."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.datasets.samples import DataError, Dataset, Sample, picture

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_SIDE, _COLOURS = 32, 3
_RECORD = 1 + _COLOURS * _SIDE * _SIDE
_BATCH = "test_batch.bin"
_MAX_ARRAY_BYTES = 1 << 30


def read_cifar10(path: Path) -> Dataset:
    """Return the test images in ``path``: a folder with test_batch.bin, that file, or an .npz.

    An .npz has test_jpeg (all files one behind the other, uint8), test_offsets (int64 [images + 1]) and
    test_labels (uint8).

    Raises:
        DataError: it is neither, or its parts do not fit each other.
    """
    file = path / _BATCH if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"{file}: no such file; CIFAR-10 is read from {_BATCH} of its binary version "
            "(the Python version is of pickles, which may run anything), or from an .npz"
        )
    if file.suffix == ".npz":
        return _of_archive(file)
    return _of_batch(file)


def _of_batch(file: Path) -> Dataset:
    n_bytes = file.stat().st_size
    if not n_bytes or n_bytes % _RECORD:
        raise DataError(f"{file}: {n_bytes} bytes are not whole records of {_RECORD}")
    records = np.memmap(file, np.uint8, "r").reshape(-1, _RECORD)
    _check_labels(file, records[:, 0])

    def opened(number: int) -> Image.Image:
        planes = np.asarray(records[number, 1:]).reshape(_COLOURS, _SIDE, _SIDE)
        return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))

    def samples() -> Iterator[Sample]:
        for number in range(len(records)):
            yield Sample(
                f"{file.name}[{number}]", partial(opened, number), CLASSES[records[number, 0]]
            )

    return Dataset("cifar10", len(records), samples, CLASSES)


def _of_archive(file: Path) -> Dataset:
    jpeg, offsets, labels = _arrays(file)
    _check_labels(file, labels)
    starts = offsets.tolist()

    def opened(number: int) -> Image.Image:
        data = jpeg[starts[number] : starts[number + 1]].tobytes()
        return picture(f"{file}: test image {number}", data)

    def samples() -> Iterator[Sample]:
        for number, label in enumerate(labels.tolist()):
            yield Sample(f"test image {number}", partial(opened, number), CLASSES[label])

    return Dataset("cifar10", len(labels), samples, CLASSES)


def _arrays(file: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    names = ("test_jpeg", "test_offsets", "test_labels")
    try:
        with np.load(file, allow_pickle=False) as archive:
            _check_sizes(file, archive.zip.infolist())
            jpeg, offsets, labels = (np.asarray(archive[name]) for name in names)
    except KeyError as exc:
        raise DataError(
            f"{file}: no array {exc.args[0]!r} in it; it needs {', '.join(names)}"
        ) from exc
    except (
        *(OSError, ValueError, EOFError, MemoryError, RuntimeError, TypeError),
        *(zipfile.BadZipFile, zlib.error),
    ) as exc:
        raise DataError(f"{file}: not an .npz file: {exc}") from exc
    fits = (
        jpeg.ndim == offsets.ndim == labels.ndim == 1
        and jpeg.dtype == np.uint8
        and {offsets.dtype.kind, labels.dtype.kind} <= {"i", "u"}
    )
    if not fits or len(offsets) != len(labels) + 1:
        raise DataError(f"{file}: {', '.join(names)} do not fit each other")
    if offsets[0] < 0 or (np.diff(offsets.astype(np.int64)) < 0).any() or offsets[-1] > len(jpeg):
        raise DataError(f"{file}: test_offsets: not ascending within test_jpeg")
    return jpeg, offsets, labels


def _check_sizes(file: Path, entries: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse arrays that no memory should be given to: a few bytes of a zip file may hold any number."""
    for entry in entries:
        if entry.file_size > _MAX_ARRAY_BYTES:
            raise DataError(f"{file}: {entry.filename}: {entry.file_size} bytes, not CIFAR-10's")


def _check_labels(file: Path, labels: NDArray[Any]) -> None:
    if not len(labels) or int(labels.max()) >= len(CLASSES) or int(labels.min()) < 0:
        raise DataError(f"{file}: labels are not numbers from 0 to {len(CLASSES) - 1}")
