"""Resident pieces: a region of the graph as one ONNX model that keeps its weights and its names."""

from collections.abc import Collection

from models.compiler.analysis.graph import Graph, OpaqueRegion
from models.compiler.analysis.slices import CutPiece, Slice
from models.compiler.cutting.pieces import named_model
from models.errors import CompileError
from models.graphs.nodes import label, made, reads
from models.packs.records.pieces import ResidentPiece

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
