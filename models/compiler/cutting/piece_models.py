"""Cut pieces and resident ones as the ONNX models that sessions load.

Invariant: two pieces that do the same to different weights give the same bytes, so that one session
serves both. For the CPU, whose kernels take tensors as they come, that is so whatever their sizes, with
operators of which it is known (``accepts_any_size`` in scratch.py).
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.compiler.analysis.graph import CutPiece, Graph, OpaqueRegion, Slice
from models.compiler.cutting.row_nodes import RowNode
from models.errors import CompileError
from models.graphs.nodes import label, made, reads
from models.network.fields import STRINGS, UNKNOWN
from models.network.node import NamedTensor
from models.packs.records.pieces import ResidentPiece

#: The lowest IR version that allows initializers outside the inputs and all dtypes in use.
_IR_VERSION = 9
_UNSIZED = (UNKNOWN,)
#: The axis of an image.
_ROWS = 2


def serialise(graph: Graph, piece: CutPiece, elided: frozenset[int], sized: bool = False) -> bytes:
    """Return ``piece`` as a serialised ModelProto without names (docs/reference/pack-format.md).

    ``sized``: its ports have the shapes of this piece; otherwise only as many dimensions.
    """
    nodes = [
        graph.nodes[index]
        for index in range(piece.first_node, piece.end_node)
        if index not in elided
    ]

    def values(parts: Iterable[Slice]) -> list[NamedTensor]:
        shapes = ((part, part.shape if sized else _UNSIZED * len(part.shape)) for part in parts)
        return [port(graph, part.name, shape) for part, shape in shapes]

    return serialise_nodes(
        graph, nodes, values(piece.inputs.values()), values(piece.outputs.values())
    )


def inline_constants(
    graph: Graph, nodes: Sequence[onnx.NodeProto], ports: Container[str]
) -> list[str]:
    """Return the constants that stay inside a piece of ``nodes``, in their order there."""
    names = (name for node in nodes for name in node.input if name in graph.constants)
    return list(dict.fromkeys(name for name in names if name not in ports))


def constants_of(data: bytes) -> list[int]:
    """Return where in a serialised piece the numbers of each of its constants begin, in their order."""
    places = []
    for tensor in onnx.ModelProto.FromString(data).graph.initializer:
        whole = tensor.SerializeToString(deterministic=True)
        # Its name is its own, and its numbers are its last field.
        places.append(data.index(whole) + len(whole) - len(tensor.raw_data))
    return places


def serialise_rows(graph: Graph, row: RowNode) -> bytes:
    """Return the nodes of ``row`` as ``serialise`` does, for any number of rows."""
    four = _UNSIZED * 4
    rows = [port(graph, name, four) for name, _ in row.inputs]
    weights = [port(graph, name) for name in row.weights]
    return serialise_nodes(graph, row.nodes, [*rows, *weights], [port(graph, row.outputs[0], four)])


def serialise_all_rows(graph: Graph, row: RowNode, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return the nodes of ``row`` on all rows, padded; ``shapes``: of what they read and make."""
    output = shapes[row.outputs[0]]
    rows = []
    for name, window in row.inputs:
        first, end = window.needed(0, output[_ROWS])
        rows.append(
            port(graph, name, (*shapes[name][:_ROWS], end - first, *shapes[name][_ROWS + 1 :]))
        )
    weights = [port(graph, name, graph.array(name).shape) for name in row.weights]
    return serialise_nodes(
        graph, row.nodes, [*rows, *weights], [port(graph, row.outputs[0], output)]
    )


def port(graph: Graph, name: str, shape: tuple[int, ...] | None = None) -> NamedTensor:
    """Return ``name`` as a port of a ``shape``; None: only how many dimensions it has is said."""
    array = graph.array(name)
    shape = _UNSIZED * len(array.shape) if shape is None else shape
    return NamedTensor(name=name, dtype=array.dtype, shape=shape)


def serialise_nodes(
    graph: Graph,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[NamedTensor],
    outputs: Sequence[NamedTensor],
) -> bytes:
    """Return ``nodes``, whose constants that are no inputs stay inside, as a model without names."""
    names = {value.name: f"x{i}" for i, value in enumerate(inputs)}
    names |= {value.name: f"y{i}" for i, value in enumerate(outputs)}
    inline = inline_constants(graph, nodes, names)
    own = []
    for node in nodes:
        for name in (*node.input, *node.output):
            if name and name not in names:
                names[name] = f"t{len(names)}"
        own.append(_renamed(node, names))
    domains = {node.domain for node in nodes} | {""}
    piece_graph = helper.make_graph(
        own,
        "",
        [described(value.named(names[value.name])) for value in inputs],
        [described(value.named(names[value.name])) for value in outputs],
        [numpy_helper.from_array(graph.constants[name], names[name]) for name in inline],
    )
    opsets = [item for item in graph.opsets if item.domain in domains]
    model = helper.make_model(piece_graph, opset_imports=opsets, ir_version=_IR_VERSION)
    return bytes(model.SerializeToString(deterministic=True))


