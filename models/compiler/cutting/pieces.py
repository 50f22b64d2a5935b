"""Turn a cut piece into the ONNX model that a session loads.

Invariant: two pieces that do the same to different weights give the same bytes, so that one session
serves both. For the CPU, whose kernels take tensors as they come, that is so whatever their sizes.
"""

from collections.abc import Container, Mapping, Sequence

import onnx
from onnx import TensorProto, helper, numpy_helper

from models.compiler.analysis.graph import Graph
from models.compiler.analysis.slices import CutPiece, Slice
from models.compiler.cutting.rows import RowNode
from models.network.fields import STRINGS

#: The lowest IR version that allows initializers outside the inputs and all dtypes in use.
IR_VERSION = 9


def serialise(graph: Graph, piece: CutPiece, elided: frozenset[int], sized: bool = False) -> bytes:
    """Return ``piece`` as a serialised ModelProto without names (docs/pack-format.md).

    ``sized``: its ports have the shapes of this piece; otherwise only as many dimensions.
    """
    nodes = [
        graph.nodes[index]
        for index in range(piece.first_node, piece.end_node)
        if index not in elided
    ]
    return _model(graph, nodes, [*piece.inputs.values()], [*piece.outputs.values()], sized)


def inline_constants(
    graph: Graph, nodes: Sequence[onnx.NodeProto], ports: Container[str]
) -> list[str]:
    """Return the constants that stay inside a piece of ``nodes``, in their order there."""
    names = (name for node in nodes for name in node.input if name in graph.constants)
    return list(dict.fromkeys(name for name in names if name not in ports))


def constants_of(data: bytes) -> list[int]:
    """Return where in a serialised piece the numbers of each of its constants begin, in their order."""
    found = []
    for tensor in onnx.ModelProto.FromString(data).graph.initializer:
        whole = tensor.SerializeToString(deterministic=True)
        # Its name is its own, and its numbers are its last field.
        found.append(data.index(whole) + len(whole) - len(tensor.raw_data))
    return found


def serialise_rows(graph: Graph, row: RowNode, node: onnx.NodeProto) -> bytes:
    """Return ``node`` of an operator on rows as ``serialise`` does: it takes any number of them."""
    names = (*(name for name, _ in row.inputs), *row.weights)
    four = (0, 0, 0, 0)  # only how many there are counts
    inputs = [
        Slice(name, graph.array(name).shape if graph.is_weight(name) else four) for name in names
    ]
    return _model(graph, [node], inputs, [Slice(row.outputs[0], four)], sized=False)


def _model(
    graph: Graph,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Slice],
    outputs: Sequence[Slice],
    sized: bool,
) -> bytes:
    names = {part.name: f"x{i}" for i, part in enumerate(inputs)}
    names |= {part.name: f"y{i}" for i, part in enumerate(outputs)}
    inline = inline_constants(graph, nodes, names)
    own = []
    for node in nodes:
        for name in (*node.input, *node.output):
            if name and name not in names:
                names[name] = f"t{len(names)}"
        own.append(renamed(node, names))
    domains = {node.domain for node in nodes} | {""}
    model = helper.make_model(
        helper.make_graph(
            own,
            "",
            [_port(graph, names[part.name], part, sized) for part in inputs],
            [_port(graph, names[part.name], part, sized) for part in outputs],
            [numpy_helper.from_array(graph.constants[name], names[name]) for name in inline],
        ),
        opset_imports=[item for item in graph.opsets if item.domain in domains],
        ir_version=IR_VERSION,
    )
    return bytes(model.SerializeToString(deterministic=True))


def renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Return ``node`` without a name, whose values have others: equal nodes are equal bytes."""
    # Attributes come in no particular order: sorted, equal nodes are equal bytes.
    own = onnx.NodeProto(
        op_type=node.op_type,
        domain=node.domain,
        input=[names[name] if name else "" for name in node.input],
        output=[names[name] if name else "" for name in node.output],
    )
    own.attribute.extend(sorted(node.attribute, key=lambda item: item.name))
    return own


def _port(graph: Graph, name: str, part: Slice, sized: bool) -> onnx.ValueInfoProto:
    dtype = graph.array(part.name).dtype
    shape = part.shape if sized else [None] * len(part.shape)
    return helper.make_tensor_value_info(name, element_type(dtype), shape)


def element_type(dtype: str) -> int:
    """Return ONNX's number of a dtype of the manifest."""
    special = {
        STRINGS: TensorProto.STRING,
        "bool": TensorProto.BOOL,
        "float32": TensorProto.FLOAT,
        "float64": TensorProto.DOUBLE,
    }
    return special.get(dtype) or int(TensorProto.DataType.Value(dtype.upper()))
