"""CIFAR-10's test images, in the binary version of its authors."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.datasets.samples import DataError, Dataset, Sample

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_SIDE, _COLOURS = 32, 3
_RECORD = 1 + _COLOURS * _SIDE * _SIDE
_BATCH = "test_batch.bin"


def read_cifar10(path: Path) -> Dataset:
    """Return the test images in ``path``: a folder with test_batch.bin, or that file.

    Raises:
        DataError: it is neither, or holds something else.
    """
    file = path / _BATCH if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"{file}: no such file; CIFAR-10 is read from {_BATCH} of its binary version "
            "(the Python version is of pickles, which may run anything)"
        )
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


def _check_labels(file: Path, labels: NDArray[Any]) -> None:
    if not len(labels) or int(labels.max()) >= len(CLASSES) or int(labels.min()) < 0:
        raise DataError(f"{file}: labels are not numbers from 0 to {len(CLASSES) - 1}")
