"""Cut a graph into pieces: one kernel launch each, with weights that are streamed as one span.

A large layer becomes several (models/compiler/cutting/chunks.py); runs of tiny nodes become one piece
(a launch costs 20-40 us of Python each, a session 40 KB).
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from models.compiler.analysis.alias import Aliases
from models.compiler.analysis.node_groups import Fused
from models.compiler.analysis.pieces import CutPiece, Slice
from models.compiler.cutting.chains import NodeChain, slices
from models.compiler.cutting.chunks import chunks, element_chunks, rows_a_chunk
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.packs.records.pieces import ValueBytes
from models.packs.target import Target

MERGED_WEIGHT_BYTES = 64 << 10
MERGED_INNER_BYTES = 128 << 10
_MAP_DIMENSIONS = 4


def cut(
    graph: Graph,
    aliases: Aliases,
    target: Target,
    chunk_bytes: int,
    *,
    region_piece: Callable[[int], CutPiece | None] = lambda index: None,
    chains: Mapping[int, NodeChain] = MappingProxyType({}),
    fused: Fused = MappingProxyType({}),
    alike: Callable[[CutPiece, CutPiece], bool] = lambda one, other: True,
    starts: Collection[int] = (),
) -> tuple[list[CutPiece], Aliases]:
    """Return the pieces of ``graph`` in execution order, each node in one piece, its chunks or slices.

    And ``aliases`` without tensors that one piece alone reshapes and reads.

    ``region_piece`` makes the piece of the region that a node is in, if any. ``chains`` and
    ``fused``: by first node. ``alike``: whether two pieces run in the same place, or may not be merged.
    ``starts``: nodes that are the first of their piece.
    """
    cutter, on_gpu = Cutter(graph, aliases), target.capability is not None

    def apart(layer: range) -> list[CutPiece]:
        """Return the pieces of ``layer`` and on that no other node joins; none: it may be merged."""
        resident = region_piece(layer.start)
        if resident is not None:
            return [resident]
        if layer.start in chains:
            return list(slices(graph, chains[layer.start]))
        if traits_of(graph.nodes[layer.start].operator).access == "attention":
            # A kernel of a device takes it whole, and by itself; what it allocates is large.
            return [cutter.whole(layer.start, layer.stop)]
        rows = rows_a_chunk(graph, layer, target, chunk_bytes)
        if rows is None:
            return [] if on_gpu else list(element_chunks(graph, layer, chunk_bytes))
        return list(chunks(graph, layer, rows))

    pieces: list[CutPiece] = []
    pending: list[CutPiece] = []  # at most one, which the next nodes may still join
    for index in range(len(graph.nodes)):
        done = [*pieces[-1:], *pending]
        if index in aliases.elided or (done and index < done[-1].end_node):
            continue
        layer = range(index, fused[index].end if index in fused else index + 1)
        alone = apart(layer)
        single = [] if alone else [cutter.whole(layer.start, layer.stop)]
        may_join = single and pending and index not in starts
        merged = None
        if may_join and alike(pending[0], single[0]):
            inside = cutter if on_gpu else cutter.reshaping_inside(pending[0], layer)
            merged = inside.merge(pending[0], layer)
            cutter = cutter if merged is None else inside
        if merged is None:
            pieces.extend(pending)
        pieces.extend(alone)
        pending = [merged] if merged is not None else single
    return [*pieces, *pending], cutter.aliases


class Cutter:
    """Makes pieces of whole nodes."""

    def __init__(self, graph: Graph, aliases: Aliases) -> None:
        self.aliases = aliases
        self._graph = graph
        self._elided = aliases.elided
        self._readers = graph.readers
        children = {parent for parent, _ in aliases.parents.values()}
        self._pinned = set(aliases.parents) | children | set(graph.outputs)

    def whole(self, first: int, end: int) -> CutPiece:
        """Return the piece of the nodes [first, end), those without a kernel left out."""
        graph = self._graph
        nodes = [i for i in range(first, end) if i not in self._elided]
        read = dict.fromkeys(name for i in nodes for name in graph.nodes[i].inputs if name)
        outputs = dict.fromkeys(name for i in nodes for name in graph.nodes[i].outputs if name)
        inner = {name for name in outputs if self._is_inner(name, set(nodes))}
        weights = [name for name in read if graph.is_weight(name)]
        inputs = [name for name in read if name in graph.values and name not in outputs]
        parts = {name: Slice(name, graph.array(name).shape) for name in [*inputs, *weights]}
        return CutPiece(
            first,
            end,
            parts,
            {name: Slice(name, graph.values[name].shape) for name in outputs if name not in inner},
            tuple(parts[name] for name in weights if name not in graph.resident),
            tuple(parts[name] for name in weights if name in graph.resident),
        )

    def merge(self, piece: CutPiece, layer: range) -> CutPiece | None:
        """Return ``piece`` with the nodes ``layer`` added, or None where it would not be tiny or safe."""
        if self._shrinks(piece) or self._takes_image(layer) or self._conflicts(piece, layer):
            return None
        merged = self.whole(piece.first_node, layer.stop)
        weight_bytes = sum(self._graph.constants[part.name].nbytes for part in merged.weights)
        if weight_bytes > MERGED_WEIGHT_BYTES or inner_bytes(self._graph, merged) > (
            MERGED_INNER_BYTES
        ):
            return None
        return merged

    def _shrinks(self, piece: CutPiece) -> bool:
        """Return whether ``piece`` ends with less than it read: a region best ends there.

        Their end lies whole (docs/explanation/rows.md): fewer rows, or the few channels of a bottleneck.
        """
        node = self._graph.nodes[piece.end_node - 1]
        shapes = [self._graph.array(node.inputs[0]).shape, self._graph.array(node.output).shape]
        if not all(len(shape) == _MAP_DIMENSIONS and shape[2] > 1 for shape in shapes):
            return False
        return shapes[1][2] < shapes[0][2] or math.prod(shapes[1]) < math.prod(shapes[0])

    def _takes_image(self, layer: range) -> bool:
        """Return whether ``layer`` reads an image of the request: a region best begins there."""
        names = {name for index in layer for name in self._graph.nodes[index].inputs}
        shapes = (self._graph.array(name).shape for name in names.intersection(self._graph.inputs))
        return any(len(shape) == _MAP_DIMENSIONS and shape[2] > 1 for shape in shapes)

    def reshaping_inside(self, piece: CutPiece, layer: range) -> "Cutter":
        """Return what reshapes inside of ``piece`` a pixel that it gives to the nodes ``layer``, if tiny.

        A reshaped tensor is another name of the memory of a piece, which no node of it may read; what only
        the piece itself reads may as well be reshaped by a kernel, which copies nothing. Images are not: on
        rows they have other names, but no kernel.
        """
        graph, parents = self._graph, self.aliases.parents
        reads = {name for index in layer for name in graph.nodes[index].reads} & parents.keys()
        if not reads or not self._is_tiny(layer):
            return self
        uses = Counter(parent for parent, _ in parents.values())
        inside = {
            name
            for name in reads
            if graph.makers[name] in self._elided
            and (source := parents[name][0]) in piece.outputs
            and source not in parents
            and set(graph.values[source].shape[2:]) == {1}
            and (uses[source], uses[name]) == (1, 0)
            and layer.start <= min(graph.readers[name])
            and max(graph.readers[name]) < layer.stop
            and name not in graph.outputs
        }
        return Cutter(
            graph,
            Aliases(
                {name: parents[name] for name in parents if name not in inside},
                self._elided - {graph.makers[name] for name in inside},
            ),
        )

    def _conflicts(self, piece: CutPiece, layer: range) -> bool:
        """Return whether the nodes ``layer`` meet memory of ``piece`` under another name.

        Inside a piece ONNX Runtime orders nodes by the names they share; aliases it cannot see. What a node
        writes over is read before where all that read it are what the node computes with. It may if it is
        tiny: large ones best run by themselves, in slices, or on rows. What writes another range of a value
        of the piece stays apart: others do the same in other places, and share a session.
        """
        nodes = [self._graph.nodes[index] for index in layer]
        written, read = self._memory(piece.outputs), self._memory(piece.inputs)
        reads = {name for node in nodes for name in node.inputs if name} - set(piece.outputs)
        outputs = self._memory(name for node in nodes for name in node.made)
        if _meet(written, self._memory(reads)) or _meet(written, outputs):
            return True
        touched = {memory.root for memory in (*written, *read)}
        return any(
            not (self._is_tiny(layer) and self._is_read_before(output, piece.first_node, index))
            if _meet([output], read)
            else output.root in touched
            for index in layer
            for output in self._memory(self._graph.nodes[index].made)
        )

    def _is_tiny(self, layer: range) -> bool:
        """Return whether what ``layer`` makes is no more than what a piece may have inside."""
        values = self._graph.values
        names = (
            name for index in layer for name in self._graph.nodes[index].made if name in values
        )
        return sum(values[name].n_bytes for name in names) <= MERGED_INNER_BYTES

    def _memory(self, names: Iterable[str]) -> list[ValueBytes[str]]:
        """Return where the values of ``names`` lie."""
        return [
            self.aliases.memory(self._graph, name) for name in names if name in self._graph.values
        ]

    def _is_read_before(self, memory: ValueBytes[str], first: int, index: int) -> bool:
        """Return whether node ``index`` is made of all nodes from ``first`` on that read ``memory``."""
        before = range(first, index)
        nodes = self._graph.nodes
        readers = (other for other in before if _meet([memory], self._memory(nodes[other].reads)))
        return self._sources(index, first).issuperset(readers)

    def _sources(self, index: int, first: int) -> set[int]:
        """Return the nodes from ``first`` on with a kernel of whose results node ``index`` is made."""
        sources, left = set[int](), [index]
        while left:
            for name in self._graph.nodes[left.pop()].reads:
                source = self._graph.makers.get(name, -1)
                if source >= first and source not in sources | self._elided:
                    sources.add(source)
                    left.append(source)
        return sources

    def _is_inner(self, name: str, nodes: set[int]) -> bool:
        return name not in self._pinned and nodes.issuperset(self._readers.get(name, ()))


def _meet(some: Iterable[ValueBytes[str]], others: Collection[ValueBytes[str]]) -> bool:
    """Return whether one of ``some`` and one of ``others`` have a byte in common."""
    return any(one.overlaps(other) for one in some for other in others)


def inner_bytes(graph: Graph, piece: CutPiece) -> int:
    """Return the bytes of values that exist only inside ``piece``: ONNX Runtime allocates them.

    Those of a chunk are as large a fraction of the values as its output is of its own.
    """
    n_bytes = sum(graph.values[name].n_bytes for name in inner_values(graph, piece))
    if not n_bytes:
        return 0
    output = next(iter(piece.outputs.values()))
    elements = math.prod(graph.array(output.name).shape)
    return n_bytes * math.prod(output.shape) // elements if elements else n_bytes


def inner_values(graph: Graph, piece: CutPiece) -> set[str]:
    """Return the values that exist only inside ``piece``."""
    nodes = graph.nodes[piece.first_node : piece.end_node]
    made = {name for node in nodes for name in node.outputs if name and name not in piece.outputs}
    return made & {name for node in nodes for name in node.inputs}
