"""ONNX files whose large weights stay where they are, and checks of the data of untrusted tensors.

A message parsed whole costs its size twice (the bytes, the message); here a weight larger than
``INSIDE_BYTES`` becomes a *reference*: external data whose location is an absolute path.
"""

import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.errors import OnnxError
from models.graphs.nodes import attribute_tensors, inner_tensors, sparse_parts
from models.graphs.ranges import INSIDE_BYTES, FileRange, aligned, copy_range, mapped
from models.runtime.wire import FieldPlace, WireError, field, places

__all__ = [
    "INSIDE_BYTES",
    "MAX_TENSOR_BYTES",
    "FileRange",
    "aligned",
    "all_tensors",
    "copy_range",
    "numbers_of",
    "parse_onnx",
    "refer",
    "reference",
    "take_tensors",
    "tensor_at",
    "tensor_in",
]

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER


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


def tensor_in(file: BinaryIO, name: str, array: NDArray[Any]) -> TensorProto:
    """Return ``array`` as a tensor, in ``file``, beside the model, where it is large."""
    if array.nbytes <= INSIDE_BYTES:
        return numpy_helper.from_array(np.array(array), name)
    held = FileRange(Path(file.name), aligned(file), array.nbytes)
    file.write(np.ascontiguousarray(array).data)
    return tensor_at(held, name, array)


def tensor_at(data: FileRange, name: str, array: NDArray[Any], by_name: bool = True) -> TensorProto:
    """Return ``array`` as a tensor whose bytes are ``data``, in a file next to the model.

    ``by_name``: whether the message has the name of that file alone, or its path.
    """
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = TensorProto(name=name, data_type=kind, dims=array.shape)
    refer(tensor, data, data.path.name if by_name else None)
    return tensor


def numbers_of(tensor: TensorProto, folder: Path = Path()) -> NDArray[Any]:
    """Return what ``tensor`` holds; what lies in a file, in ``folder`` or anywhere, is mapped."""
    held = reference(tensor)
    if held is None:
        return numpy_helper.to_array(tensor)
    held = replace(held, path=folder / held.path)
    return mapped(held, helper.tensor_dtype_to_np_dtype(tensor.data_type), tensor.dims)


# The data of the tensors in an untrusted ONNX model: checked before any is read.
#
# Large weights become references to ranges of files (models/graphs/file.py); whatever else lies outside
# the message comes into it.

# Larger tensors are refused: a product of dimensions beyond this is a mistake or an attack.
MAX_TENSOR_BYTES = 1 << 40


def take_tensors(path: Path, model: onnx.ModelProto, ranges: Mapping[int, FileRange]) -> None:
    """Check all tensors of ``model``; ``ranges`` has the raw data of initializers left in the file.

    Raises:
        OnnxError: impossible dimensions, data that do not fit them, or outside the model's folder.
    """
    readers = {name: node for node in reversed(model.graph.node) for name in node.input}
    for index, tensor in enumerate(model.graph.initializer):
        _take(path, tensor, ranges.get(index), readers.get(tensor.name))
    for tensor in _inner_tensors(model):
        _take(path, tensor, None, inside=True)


