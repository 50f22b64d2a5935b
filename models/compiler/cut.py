"""Cut a graph into pieces: one kernel launch each, with weights that are streamed as one span.

A layer above the chunk limit is split along its output channels (a weight of 18 MB needs 18 MB of ring
otherwise); runs of tiny nodes become one piece (a launch costs 20-40 us of Python each).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import onnx

from models.compiler.alias import SUM_INPUT, Aliases
from models.compiler.graph import NCHWC_DOMAIN, Graph, Region
from models.manifest import SPAN_ALIGNMENT
from models.target import Target

# MLAS computes up to this many channel blocks at once: chunks of fewer are slower.
BLOCKS_AT_ONCE = 4

MERGED_WEIGHT_BYTES = 64 << 10
MERGED_INNER_BYTES = 128 << 10

_MIN_CHUNK_BYTES = 64 << 10
_MAX_CHUNK_BYTES = 4 << 20
_CHUNKS_A_MODEL = 16


@dataclass(frozen=True)
class Slice:
    """Bytes [offset, offset + size of shape) of the value or constant ``name``."""

    name: str
    shape: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class CutPiece:
    """Nodes [first_node, end_node) of the graph, or one chunk of a single node.

    ``inputs`` and ``outputs`` are keyed by the names that the nodes use. ``region`` makes it a resident
    piece, whose weights are inside it (models/compiler/resident.py).
    """

    first_node: int
    end_node: int
    inputs: dict[str, Slice]
    outputs: dict[str, Slice]
    weights: tuple[Slice, ...]
    shared_weights: tuple[Slice, ...] = ()
    region: Region | None = None


def default_chunk_bytes(weight_bytes: int) -> int:
    """Return the chunk limit for a network: a sixteenth of it, from 64 KiB to 4 MiB."""
    return min(max(weight_bytes // _CHUNKS_A_MODEL, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)


def cut(
    graph: Graph,
    aliases: Aliases,
    target: Target,
    chunk_bytes: int,
    region_piece: Callable[[int], CutPiece | None] = lambda index: None,
) -> list[CutPiece]:
    """Return the pieces of ``graph`` in execution order, each node in one piece or its chunks.

    ``region_piece`` makes the piece of the region that a node is in, if any.
    """
    cutter = _Cutter(graph, aliases)
    pieces: list[CutPiece] = []
    pending: CutPiece | None = None
    for index, node in enumerate(graph.nodes):
        if index in aliases.elided or (pieces and index < pieces[-1].end_node):
            continue
        resident = region_piece(index)
        if resident is not None:
            pieces.extend([resident] if pending is None else [pending, resident])
            pending = None
            continue
        rows = _rows_a_chunk(graph, node, target, chunk_bytes)
        if rows is None:
            merged = cutter.merge(pending, index)
            if merged is None and pending is not None:
                pieces.append(pending)
            pending = merged or cutter.whole(index, index + 1)
            continue
        if pending is not None:
            pieces.append(pending)
        pending = None
        pieces.extend(_chunks(graph, index, rows))
    return [*pieces, pending] if pending is not None else pieces


def whole(graph: Graph, aliases: Aliases, index: int) -> CutPiece:
    """Return node ``index`` as a piece of its own."""
    return _Cutter(graph, aliases).whole(index, index + 1)


class _Cutter:
    """Makes pieces of whole nodes."""

    def __init__(self, graph: Graph, aliases: Aliases) -> None:
        self._graph = graph
        self._aliases = aliases
        self._elided = aliases.elided
        self._readers = graph.readers()
        children = {parent for parent, _ in aliases.parents.values()}
        self._pinned = set(aliases.parents) | children | set(graph.outputs)

    def whole(self, first: int, end: int) -> CutPiece:
        """Return the piece of the nodes [first, end), those without a kernel left out."""
        graph = self._graph
        nodes = [i for i in range(first, end) if i not in self._elided]
        read = dict.fromkeys(name for i in nodes for name in graph.nodes[i].input if name)
        made = dict.fromkeys(name for i in nodes for name in graph.nodes[i].output if name)
        inner = {name for name in made if self._is_inner(name, set(nodes))}
        weights = [name for name in read if graph.is_weight(name)]
        inputs = [name for name in read if name in graph.values and name not in made]
        return CutPiece(
            first,
            end,
            {name: Slice(name, graph.array(name).shape) for name in [*inputs, *weights]},
            {name: Slice(name, graph.values[name].shape) for name in made if name not in inner},
            tuple(Slice(name, graph.constants[name].shape) for name in weights),
        )

    def merge(self, piece: CutPiece | None, index: int) -> CutPiece | None:
        """Return ``piece`` with node ``index`` added, or None where it would not be tiny or safe."""
        if piece is None or self._conflicts(piece, index):
            return None
        merged = self.whole(piece.first_node, index + 1)
        weight_bytes = sum(self._graph.constants[part.name].nbytes for part in merged.weights)
        if weight_bytes > MERGED_WEIGHT_BYTES or inner_bytes(self._graph, merged) > (
            MERGED_INNER_BYTES
        ):
            return None
        return merged

    def _conflicts(self, piece: CutPiece, index: int) -> bool:
        """Return whether node ``index`` meets memory of ``piece`` under another name.

        Inside a piece ONNX Runtime orders nodes by the names they share; aliases it cannot see.
        """
        node = self._graph.nodes[index]
        root = self._aliases.root
        written = {root(name) for name in piece.outputs}
        touched = written | {root(name) for name in piece.inputs}
        reads = {root(name) for name in node.input if name and name not in piece.outputs}
        writes = {root(name) for name in node.output if name}
        return bool(reads & written or writes & touched)

    def _is_inner(self, name: str, nodes: set[int]) -> bool:
        return name not in self._pinned and nodes.issuperset(self._readers.get(name, ()))


def inner_bytes(graph: Graph, piece: CutPiece) -> int:
    """Return the bytes of values that exist only inside ``piece``: ONNX Runtime allocates them."""
    made = {
        name
        for node in graph.nodes[piece.first_node : piece.end_node]
        for name in node.output
        if name and name not in piece.outputs
    }
    read = {name for node in graph.nodes[piece.first_node : piece.end_node] for name in node.input}
    return sum(graph.values[name].n_bytes for name in made & read)


def _rows_a_chunk(
    graph: Graph, node: onnx.NodeProto, target: Target, chunk_bytes: int
) -> int | None:
    """Return how many output channels a chunk of ``node`` has, or None where it stays whole."""
    blocked = node.domain == NCHWC_DOMAIN
    # Where the block is not known (models/target.py) a cut could fall inside one.
    if not _is_splittable(graph, node) or (blocked and target.block == 1):
        return None
    if graph.weight_bytes(node) <= chunk_bytes:
        return None
    weight = graph.constants[node.input[1]]
    rows = weight.shape[0]
    row_bytes = weight.nbytes // rows
    block = target.block if blocked else 1
    # Cuts fall between channel blocks and on the file's alignment.
    step = math.lcm(block, SPAN_ALIGNMENT // math.gcd(SPAN_ALIGNMENT, row_bytes))
    fast_step = math.lcm(step, BLOCKS_AT_ONCE * block)
    fitting = chunk_bytes // row_bytes
    unit = fast_step if fast_step <= fitting else step
    # At least two: without its bias the weight alone may fit.
    chunks = max(-(-rows // max(fitting // unit * unit, unit)), 2)
    even = -(-rows // chunks // unit) * unit
    return even if even < rows else None


def _is_splittable(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether output channels of ``node`` are computed apart and lie apart in memory."""
    if node.op_type not in ("Conv", "FusedConv", "Gemm", "FusedGemm"):
        return False
    values = {item.name: item for item in node.attribute}
    result = graph.values[node.output[0]].shape
    vectors = [name for name in node.input[2:SUM_INPUT] if name]
    if (
        len(node.input) < 2
        or result[0] != 1
        or len(set(node.input)) != len(node.input)
        or not all(graph.is_weight(name) for name in (node.input[1], *vectors))
    ):
        return False
    if node.op_type in ("Conv", "FusedConv"):
        grouped = "group" in values and values["group"].i != 1
        return not grouped and not (node.op_type == "FusedConv" and len(node.input) > SUM_INPUT)
    bias = graph.array(vectors[0]).shape if vectors else ()
    by_row = "transB" in values and values["transB"].i == 1
    swapped = "transA" in values and values["transA"].i == 1
    return by_row and not swapped and (not bias or bias[-1] == result[1])


