"""Partition a graph into pieces that ONNX Runtime accepts."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from models.compiler.analysis.alias import Aliases, find_aliases, lone_writes, over_operands
from models.compiler.analysis.graph import CutAlternative, CutPiece, Graph
from models.compiler.analysis.node_groups import Fused, name, with_fused, with_regions
from models.compiler.cutting.bottlenecks import FoundBottleneck, find_bottlenecks, group_graphs
from models.compiler.cutting.chains import find_chains, place_chains
from models.compiler.cutting.chunks import Equality, alternatives
from models.compiler.cutting.cut import Cutter, cut
from models.compiler.cutting.piece_models import (
    resident_piece,
    serialise,
    serialise_all_rows,
    serialise_resident,
    serialise_rows,
)
from models.compiler.cutting.quantised_tasks import edges as quantised_edges
from models.compiler.cutting.quantised_tasks import kept_whole, quantised_groups
from models.compiler.cutting.row_nodes import RowGraph, find_rows
from models.compiler.cutting.scratch import (
    Measure,
    accepts_any_size,
    allocates_nothing,
    runs_on_cpu,
)
from models.errors import CompileError
from models.graphs.nodes import made
from models.packs.target import Target
from models.runtime.sessions import SessionError, open_piece

_REASON_LENGTH = 300

#: Loads a piece as an engine will. Raises SessionError.
Load = Callable[[bytes], object]
#: Returns why an engine refuses a piece; None: it does not.
Fault = Callable[[bytes], str | None]


@dataclass
class CutGraph:
    """``graph`` in its final order, its ``pieces``, and ``alternatives`` to runs of them.

    ``graphs``: each distinct serialised piece with the first piece that uses it; ``graph_of[i]``: the
    position of piece i's in it, ``alternative_graphs[i]``: those of the pieces of alternative i. ``fused``
    by first node. ``rows``: operators that can run on rows, ``row_graphs`` the positions of their graphs.
    ``bottlenecks``: parts that can run some channels at a time, ``group_graphs`` the positions of the
    graphs of each of their operators.
    """

    graph: Graph
    aliases: Aliases
    pieces: list[CutPiece]
    graphs: dict[bytes, CutPiece]
    graph_of: list[int]
    alternatives: list[CutAlternative] = field(default_factory=list)
    alternative_graphs: list[list[int]] = field(default_factory=list)
    fused: Fused = field(default_factory=dict)
    rows: RowGraph = field(default_factory=RowGraph)
    row_graphs: list[int | None] = field(default_factory=list)
    bottlenecks: list[FoundBottleneck] = field(default_factory=list)
    group_graphs: list[list[list[int]]] = field(default_factory=list)

    def numbers(self, serialised: Sequence[bytes], pieces: Sequence[CutPiece]) -> list[int]:
        """Return the positions of ``serialised``, which ``pieces`` are, in ``graphs``; add new ones."""
        for data, piece in zip(serialised, pieces, strict=True):
            self.graphs.setdefault(data, piece)
            self._positions.setdefault(data, len(self._positions))
        return [self._positions[data] for data in serialised]

    def whole(self, first: int, last: int) -> CutPiece:
        """Return the nodes from ``first`` to ``last`` as a piece of its own."""
        return self._cutter.whole(first, last + 1)

    def pieces_of(self, node: int) -> range:
        """Return the numbers of the pieces that have ``node``; none where it has no kernel."""
        return range(0) if node in self.aliases.elided else self._pieces_of[node]

    def is_whole(self, nodes: range) -> bool:
        """Return whether some pieces have ``nodes`` and no others."""
        first, last = self._pieces_of.get(nodes.start), self._pieces_of.get(nodes.stop - 1)
        if first is None or last is None:
            return False
        return (
            self.pieces[first.start].first_node == nodes.start
            and self.pieces[last.stop - 1].end_node == nodes.stop
        )

    @functools.cached_property
    def _positions(self) -> dict[bytes, int]:
        return {data: position for position, data in enumerate(self.graphs)}

    @functools.cached_property
    def _cutter(self) -> Cutter:
        return Cutter(self.graph, self.aliases)

    @functools.cached_property
    def _pieces_of(self) -> dict[int, range]:
        pieces: dict[int, range] = {}
        for number, piece in enumerate(self.pieces):
            for node in range(piece.first_node, piece.end_node):
                pieces[node] = range(pieces.get(node, range(number, number)).start, number + 1)
        return pieces

    def layers(self) -> dict[int, range]:
        """Return the nodes of each layer by its first: one, or several that are fused."""
        ends = {index: self.fused[index].end for index in self.fused}
        return {
            index: range(index, ends.get(index, index + 1))
            for index in range(len(self.graph.nodes))
        }


def partition(
    graph: Graph,
    target: Target,
    chunk_bytes: int,
    source: Path,
    load: Load = open_piece,
    measure: Measure = runs_on_cpu,
) -> CutGraph:
    """Cut ``graph``; a node whose piece ``load`` refuses becomes part of a resident piece.

    Nodes for which ``measure`` has no figure run on the CPU, and share no piece with others.

    An alternative with a piece that ``load`` refuses, or with other results, is left out.

    Raises:
        CompileError: ONNX Runtime refuses a resident piece.
    """
    refused: dict[str, str] = {}
    fault = functools.cache(functools.partial(_error, load))
    while True:
        parts = _cut(with_regions(graph, refused), target, chunk_bytes, measure)
        more = {
            key: reason
            for data, piece in parts.graphs.items()
            for key, reason in _refused(parts, data, piece, source, fault)
        }
        if not more:
            _add_alternatives(parts, target, fault)
            _add_rows(parts, target, fault, measure)
            _add_bottlenecks(parts, fault)
            return parts
        refused |= more


def _cut(graph: Graph, target: Target, chunk_bytes: int, measure: Measure) -> CutGraph:
    on_cpu = target.capability is None
    graph, fused = (graph, quantised_groups(graph)) if on_cpu else with_fused(graph)
    aliases = find_aliases(graph, fused)
    if on_cpu:
        fused = kept_whole(fused, aliases.elided, aliases.parents, graph)
    # Slices are as small as a CPU's cache; a GPU would only get more launches.
    grouped = {index for group in fused.values() for index in range(group.first, group.end)}
    chains = find_chains(graph, aliases, grouped) if on_cpu else {}
    graph, aliases = place_chains(graph, aliases, chains)
    if on_cpu:
        sliced = {index for chain in chains.values() for index in range(chain.first, chain.end)}
        sliced |= grouped
        lone = (index for index in range(len(graph.nodes)) if index not in sliced)
        aliases = over_operands(graph, aliases, lone_writes(graph, lone))
    kept = {*aliases.parents, *(parent for parent, _ in aliases.parents.values())}

    def region_piece(index: int) -> CutPiece | None:
        region = graph.region(index)
        return None if region is None else resident_piece(graph, region, kept)

    def on_device(piece: CutPiece) -> bool:
        return measure(serialise(graph, piece, aliases.elided, sized=True), False) is not None

    rows = find_rows(graph, target, {} if on_cpu else fused)
    bottlenecks = list(find_bottlenecks(graph, rows, aliases.elided, target.block))
    pieces = cut(
        graph,
        aliases,
        target,
        chunk_bytes,
        region_piece=region_piece,
        chains=chains,
        fused=fused,
        alike=lambda one, other: on_cpu or on_device(one) == on_device(other),
        starts={edge for item in bottlenecks for edge in (item.first_node, item.end_node)}
        | quantised_edges(graph, fused),
    )
    serialised = [
        serialise(
            graph, piece, aliases.elided, sized=not on_cpu or not accepts_any_size(graph, piece)
        )
        if piece.region is None
        else serialise_resident(graph, piece)
        for piece in pieces
    ]
    parts = CutGraph(
        graph, aliases, pieces, {}, [], fused=fused, rows=rows, bottlenecks=bottlenecks
    )
    parts.graph_of.extend(parts.numbers(serialised, pieces))
    return parts


def _add_alternatives(parts: CutGraph, target: Target, fault: Fault) -> None:
    """Add the alternatives without a ``fault`` that give the same bits.

    Kernels for GPUs (pipeline/devices/cuda/kernels) add up each output channel by itself: there all do.
    """
    certain = target.capability is not None
    equality = Equality(parts.graph)
    finest = list(parts.graphs)
    for alternative in alternatives(parts.graph, parts.pieces):
        serialised = [
            serialise(parts.graph, piece, parts.aliases.elided, sized=certain)
            for piece in alternative.pieces
        ]
        if any(fault(data) is not None for data in serialised):
            continue
        run = range(alternative.first, alternative.end)
        if certain or equality.holds(
            [(parts.pieces[number], finest[parts.graph_of[number]]) for number in run],
            list(zip(alternative.pieces, serialised, strict=True)),
        ):
            numbers = parts.numbers(serialised, alternative.pieces)
            parts.alternatives.append(alternative)
            parts.alternative_graphs.append(numbers)


def _add_rows(parts: CutGraph, target: Target, fault: Fault, measure: Measure) -> None:
    """Add the operators on rows without a ``fault`` whose kernels allocate nothing but what they unroll."""
    shapes, on_cpu = parts.rows.shapes, target.capability is None
    described = [
        (row, serialise_rows(parts.graph, row) if row.nodes else None) for row in parts.rows.nodes
    ]
    able = {
        index
        for row, data in described
        if data is None
        or (
            fault(data) is None
            and (
                allocates_nothing(parts.graph, row.nodes)
                if on_cpu
                else measure(serialise_all_rows(parts.graph, row, shapes), True) == 0
            )
        )
        for index in range(row.index, row.index + max(len(row.nodes), 1))
    }
    # A piece is replaced by all of its nodes or stays as it is.
    apart = {
        index
        for piece in parts.pieces
        if not able.issuperset(nodes := _computed(parts, piece))
        for index in nodes
    }
    described = [item for item in described if item[0].index in able - apart]
    parts.rows.nodes[:] = [row for row, _ in described]
    for row, data in described:
        piece = parts.whole(row.index, row.index + max(len(row.nodes), 1) - 1)
        parts.row_graphs.append(None if data is None else parts.numbers([data], [piece])[0])


def _add_bottlenecks(parts: CutGraph, fault: Fault) -> None:
    """Keep the bottlenecks that are whole pieces and whose graphs have no ``fault``; add these graphs."""
    kept = []
    for bottleneck in parts.bottlenecks:
        if not parts.is_whole(range(bottleneck.first_node, bottleneck.end_node)):
            continue
        graphs = list(group_graphs(parts.graph, bottleneck, parts.aliases.elided))
        inner = parts.graph.nodes[bottleneck.first_node : bottleneck.end_node]
        if not allocates_nothing(parts.graph, inner) or any(
            fault(data) is not None for each in graphs for data in each
        ):
            continue
        kept.append(bottleneck)
        numbers = []
        for item, each in zip(bottleneck.operators, graphs, strict=True):
            piece = parts.whole(item.nodes[0], item.nodes[-1])
            numbers.append(parts.numbers(each, [piece] * len(each)))
        parts.group_graphs.append(numbers)
    parts.bottlenecks[:] = kept


def _computed(parts: CutGraph, piece: CutPiece) -> set[int]:
    return set(range(piece.first_node, piece.end_node)) - parts.aliases.elided


def _refused(
    parts: CutGraph, data: bytes, piece: CutPiece, source: Path, fault: Fault
) -> list[tuple[str, str]]:
    """Return first output and reason of the nodes of a piece that an engine refuses."""
    error = fault(data)
    nodes = parts.graph.nodes[piece.first_node : piece.end_node]
    if error is None:
        return []
    if piece.region is not None:
        raise CompileError(f"{source}: {name(nodes[0])}: {error}")
    faults = []
    for index in range(piece.first_node, piece.end_node):
        if index not in parts.aliases.elided:
            alone = serialise(parts.graph, parts.whole(index, index), parts.aliases.elided)
            faults.append((made(parts.graph.nodes[index])[0], fault(alone)))
    guilty = [(key, reason) for key, reason in faults if reason is not None]
    reason = "ONNX Runtime takes its weights only as constants"
    return [
        (key, f"{reason}: {detail or error}"[:_REASON_LENGTH]) for key, detail in guilty or faults
    ]


def _error(load: Load, data: bytes) -> str | None:
    try:
        load(data)
    except SessionError as exc:
        return " ".join(str(exc).split())
    return None
