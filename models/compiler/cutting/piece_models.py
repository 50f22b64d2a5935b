"""Cut pieces and resident ones as the ONNX models that sessions load.

Invariant: two pieces that do the same to different weights give the same bytes, so that one session
serves both. For the CPU, whose kernels take tensors as they come, that is so whatever their sizes, with
operators of which it is known (``accepts_any_size`` in scratch.py).
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from models.compiler.analysis.pieces import CutPiece, Slice
from models.compiler.cutting.row_nodes import RowNode
from models.errors import CompileError
from models.graphs.graph import DynamicValue, Graph, OpaqueRegion, has_dtype, part_of
from models.graphs.writer import model_of, serialised, tensor_inside
from models.network.fields import UNKNOWN
from models.network.node import NamedTensor, Node
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


def inline_constants(graph: Graph, nodes: Sequence[Node], ports: Container[str]) -> list[str]:
    """Return the constants that stay inside a piece of ``nodes``, in their order there."""
    names = (name for node in nodes for name in node.inputs if name in graph.constants)
    return list(dict.fromkeys(name for name in names if name not in ports))


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
    nodes: Sequence[Node],
    inputs: Sequence[NamedTensor],
    outputs: Sequence[NamedTensor],
) -> bytes:
    """Return ``nodes``, whose constants that are no inputs stay inside, as a model without names."""
    names = {value.name: f"x{i}" for i, value in enumerate(inputs)}
    names |= {value.name: f"y{i}" for i, value in enumerate(outputs)}
    inline = inline_constants(graph, nodes, names)
    own = []
    for node in nodes:
        for name in (*node.inputs, *node.outputs):
            if name and name not in names:
                names[name] = f"t{len(names)}"
        own.append(_renamed(node, names))
    domains = {node.domain for node in nodes} | {""}
    ports = [value.named(names[value.name]) for value in (*inputs, *outputs)]
    piece = Graph(
        nodes=tuple(own),
        values={value.name: value for value in ports if not value.is_loose},
        constants={names[name]: graph.constants[name] for name in inline},
        inputs=tuple(names[value.name] for value in inputs),
        outputs=tuple(names[value.name] for value in outputs),
        opsets={name: version for name, version in graph.opsets.items() if name in domains},
        dynamic={
            value.name: DynamicValue("of any size", value) for value in ports if value.is_loose
        },
        ir_version=_IR_VERSION,
    )
    model = model_of(piece, title="", tensor=tensor_inside)
    # Written even where it is empty: packs that were compiled before have it so, and the same bytes.
    for message in model.graph.node:
        message.domain = message.domain
    return bytes(model.SerializeToString(deterministic=True))


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Return ``node`` without a name, whose values have others: equal nodes are equal bytes."""
    # Attributes come in no particular order: sorted, equal nodes are equal bytes.
    return replace(
        node,
        inputs=tuple(names[name] if name else "" for name in node.inputs),
        outputs=tuple(names[name] if name else "" for name in node.outputs),
        attributes=dict(sorted(node.attributes.items())),
        name="",
    )


# Resident pieces: a region of the graph as one ONNX model that keeps its weights and its names.

# A protobuf message cannot exceed 2 GiB.
_MAX_BYTES = (1 << 31) - (1 << 20)


def resident_piece(graph: Graph, region: OpaqueRegion, kept: Collection[str]) -> CutPiece:
    """Return the piece of ``region``; it gives those of its values that are ``kept`` or read outside."""
    nodes = graph.nodes[region.first : region.end]
    computed = dict.fromkeys(name for node in nodes for name in node.made)
    read = dict.fromkeys(name for node in nodes for name in node.reads)

    def is_wanted(name: str) -> bool:
        outside = (reader not in region for reader in graph.readers.get(name, ()))
        return name in kept or name in graph.outputs or any(outside)

    inputs = [
        name
        for name in read
        if name not in computed and (name in graph.values or name in graph.dynamic)
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
            f"{piece.end_node - piece.first_node} nodes from {nodes[0].label!r} on cannot be streamed "
            f"and have {n_bytes} bytes of weights; an ONNX message holds 2 GiB"
        )
    return serialised(part_of(graph, nodes, piece.inputs, piece.outputs))


def resident_record(graph: Graph, piece: CutPiece) -> ResidentPiece | None:
    """Return what ``inspect`` shows of a resident piece, None of another."""
    if piece.region is None:
        return None
    nodes = graph.nodes[piece.first_node : piece.end_node]
    return ResidentPiece(
        nodes=tuple(node.label for node in nodes),
        operators=tuple(node.op_type for node in nodes),
        weight_bytes=sum(_tensor_bytes(graph, name) for name in graph.constants_of(nodes)),
        reasons=piece.region.reasons,
    )


def _tensor_bytes(graph: Graph, name: str) -> int:
    constant = graph.constants[name]
    return constant.nbytes if has_dtype(constant) else tensor_inside(name, constant).ByteSize()


def known_bytes(graph: Graph, piece: CutPiece) -> int:
    """Return the bytes of the values of known size that ONNX Runtime makes in a resident piece."""
    nodes = graph.nodes[piece.first_node : piece.end_node]
    names = {name for node in nodes for name in node.made if name in graph.values}
    return sum(graph.values[name].n_bytes for name in names)
