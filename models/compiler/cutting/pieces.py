"""Turn a cut piece into the ONNX model that a session loads.

Invariant: two pieces that do the same to different weights give the same bytes, so that one session
serves both.
"""

import onnx
from onnx import TensorProto, helper, numpy_helper

from models.compiler.analysis.graph import Graph
from models.compiler.analysis.slices import CutPiece, Slice
from models.packs.manifest import STRINGS

# The lowest IR version that allows initializers outside the inputs and all dtypes in use.
_IR_VERSION = 9


def serialise(graph: Graph, piece: CutPiece, elided: frozenset[int]) -> bytes:
    """Return ``piece`` as a serialised ModelProto without names (docs/pack-format.md)."""
    names = {name: f"x{i}" for i, name in enumerate(piece.inputs)}
    names |= {name: f"y{i}" for i, name in enumerate(piece.outputs)}
    inline: dict[str, str] = {}
    nodes = []
    for index in range(piece.first_node, piece.end_node):
        if index in elided:
            continue
        node = graph.nodes[index]
        for name in (*node.input, *node.output):
            if name and name not in names:
                names[name] = f"t{len(names)}"
                if name in graph.constants:
                    inline[name] = names[name]
        nodes.append(_renamed(node, names))
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "",
            [_port(graph, names[name], part) for name, part in piece.inputs.items()],
            [_port(graph, names[name], part) for name, part in piece.outputs.items()],
            [numpy_helper.from_array(graph.constants[name], new) for name, new in inline.items()],
        ),
        opset_imports=graph.opsets,
        ir_version=_IR_VERSION,
    )
    return bytes(model.SerializeToString(deterministic=True))


def _renamed(node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
    # Attributes come in no particular order: sorted, equal nodes are equal bytes.
    renamed = onnx.NodeProto(
        op_type=node.op_type,
        domain=node.domain,
        input=[names[name] if name else "" for name in node.input],
        output=[names[name] if name else "" for name in node.output],
    )
    renamed.attribute.extend(sorted(node.attribute, key=lambda item: item.name))
    return renamed


def _port(graph: Graph, name: str, part: Slice) -> onnx.ValueInfoProto:
    dtype = graph.array(part.name).dtype
    return helper.make_tensor_value_info(name, element_type(dtype), part.shape)


def element_type(dtype: str) -> int:
    """Return ONNX's number of a dtype of the manifest."""
    special = {
        STRINGS: TensorProto.STRING,
        "bool": TensorProto.BOOL,
        "float32": TensorProto.FLOAT,
        "float64": TensorProto.DOUBLE,
    }
    return special.get(dtype) or int(TensorProto.DataType.Value(dtype.upper()))
