"""Read an untrusted ONNX file: parse, validate, load external data, fix shapes.

Invariant: the model returned has static shapes on every graph input, no initializer among its inputs but
small defaults (models/graphs/inputs.py), and weights that were checked: inside the message, or, large ones,
references to ranges of files (models/graphs/file.py) that were there.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from models.errors import OnnxError
from models.graphs.file import FileRange, all_tensors, parse_onnx, take_tensors
from models.graphs.inputs import Warn, fix_inputs, keep_defaults
from models.graphs.nodes import all_graphs
from models.graphs.tidy import lift_constants, lower_versions, tidy


def read_onnx(
    path: Path,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    warn: Warn = lambda text: None,
    keep: Collection[str] = (),
    picture: Sequence[int] = (),
) -> onnx.ModelProto:
    """Read and validate the model in ``path`` and fix the shapes of its inputs.

    Args:
        path: the ONNX file; external data is looked for beside it, never above it.
        batch: what an unknown first dimension becomes; None: 1.
        shapes: whole shapes by input name, for inputs whose other dimensions are unknown too.
        warn: called with a line for what is taken otherwise than it says.
        keep: inputs with a value that stay inputs, though they look like weights.
        picture: the shape of pictures, which give the one input what it leaves open.

    Raises:
        OnnxError: the file is missing, is not ONNX, has no nodes, refers to missing or outside data, has
            impossible dimensions, an input whose shape stays unknown, or no use for ``batch``.
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
    lower_versions(model)
    keep_defaults(path, model, warn, keep)
    lift_constants(model)
    fix_inputs(path, model, batch, shapes or {}, picture, warn)
    return model


def source_files(path: Path) -> list[Path]:
    """Return ``path``, an ONNX file, and the files of weights that it refers to.

    Raises:
        OnnxError: it is missing, or is not ONNX.
    """
    model, _ = _parse(path)
    paths = (
        path.parent / entry.value
        for tensor in all_tensors(model)
        for entry in tensor.external_data
        if entry.key == "location"
    )
    return list(dict.fromkeys((path, *(each for each in paths if each != path.absolute()))))


def _parse(path: Path) -> tuple[onnx.ModelProto, dict[int, FileRange]]:
    try:
        model, ranges = parse_onnx(path)
    except OSError as exc:
        raise OnnxError(f"{path}: {exc.strerror or exc}") from exc
    except (DecodeError, ValueError) as exc:
        raise OnnxError(f"{path}: not an ONNX model ({exc})") from exc
    if not model.ir_version or not model.HasField("graph"):
        raise OnnxError(f"{path}: not an ONNX model (it has no IR version or no graph)")
    if not model.graph.output:
        raise OnnxError(f"{path}: the graph has no outputs")
    if not model.graph.node:
        raise OnnxError(
            f"{path}: the graph has no nodes: its outputs are its inputs or constants, nothing is computed"
        )
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
