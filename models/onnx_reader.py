"""Read an ONNX file that nobody vouches for: parse, validate, load external data, fix shapes.

Invariant: the model returned has static shapes on every graph input, no initializer among its inputs,
and weights that were checked: inside the message, or, large ones, references to ranges of files
(models/onnx_file.py) that were there.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from models.errors import OnnxError
from models.onnx_file import FileRange, parse_onnx
from models.onnx_nodes import all_graphs
from models.onnx_tensors import MAX_TENSOR_BYTES, all_tensors, take_tensors
from models.onnx_tidy import tidy


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
    model, ranges = _parse(path)
    if not _is_text(model):
        raise OnnxError(f"{path}: a name in it is not UTF-8")
    take_tensors(path, model, ranges)
    for node in model.graph.node:
        if any(attribute.ref_attr_name for attribute in node.attribute):
            raise OnnxError(
                f"{path}: node {node.name!r}: refers to an attribute outside of functions"
            )
    tidy(path, model)
    _drop_initializer_inputs(model)
    _fix_inputs(path, model, batch, shapes or {})
    _forget_shapes(model)
    return model


def _parse(path: Path) -> tuple[onnx.ModelProto, dict[int, FileRange]]:
    try:
        model, ranges = parse_onnx(path)
    except OSError as exc:
        raise OnnxError(f"{path}: {exc.strerror or exc}") from exc
    except (DecodeError, ValueError) as exc:
        raise OnnxError(f"{path}: not an ONNX model ({exc})") from exc
    if not model.ir_version or not model.graph.node:
        raise OnnxError(f"{path}: not an ONNX model (it has no IR version or no nodes)")
    if not model.graph.output:
        raise OnnxError(f"{path}: the graph has no outputs")
    return model, ranges


def _is_text(model: onnx.ModelProto) -> bool:
    """Return whether every name that is used is UTF-8; protobuf gives bytes, or fails, for others."""
    try:
        return all(isinstance(text, str) for text in _texts(model))
    except UnicodeDecodeError:
        return False


def _texts(model: onnx.ModelProto) -> Iterator[str]:
    yield from (item.domain for item in model.opset_import)
    for function in model.functions:
        yield from (function.name, function.domain)
        yield from (item.domain for item in function.opset_import)
        yield from _node_texts(function.node)
    for graph in all_graphs(model.graph):
        yield graph.name
        yield from _node_texts(graph.node)
        yield from (value.name for value in (*graph.input, *graph.output))
    for tensor in all_tensors(model):
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)


def _node_texts(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


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
        _check_shape(path, value, shape, 0 if value.name in shapes else 1)
        declared = value.type.tensor_type.shape
        if len(declared.dim) not in (0, len(shape)):
            raise OnnxError(
                f"{path}: input {value.name!r} has {len(declared.dim)} dimensions, not {len(shape)}"
            )
        del declared.dim[:]
        for length in shape:
            declared.dim.add().dim_value = length


def _forget_shapes(model: onnx.ModelProto) -> None:
    """Remove shapes that would contradict those of the inputs: they are inferred anew.

    The results of loop bodies keep theirs, since no one can infer them.
    """
    for graph in all_graphs(model.graph):
        del graph.value_info[:]
        for branch in (
            item.g for node in graph.node if node.op_type == "If" for item in node.attribute
        ):
            for value in branch.output:
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")
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


def _check_shape(
    path: Path, value: onnx.ValueInfoProto, shape: tuple[int, ...], least: int
) -> None:
    where = f"{path}: input {value.name!r}"
    for axis, length in enumerate(shape):
        if length < least:
            raise OnnxError(f"{where}: dimension {axis} is {length}")
    if math.prod(shape) > MAX_TENSOR_BYTES:
        raise OnnxError(f"{where}: dimensions {list(shape)} overflow")
