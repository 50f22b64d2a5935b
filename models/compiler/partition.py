"""Partition a graph into pieces that ONNX Runtime accepts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from models.compiler.alias import Aliases, find_aliases
from models.compiler.cut import cut, whole
from models.compiler.graph import Graph
from models.compiler.pieces import serialise
from models.compiler.regions import name, with_regions
from models.compiler.resident import resident_piece, serialise_resident
from models.compiler.slices import CutPiece
from models.errors import CompileError
from models.onnx_nodes import made
from models.sessions import SessionError, open_piece
from models.target import Target

_REASON_LENGTH = 300

#: Loads a piece as an engine will. Raises SessionError.
Load = Callable[[bytes], object]


@dataclass(frozen=True)
class Partition:
    """``graph`` in its final order and its ``pieces``.

    ``graphs``: each distinct serialised piece with the first piece that uses it; ``graph_of[i]``: the
    position of piece i's in it.
    """

    graph: Graph
    aliases: Aliases
    pieces: list[CutPiece]
    graphs: dict[bytes, int]
    graph_of: list[int]


def partition(
    graph: Graph, target: Target, chunk_bytes: int, source: Path, load: Load = open_piece
) -> Partition:
    """Cut ``graph``; a node whose piece ``load`` refuses becomes part of a resident piece.

    Raises:
        CompileError: ONNX Runtime refuses a resident piece.
    """
    refused: dict[str, str] = {}
    while True:
        parts = _cut(with_regions(graph, refused), target, chunk_bytes)
        more = {
            key: reason
            for data, position in parts.graphs.items()
            for key, reason in _refused(parts, data, parts.pieces[position], source, load)
        }
        if not more:
            return parts
        refused |= more


def _cut(graph: Graph, target: Target, chunk_bytes: int) -> Partition:
    aliases = find_aliases(graph)
    kept = {*aliases.parents, *(parent for parent, _ in aliases.parents.values())}

    def region_piece(index: int) -> CutPiece | None:
        region = graph.region(index)
        return None if region is None else resident_piece(graph, region, kept)

    pieces = cut(graph, aliases, target, chunk_bytes, region_piece)
    graphs: dict[bytes, int] = {}
    numbers: dict[bytes, int] = {}
    graph_of = []
    for position, piece in enumerate(pieces):
        if piece.region is None:
            data = serialise(graph, piece, aliases.elided)
        else:
            data = serialise_resident(graph, piece)
        graphs.setdefault(data, position)
        graph_of.append(numbers.setdefault(data, len(numbers)))
    return Partition(graph, aliases, pieces, graphs, graph_of)


def _refused(
    parts: Partition, data: bytes, piece: CutPiece, source: Path, load: Load
) -> list[tuple[str, str]]:
    """Load a piece as an engine will; return first output and reason of the nodes that are refused."""
    error = _error(data, load)
    nodes = parts.graph.nodes[piece.first_node : piece.end_node]
    if error is None:
        return []
    if piece.region is not None:
        raise CompileError(f"{source}: {name(nodes[0])}: {error}")
    found = []
    for index in range(piece.first_node, piece.end_node):
        if index not in parts.aliases.elided:
            alone = serialise(
                parts.graph, whole(parts.graph, parts.aliases, index), parts.aliases.elided
            )
            found.append((made(parts.graph.nodes[index])[0], _error(alone, load)))
    guilty = [(key, reason) for key, reason in found if reason is not None]
    reason = "ONNX Runtime takes its weights only as constants"
    return [
        (key, f"{reason}: {detail or error}"[:_REASON_LENGTH]) for key, detail in guilty or found
    ]


def _error(data: bytes, load: Load) -> str | None:
    try:
        load(data)
    except SessionError as exc:
        return " ".join(str(exc).split())
    return None
