"""The ONNX checker, for what ONNX Runtime does not check itself."""

from pathlib import Path

import onnx
from onnx import TensorProto, defs

from models.errors import OnnxError
from models.graphs.nodes import subgraphs

# Operators that ONNX Runtime has in ONNX's own sets (SimplifiedLayerNormalization) are not in its
# standard; the checker passes over nodes of sets that it does not know.
_STANDARD = ("", "ai.onnx.ml")
_UNCHECKED = "unchecked"


def check(model: onnx.ModelProto, file: Path, path: Path) -> None:
    """Check ``model``.

    Args:
        model: its large weights are external data, beside ``file``.
        file: where a copy may be written.
        path: the source, for messages.

    Raises:
        OnnxError: the model is not valid.
    """
    file.write_bytes(_checkable(model).SerializeToString())
    try:
        onnx.checker.check_model(file)
    except onnx.checker.ValidationError as exc:
        raise OnnxError(f"{path}: not valid: {' '.join(str(exc).split())[:400]}") from exc
    finally:
        file.unlink()


def _checkable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without what the checker refuses and ONNX Runtime does not."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.output:
        _complete(value)
    versions = {item.domain: item.version for item in copy.opset_import}
    copy.opset_import.add(domain=_UNCHECKED, version=1)
    # Not in functions: there such an operator ends ONNX Runtime, and the process with it.
    for node in copy.graph.node:
        _pass_over(node, versions)
    return copy


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
