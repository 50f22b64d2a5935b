"""What ONNX Runtime does not check itself: what the ONNX checker does, and scales that are divided by."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, defs, numpy_helper

from models.errors import OnnxError
from models.graphs.file import reference
from models.graphs.nodes import all_graphs, label, subgraphs, versions_of
from models.network.operators.on_bytes import SCALES

# Operators that ONNX Runtime has in ONNX's own sets (SimplifiedLayerNormalization) are not in its
# standard; the checker passes over nodes of sets that it does not know.
_STANDARD = ("", "ai.onnx.ml")
_UNCHECKED = "unchecked"
# Inputs with the scale of what an operator makes. Those of what it reads may be zero: all is zero then, as
# exporters write it of channels without weights.
_DIVISORS = {
    "QLinearMatMul": 6,
    **{name: at[-1] for name, at in SCALES.items() if at and name != "DequantizeLinear"},
}


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
    versions = versions_of(copy.opset_import)
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


def check_scales(model: onnx.ModelProto, path: Path) -> None:
    """Check that no constant scale makes what cannot be rounded to integers.

    Raises:
        OnnxError: one is zero, negative, or not finite; the message names the node.
    """
    for graph in all_graphs(model.graph):
        tensors = {tensor.name: tensor for tensor in graph.initializer if reference(tensor) is None}
        for node in graph.node:
            place = _DIVISORS.get(node.op_type)
            if place is None or len(node.input) <= place or node.input[place] not in tensors:
                continue
            scales = numpy_helper.to_array(tensors[node.input[place]]).astype(np.float64).ravel()
            wrong = scales[~((scales > 0) & np.isfinite(scales))]
            if len(wrong):
                raise OnnxError(
                    f"{path}: node {label(node)!r} ({node.op_type}): scale {node.input[place]!r} is "
                    f"{wrong[0]:g}; it must be above zero"
                )