def all_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor: weights, attributes, and those of the graphs and functions inside."""
    yield from model.graph.initializer
    yield from _inner_tensors(model)


def _inner_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from sparse_parts(model.graph.sparse_initializer)
    yield from inner_tensors(model.graph.node)
    for function in model.functions:
        yield from inner_tensors(function.node)
        yield from attribute_tensors(function.attribute_proto)


def _take(
    path: Path,
    tensor: TensorProto,
    raw: FileRange | None,
    node: onnx.NodeProto | None = None,
    inside: bool = False,
) -> None:
    """Check data type, dimensions and data; ``raw`` is where raw data were left in the file.

    Large data become a reference, unless they must be ``inside``; external data of other tensors come
    into the message. ``node``: the first that reads it, for errors.
    """
    where = f"{path}: tensor {tensor.name!r}"
    if node is not None:
        where += f" of node {node.name!r} ({node.op_type})"
    n_bytes = _declared_bytes(where, tensor)
    if tensor.data_type == TensorProto.STRING:
        _check_strings(where, tensor)
    elif tensor.data_location == TensorProto.EXTERNAL:
        data = _external_range(path, where, tensor, n_bytes)
        if inside or data.length <= INSIDE_BYTES:
            _load(where, tensor, data)
        else:
            refer(tensor, data)
    elif raw is not None or tensor.HasField("raw_data"):
        stored_bytes = raw.length if raw is not None else len(tensor.raw_data)
        if _packed_bytes(tensor, n_bytes) != stored_bytes:
            raise OnnxError(f"{where}: holds {stored_bytes} bytes, its dimensions say {n_bytes}")
        if raw is not None:
            refer(tensor, raw)
    else:
        _check_numbers(where, tensor)


def _declared_bytes(where: str, tensor: TensorProto) -> int:
    """Return the bytes that data type and dimensions say, before any of them is read."""
    if tensor.HasField("segment"):
        raise OnnxError(f"{where}: segments are not supported")
    try:
        item_bytes = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError) as exc:
        raise OnnxError(f"{where}: unknown data type {tensor.data_type}") from exc
    if any(dim < 0 for dim in tensor.dims):
        raise OnnxError(f"{where}: negative dimension in {list(tensor.dims)}")
    n_bytes = math.prod(tensor.dims) * item_bytes
    if n_bytes > MAX_TENSOR_BYTES:
        raise OnnxError(f"{where}: dimensions {list(tensor.dims)} overflow ({n_bytes} bytes)")
    return n_bytes


def _check_strings(where: str, tensor: TensorProto) -> None:
    if tensor.data_location == TensorProto.EXTERNAL or tensor.HasField("raw_data"):
        raise OnnxError(f"{where}: strings can only be in the message, as strings")
    if len(tensor.string_data) != math.prod(tensor.dims):
        raise OnnxError(
            f"{where}: holds {len(tensor.string_data)} strings, "
            f"its dimensions say {math.prod(tensor.dims)}"
        )


def _load(where: str, tensor: TensorProto, data: FileRange) -> None:
    try:
        with data.path.open("rb") as file:
            file.seek(data.offset)
            content = file.read(data.length)
    except OSError as exc:
        raise OnnxError(f"{where}: external data: {exc}") from exc
    tensor.raw_data = content
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _check_numbers(where: str, tensor: TensorProto) -> None:
    """Check the count of numbers in a typed field."""
    expected = _packed_bytes(tensor, math.prod(tensor.dims))
    if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        expected *= 2
    count = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
    if count != expected:
        raise OnnxError(f"{where}: holds {count} numbers, its dimensions say {expected}")


def _packed_bytes(tensor: TensorProto, n_bytes: int) -> int:
    """Return the stored size: two 4-bit (four 2-bit) elements share a byte."""
    name = TensorProto.DataType.Name(tensor.data_type)
    for suffix, per_byte in (("INT4", 2), ("FLOAT4E2M1", 2), ("INT2", 4)):
        if name.endswith(suffix):
            return -(-math.prod(tensor.dims) // per_byte)
    return n_bytes


def _external_range(path: Path, where: str, tensor: TensorProto, n_bytes: int) -> FileRange:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    try:
        folders = _data_folders(path)
        target = (folders[0] / location).resolve()
        size = target.stat().st_size if target.is_file() else None
    except (OSError, RuntimeError, ValueError) as exc:  # too long, a loop, a zero byte
        raise OnnxError(f"{where}: external data path {location!r}: {exc}") from exc
    if (
        not location
        or Path(location).is_absolute()
        or os.path.normpath(location).startswith("..")
        or not any(map(target.is_relative_to, folders))
    ):
        raise OnnxError(
            f"{where}: external data path {location!r} leaves the model's folder; put the file into it, "
            "and save the model with that path"
        )
    if size is None:
        raise OnnxError(
            f"{where}: external data file {location!r} is missing; copy it next to the model"
        )
    expected = _packed_bytes(tensor, n_bytes)
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", expected))
    except ValueError as exc:
        raise OnnxError(f"{where}: external data range is not a number") from exc
    if offset < 0 or length != expected or offset + length > size:
        raise OnnxError(
            f"{where}: external data [{offset}, {offset + length}) does not fit: "
            f"{expected} bytes needed, {location!r} has {size}"
        )
    return FileRange(target, offset, length)


def _data_folders(path: Path) -> tuple[Path, Path]:
    """Return the folders that have the external data of the model ``path``, itself or by links.

    They are that of its name and that of the file. These differ where it is a link, as in the cache of
    huggingface_hub: a snapshot has links to a model and its data, which lie next to each other among the
    blobs. What else it links to is outside; ONNX Runtime follows the same links.
    """
    return path.parent.resolve(), path.resolve().parent
