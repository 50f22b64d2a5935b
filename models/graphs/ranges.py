"""Numbers that stay in files: where they lie, and how they are copied."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Smaller weights stay in the message: ONNX Runtime infers shapes from some, and only from there.
INSIDE_BYTES = 1024

_ALIGNMENT = 64
_COPY_BYTES = 4 << 20

# Maps in use, by the device, inode, size and time of change of their files.
_maps: WeakValueDictionary[tuple[int, ...], "np.memmap[Any, Any]"] = WeakValueDictionary()


@dataclass(frozen=True)
class FileRange:
    """The bytes [offset, offset + length) of a file."""

    path: Path
    offset: int
    length: int


def copy_range(data: FileRange, target: BinaryIO) -> None:
    """Append ``data`` to ``target``, a few MiB at a time.

    Raises:
        OSError: the file cannot be read, or ends early.
    """
    with data.path.open("rb") as file:
        file.seek(data.offset)
        left = data.length
        while left:
            block = file.read(min(left, _COPY_BYTES))
            if not block:
                raise OSError(None, "ends early", str(data.path))
            target.write(block)
            left -= len(block)


def aligned(file: BinaryIO) -> int:
    """Return where the next tensor begins in ``file``, which ends there now."""
    file.write(bytes(-file.tell() % _ALIGNMENT))
    return file.tell()


def appended(data: Path, array: NDArray[Any]) -> NDArray[Any]:
    """Return ``array``, of a type that NumPy has, mapped from the end of the file ``data``."""
    with data.open("ab") as file:
        offset = aligned(file)
        file.write(np.ascontiguousarray(array).data)
    return mapped(FileRange(data, offset, array.nbytes), array.dtype, array.shape)


def mapped(data: FileRange, dtype: DTypeLike, shape: Sequence[int]) -> NDArray[Any]:
    """Return what lies in ``data`` from its start on, as an array that is mapped and cannot be written.

    A file that did not change is mapped once, however many arrays lie in it: a map keeps a file descriptor.
    """
    kind = np.dtype(dtype)
    end = data.offset + kind.itemsize * math.prod(shape)
    return _map(data.path)[data.offset : end].view(kind).reshape(shape)


def _map(path: Path) -> "np.memmap[Any, Any]":
    state = path.stat()
    key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
    content = _maps.get(key)
    if content is None:
        content = _maps[key] = np.memmap(path, np.uint8, "r")
    return content


def range_of(array: NDArray[Any]) -> FileRange | None:
    """Return where the bytes of ``array`` lie, as they follow each other in it; None: in no file so."""
    mapped: Any = array
    while isinstance(mapped.base, np.ndarray):
        mapped = mapped.base
    # What NumPy computes of a map is called one, too, and has no file.
    if not isinstance(mapped, np.memmap) or not mapped.filename or not array.flags.c_contiguous:
        return None
    first, start = (view.__array_interface__["data"][0] for view in (array, mapped))
    return FileRange(Path(mapped.filename), mapped.offset + first - start, array.nbytes)
