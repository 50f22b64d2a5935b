"""Versions newer than ONNX Runtime knows: lowered where nothing in the model is newer than what it knows.

onnx marks what it writes with its newest versions, whatever is in it.
"""

from collections.abc import Iterable

import onnx
from onnx import defs

from models.graphs.nodes import all_graphs

#: The newest of ONNX Runtime 1.31, which refuses others by their number alone.
NEWEST_IR, NEWEST_OPSET = 13, 26
# IR version 14 added two element types, which ONNX Runtime refuses by name, and nothing else.
_KNOWN_IR = 14


def lower_versions(model: onnx.ModelProto) -> None:
    """Lower IR version and operator set of ``model``, if every operator means the same in both."""
    if NEWEST_IR < model.ir_version <= _KNOWN_IR:
        model.ir_version = NEWEST_IR
    nodes = [node for graph in all_graphs(model.graph) for node in graph.node]
    _lower_opset(model.opset_import, nodes)
    for function in model.functions:
        _lower_opset(function.opset_import, function.node)


def _lower_opset(
    imports: Iterable[onnx.OperatorSetIdProto], nodes: Iterable[onnx.NodeProto]
) -> None:
    for item in imports:
        if item.domain == "" and NEWEST_OPSET < item.version <= defs.onnx_opset_version():
            own = (node.op_type for node in nodes if node.domain == "")
            if all(_is_old(operator, item.version) for operator in own):
                item.version = NEWEST_OPSET


def _is_old(operator: str, version: int) -> bool:
    try:
        return bool(defs.get_schema(operator, version).since_version <= NEWEST_OPSET)
    except defs.SchemaError:
        return False
