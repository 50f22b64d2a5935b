"""Parse an ONNX file and leave its large weights where they are.

A message parsed whole costs its size twice (the bytes, the message); here a weight larger than
``INSIDE_BYTES`` becomes a *reference*: external data whose location is an absolute path.
"""

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from models.runtime.wire import FieldPlace, WireError, field, places

# Smaller weights stay in the message: ONNX Runtime infers shapes from some, and only from there.
INSIDE_BYTES = 1024

_ALIGNMENT = 64
_COPY_BYTES = 4 << 20
_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER


@dataclass(frozen=True)
class FileRange:
    """The bytes [offset, offset + length) of a file."""

    path: Path
    offset: int
    length: int


def parse_onnx(path: Path) -> tuple[onnx.ModelProto, dict[int, FileRange]]:
    """Return the model in ``path`` and where the raw data of its large initializers lie, by index.

    Raises:
        OSError: the file cannot be read.
        DecodeError: it is not a protobuf message of this kind.
    """
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            raise DecodeError("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            scan = _Scan(path, data)
            try:
                model = onnx.ModelProto.FromString(scan.message(len(data)))
            except WireError as exc:
                raise DecodeError(str(exc)) from exc
    return model, scan.ranges


class _Scan:
    """Walks the wire format of a model and copies all but the raw data of large initializers."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._count = 0
        self.ranges: dict[int, FileRange] = {}

    def message(self, end: int) -> bytes:
        parts = []
        for place in places(self._data, 0, end):
            is_graph = place.number == _GRAPH and place.has_bytes
            parts.append(field(_GRAPH, self._graph(place)) if is_graph else self._whole(place))
        return b"".join(parts)

    def _graph(self, graph: FieldPlace) -> bytes:
        parts = []
        for place in places(self._data, graph.content, graph.end):
            if place.number == _INITIALIZER and place.has_bytes:
                parts.append(field(_INITIALIZER, self._tensor(place)))
                self._count += 1
            else:
                parts.append(self._whole(place))
        return b"".join(parts)

    def _tensor(self, tensor: FieldPlace) -> bytes:
        if tensor.end - tensor.content <= INSIDE_BYTES:
            return self._data[tensor.content : tensor.end]
        parts = []
        for place in places(self._data, tensor.content, tensor.end):
            if place.number == _RAW_DATA and place.has_bytes:
                # Of a field that comes twice the last one counts.
                self.ranges.pop(self._count, None)
                length = place.end - place.content
                if length > INSIDE_BYTES:
                    self.ranges[self._count] = FileRange(self._path, place.content, length)
                    continue
            parts.append(self._whole(place))
        return b"".join(parts)

    def _whole(self, place: FieldPlace) -> bytes:
        return self._data[place.start : place.end]


def refer(tensor: TensorProto, data: FileRange, location: str | None = None) -> None:
    """Make the data of ``tensor`` external: ``data``, under another name if ``location`` is given."""
    for name in (
        "raw_data",
        "float_data",
        "int32_data",
        "int64_data",
        "double_data",
        "uint64_data",
    ):
        tensor.ClearField(name)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (
        ("location", location or str(data.path)),
        ("offset", str(data.offset)),
        ("length", str(data.length)),
    ):
        tensor.external_data.add(key=key, value=value)


def reference(tensor: TensorProto) -> FileRange | None:
    """Return where the data of ``tensor`` lie, None where they are in the message."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return FileRange(Path(entries["location"]), int(entries["offset"]), int(entries["length"]))


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


def tensor_in(file: BinaryIO, name: str, array: NDArray[Any]) -> TensorProto:
    """Return ``array`` as a tensor, in ``file``, beside the model, where it is large."""
    if array.nbytes <= INSIDE_BYTES:
        return numpy_helper.from_array(np.array(array), name)
    held = FileRange(Path(file.name), aligned(file), array.nbytes)
    file.write(np.ascontiguousarray(array).data)
    return tensor_at(held, name, array)


def tensor_at(data: FileRange, name: str, array: NDArray[Any]) -> TensorProto:
    """Return ``array`` as a tensor whose bytes are ``data``, in a file beside the model."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = TensorProto(name=name, data_type=kind, dims=array.shape)
    refer(tensor, data, data.path.name)
    return tensor


def numbers_of(tensor: TensorProto, folder: Path = Path()) -> NDArray[Any]:
    """Return what ``tensor`` holds; what lies in a file, in ``folder`` or anywhere, is mapped."""
    held = reference(tensor)
    if held is None:
        return numpy_helper.to_array(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.memmap(folder / held.path, dtype, "r", held.offset, tuple(tensor.dims))


def bring_inside(tensor: TensorProto, folder: Path) -> None:
    """Let the message have the data of ``tensor``, which may lie in a file in ``folder``."""
    if tensor.data_location == TensorProto.EXTERNAL:
        load_external_data_for_tensor(tensor, str(folder))
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