def _chunks(graph: Graph, index: int, rows: int) -> Iterator[CutPiece]:
    """Yield the chunks of node ``index``: ``rows`` output channels each, the last one the rest."""
    node = graph.nodes[index]
    weight = graph.constants[node.input[1]]
    for first in range(0, weight.shape[0], rows):
        count = min(rows, weight.shape[0] - first)
        x, matrix, *rest = (
            _part(graph, name, position, first, count)
            for position, name in enumerate(node.input)
            if name
        )
        result = _part(graph, node.output[0], SUM_INPUT, first, count)
        vectors = tuple(part for part in rest if graph.is_weight(part.name))
        yield CutPiece(
            index,
            index + 1,
            {part.name: part for part in (x, matrix, *rest)},
            {node.output[0]: result},
            (matrix,),
            vectors,
        )


def _part(graph: Graph, name: str, position: int, first: int, count: int) -> Slice:
    """Return what a chunk sees of an input (position 0 whole) or, as SUM_INPUT, of the output."""
    array = graph.array(name)
    whole = Slice(name, array.shape)
    if position == 0:
        return whole
    axis = 0 if position == 1 or len(array.shape) == 1 else 1
    channel_bytes = array.n_bytes // array.shape[axis]
    shape = (*array.shape[:axis], count, *array.shape[axis + 1 :])
    return replace(whole, shape=shape, offset=first * channel_bytes)
