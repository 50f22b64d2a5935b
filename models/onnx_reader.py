"""Read an ONNX file that nobody vouches for: parse, validate, load external data, fix shapes.

Invariant: the model returned has every weight inside the message, static shapes on every graph
input, and no initializer among its inputs.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, external_data_helper, helper

from models.errors import OnnxError

# Larger tensors are refused: a product of dimensions beyond this is a mistake or an attack.
MAX_TENSOR_BYTES = 1 << 40


def read_onnx(
    path: Path, batch: int = 1, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> onnx.ModelProto:
    """Read and validate the model in ``path`` and fix the shapes of its inputs.

    Args:
        path: the ONNX file; external data is looked for beside it, never above it.
        batch: what an unknown first dimension becomes.
        shapes: whole shapes by input name, for inputs whose other dimensions are unknown too.

    Raises:
        OnnxError: the file is missing, is not ONNX, refers to missing or outside data, has
            impossible dimensions, or an input whose shape stays unknown.
    """
    model = _parse(path)
    if not all(isinstance(text, str) for text in _texts(model)):
        raise OnnxError(f"{path}: a name in it is not UTF-8")
    for tensor in _tensors(model):
        _check_tensor(path, tensor)
    for node in model.graph.node:
        if any(attribute.ref_attr_name for attribute in node.attribute):
            raise OnnxError(
                f"{path}: node {node.name!r}: refers to an attribute outside of functions"
            )
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as exc:
        raise OnnxError(f"{path}: external data: {exc}") from exc
    _drop_initializer_inputs(model)
    _fix_inputs(path, model, batch, shapes or {})
    return model


def _parse(path: Path) -> onnx.ModelProto:
    try:
        # Without a format onnx chooses one by the file's name.
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except OSError as exc:
        raise OnnxError(f"{path}: {exc.strerror or exc}") from exc
    except (DecodeError, ValueError) as exc:
        raise OnnxError(f"{path}: not an ONNX model ({exc})") from exc
    if not model.ir_version or not model.graph.node:
        raise OnnxError(f"{path}: not an ONNX model (it has no IR version or no nodes)")
    if not model.graph.output:
        raise OnnxError(f"{path}: the graph has no outputs")
    if model.graph.sparse_initializer:
        raise OnnxError(f"{path}: sparse initializers are not supported")
    return model


def _texts(model: onnx.ModelProto) -> Iterator[str]:
    """Yield every name that is used; protobuf gives bytes where one is not UTF-8."""
    for node in model.graph.node:
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    yield from (value.name for value in (*model.graph.input, *model.graph.output))
    for tensor in _tensors(model):
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _check_tensor(path: Path, tensor: TensorProto) -> None:
    """Check data type, dimensions and where the bytes come from, before any of them is read."""
    where = f"{path}: tensor {tensor.name!r}"
    if tensor.data_type == TensorProto.STRING:
        raise OnnxError(f"{where}: strings are not supported")
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
    if tensor.data_location == TensorProto.EXTERNAL:
        _check_external(path, tensor, n_bytes)
    elif tensor.HasField("raw_data"):
        if _packed_bytes(tensor, n_bytes) != len(tensor.raw_data):
            raise OnnxError(
                f"{where}: holds {len(tensor.raw_data)} bytes, its dimensions say {n_bytes}"
            )
    else:
        _check_numbers(where, tensor)


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


def _check_external(path: Path, tensor: TensorProto, n_bytes: int) -> None:
    where = f"{path}: tensor {tensor.name!r}"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    folder = path.parent.resolve()
    try:
        target = (folder / location).resolve()
        size = target.stat().st_size if target.is_file() else None
    except (OSError, RuntimeError, ValueError) as exc:  # too long, a loop, a zero byte
        raise OnnxError(f"{where}: external data path {location!r}: {exc}") from exc
    if not location or not target.is_relative_to(folder):
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
    # Nothing else is left to onnx, which without a length reads to the end of the file.
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _drop_initializer_inputs(model: onnx.ModelProto) -> None:
    """Make weights constants: IR versions before 4 listed every initializer as an input too."""
    names = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, 4)


def _fix_inputs(
    path: Path, model: onnx.ModelProto, batch: int, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    unknown = set(shapes) - {value.name for value in model.graph.input}
    if unknown:
        raise OnnxError(f"{path}: no input called {', '.join(sorted(unknown))}")
    for value in model.graph.input:
        if not value.type.HasField("tensor_type"):
            raise OnnxError(f"{path}: input {value.name!r} is not a tensor")
        shape = shapes.get(value.name) or _static_shape(path, value, batch)
        _check_shape(path, value, shape)
        declared = value.type.tensor_type.shape
        if len(declared.dim) not in (0, len(shape)):
            raise OnnxError(
                f"{path}: input {value.name!r} has {len(declared.dim)} dimensions, not {len(shape)}"
            )
        del declared.dim[:]
        for length in shape:
            declared.dim.add().dim_value = length
    # Stale shapes of inner and output values would contradict the fixed ones: they are inferred anew.
    del model.graph.value_info[:]
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def _static_shape(path: Path, value: onnx.ValueInfoProto, batch: int) -> tuple[int, ...]:
    where = f"{path}: input {value.name!r}"
    if not value.type.tensor_type.HasField("shape"):
        raise OnnxError(f"{where}: shape unknown; fix it with --shape {value.name}=1,3,224,224")
    shape = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value != 0:
            length = dim.dim_value
        elif axis == 0:
            length = batch
        else:
            label = dim.dim_param or "?"
            raise OnnxError(
                f"{where}: dimension {axis} ({label}) is dynamic; fix it with "
                f"--shape {value.name}=N,N,..."
            )
        shape.append(length)
    return tuple(shape)


def _check_shape(path: Path, value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    where = f"{path}: input {value.name!r}"
    for axis, length in enumerate(shape):
        if length <= 0:
            raise OnnxError(f"{where}: dimension {axis} is {length}")
    if math.prod(shape) > MAX_TENSOR_BYTES:
        raise OnnxError(f"{where}: dimensions {list(shape)} overflow")
