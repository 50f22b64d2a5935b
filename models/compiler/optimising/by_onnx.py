"""What the package onnx does of the work: it checks models by the standard, and infers element types."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, shape_inference

from models.compiler.optimising.refused_nodes import EXPORT_AGAIN, title
from models.errors import OnnxError
from models.graphs.graph import Graph
from models.graphs.nodes import subgraphs, versions_of
from models.graphs.writer import model_of

# Operators that ONNX Runtime has in ONNX's own sets (SimplifiedLayerNormalization) are not in its
# standard; the checker passes over nodes of sets that it does not have.
_STANDARD = ("", "ai.onnx.ml")
_UNCHECKED = "unchecked"


def check(graph: Graph, file: Path, path: Path) -> None:
    """Check ``graph``.

    Args:
        graph: its mapped constants lie next to ``file``.
        file: where it may be written.
        path: the source, for messages.

    Raises:
        OnnxError: it is not valid.
    """
    file.write_bytes(_checkable(model_of(graph, file.parent)).SerializeToString())
    try:
        onnx.checker.check_model(file)
    except onnx.checker.ValidationError as exc:
        fault = _unmade(graph) or " ".join(str(exc).split())[:400]
        raise OnnxError(f"{path}: not valid: {fault}; {EXPORT_AGAIN}") from exc
    finally:
        file.unlink()


def _unmade(graph: Graph) -> str:
    """Return which node reads what none before it makes; empty: none does."""
    available = {"", *graph.inputs, *graph.constants}
    for node in graph.nodes:
        for name in node.inputs:
            if name not in available:
                return f"{title(node)} reads {name!r}, which no node before it makes"
        available.update(node.made)
    return ""


def _checkable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model``, now without what the checker refuses and ONNX Runtime does not."""
    for value in model.graph.output:
        _complete(value)
    versions = versions_of(model.opset_import)
    model.opset_import.add(domain=_UNCHECKED, version=1)
    for node in model.graph.node:
        _pass_over(node, versions)
    return model


def _complete(value: onnx.ValueInfoProto) -> None:
    """Give an output type and shape, which ONNX Runtime finds itself."""
    if value.type.WhichOneof("value") in (None, "tensor_type"):
        tensor = value.type.tensor_type
        tensor.elem_type = tensor.elem_type or TensorProto.FLOAT
        tensor.shape.SetInParent()


def _pass_over(node: onnx.NodeProto, versions: dict[str, int]) -> None:
    if node.domain in _STANDARD and not _is_standard(node, versions.get(node.domain)):
        node.domain = _UNCHECKED
    for graph in subgraphs(node):
        for inner in graph.node:
            _pass_over(inner, versions)


def _is_standard(node: onnx.NodeProto, version: int | None) -> bool:
    if version is None:
        return True  # the checker says that its set is not imported
    try:
        defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return False
    return True


def element_types(graph: Graph) -> dict[str, str]:
    """Return element types by name, as arrays call them, of inputs, outputs and values that are known."""
    inferred = shape_inference.infer_shapes(model_of(graph)).graph
    kinds = {
        port.name: port.type.tensor_type.elem_type
        for port in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    return {
        name: np.dtype(helper.tensor_dtype_to_np_dtype(kind)).name
        for name, kind in kinds.items()
        if kind
    }
