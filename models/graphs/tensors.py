"""The data of the tensors in an ONNX model that nobody vouches for: checked before any is read.

Large weights become references to ranges of files (models/graphs/file.py); whatever else lies outside the
message comes into it.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from models.errors import OnnxError
from models.graphs.file import INSIDE_BYTES, FileRange, refer
from models.graphs.nodes import inner_tensors, sparse_parts

# Larger tensors are refused: a product of dimensions beyond this is a mistake or an attack.
MAX_TENSOR_BYTES = 1 << 40


def take_tensors(path: Path, model: onnx.ModelProto, ranges: Mapping[int, FileRange]) -> None:
    """Check all tensors of ``model``; ``ranges`` has the raw data of initializers left in the file.

    Raises:
        OnnxError: impossible dimensions, data that do not fit them, or outside the model's folder.
    """
    for index, tensor in enumerate(model.graph.initializer):
        _take(path, tensor, ranges.get(index))
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


def _take(path: Path, tensor: TensorProto, raw: FileRange | None, inside: bool = False) -> None:
    """Check data type, dimensions and data; ``raw`` is where raw data were left in the file.

    Large data become a reference, unless they must be ``inside``; external data of other tensors come
    into the message.
    """
    where = f"{path}: tensor {tensor.name!r}"
    n_bytes = _declared_bytes(where, tensor)
    if tensor.data_type == TensorProto.STRING:
        _check_strings(where, tensor)
    elif tensor.data_location == TensorProto.EXTERNAL:
        data = _external_range(path, tensor, n_bytes)
        if inside or data.length <= INSIDE_BYTES:
            _load(where, tensor, data)
        else:
            refer(tensor, data)
    elif raw is not None or tensor.HasField("raw_data"):
        held = raw.length if raw is not None else len(tensor.raw_data)
        if _packed_bytes(tensor, n_bytes) != held:
            raise OnnxError(f"{where}: holds {held} bytes, its dimensions say {n_bytes}")
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


def _external_range(path: Path, tensor: TensorProto, n_bytes: int) -> FileRange:
    where = f"{path}: tensor {tensor.name!r}"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    folder = path.parent.resolve()
    try:
        target = (folder / location).resolve()
        size = target.stat().st_size if target.is_file() else None
    except (OSError, RuntimeError, ValueError) as exc:  # too long, a loop, a zero byte
        raise OnnxError(f"{where}: external data path {location!r}: {exc}") from exc
    if not location or Path(location).is_absolute() or not target.is_relative_to(folder):
        raise OnnxError(f"{where}: external data path {location!r} leaves the model's folder")
    if size is None:
        raise OnnxError(f"{where}: external data file {location!r} is missing")
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