def named_model(
    graph: Graph,
    title: str,
    nodes: Sequence[onnx.NodeProto],
    ports: Iterable[Iterable[str]],
    tensors: Sequence[TensorProto],
) -> onnx.ModelProto:
    """Return ``nodes`` as they are as a model; ``ports``: its inputs, then its outputs."""
    inputs, outputs = (
        [described(port(graph, name, graph.array(name).shape)) for name in names] for names in ports
    )
    nodes_as_graph = helper.make_graph(nodes, title, inputs, outputs, tensors)
    return helper.make_model(
        nodes_as_graph, opset_imports=graph.opsets, ir_version=graph.ir_version
    )


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
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


def described(value: NamedTensor) -> onnx.ValueInfoProto:
    """Return ``value`` as a port of a graph."""
    strings = value.dtype == STRINGS
    kind = TensorProto.STRING if strings else helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    shape = [None if length == UNKNOWN else length for length in value.shape]
    return helper.make_tensor_value_info(value.name, kind, shape)


# Resident pieces: a region of the graph as one ONNX model that keeps its weights and its names.

# A protobuf message cannot exceed 2 GiB.
_MAX_BYTES = (1 << 31) - (1 << 20)


def resident_piece(graph: Graph, region: OpaqueRegion, kept: Collection[str]) -> CutPiece:
    """Return the piece of ``region``; it gives those of its values that are ``kept`` or read outside."""
    nodes = graph.nodes[region.first : region.end]
    computed = dict.fromkeys(name for node in nodes for name in made(node))
    read = dict.fromkeys(name for node in nodes for name in reads(node))

    def is_wanted(name: str) -> bool:
        outside = (reader not in region for reader in graph.readers.get(name, ()))
        return name in kept or name in graph.outputs or any(outside)

    inputs = [
        name
        for name in read
        if name not in computed and (name in graph.values or name in graph.loose)
    ]
    return CutPiece(
        region.first,
        region.end,
        {name: Slice(name, graph.array(name).shape) for name in inputs},
        {name: Slice(name, graph.array(name).shape) for name in computed if is_wanted(name)},
        (),
        region=region,
    )


def serialise_resident(graph: Graph, piece: CutPiece) -> bytes:
    """Return ``piece`` as a serialised ModelProto that has its constants inside.

    Raises:
        CompileError: they are too large for one message.
    """
    nodes = graph.nodes[piece.first_node : piece.end_node]
    constants = graph.constants_of(nodes)
    n_bytes = sum(_tensor_bytes(graph, name) for name in constants)
    if n_bytes > _MAX_BYTES:
        raise CompileError(
            f"{piece.end_node - piece.first_node} nodes from {label(nodes[0])!r} on cannot be streamed "
            f"and have {n_bytes} bytes of weights; an ONNX message holds 2 GiB"
        )
    tensors = [graph.tensor(name) for name in constants]
    model = named_model(graph, "", nodes, (piece.inputs, piece.outputs), tensors)
    return bytes(model.SerializeToString(deterministic=True))


def resident_record(graph: Graph, piece: CutPiece) -> ResidentPiece | None:
    """Return what ``inspect`` shows of a resident piece, None of another."""
    if piece.region is None:
        return None
    nodes = graph.nodes[piece.first_node : piece.end_node]
    return ResidentPiece(
        nodes=tuple(label(node) for node in nodes),
        operators=tuple(node.op_type for node in nodes),
        weight_bytes=sum(_tensor_bytes(graph, name) for name in graph.constants_of(nodes)),
        reasons=piece.region.reasons,
    )


def _tensor_bytes(graph: Graph, name: str) -> int:
    if name in graph.constants:
        return graph.constants[name].nbytes
    return graph.tensors[name].ByteSize()


def known_bytes(graph: Graph, piece: CutPiece) -> int:
    """Return the bytes of the values of known size that ONNX Runtime makes in a resident piece."""
    nodes = graph.nodes[piece.first_node : piece.end_node]
    names = {name for node in nodes for name in made(node) if name in graph.values}
    return sum(graph.values[name].n_bytes for name in names)
