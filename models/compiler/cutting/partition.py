"""Partition a graph into pieces that ONNX Runtime accepts."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from models.compiler.analysis.alias import Aliases, find_aliases, lone_writes, over_operands
from models.compiler.analysis.node_groups import Fused, name
from models.compiler.analysis.pieces import CutAlternative, CutPiece
from models.compiler.cutting.bottlenecks import FoundBottleneck, group_graphs
from models.compiler.cutting.chains import NodeChain, find_chains, place_chains
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
from models.compiler.cutting.quantised_tasks import kept_whole
from models.compiler.cutting.row_nodes import RowGraph
from models.compiler.cutting.scratch import (
    Measure,
    accepts_any_size,
    allocates_nothing,
)
from models.errors import CompileError
from models.graphs.graph import Graph
from models.packs.target import Target
from models.runtime.sessions import SessionError

_REASON_LENGTH = 300

#: Loads a piece as an engine will. Raises SessionError.
Load = Callable[[bytes], object]
#: Returns why an engine refuses a piece; None: it does not.
Fault = Callable[[bytes], str | None]


@dataclass
class CutGraph:
    """``graph`` in its final order, its ``pieces``, and ``alternatives`` to runs of them.

    ``graphs``: each distinct serialised piece with the first piece that uses it; ``graph_of[i]``: the
    position of piece i's in it, ``alternative_graphs[i]``: those of the pieces of alternative i. ``fused``,
    ``chains``: by first node. ``rows``: operators that can run on rows, ``row_graphs`` the positions of
    their graphs. ``bottlenecks``: parts that can run some channels at a time, ``group_graphs`` the
    positions of the graphs of each of their operators.
    """

    graph: Graph
    aliases: Aliases = field(default_factory=lambda: Aliases({}, frozenset()))
    pieces: list[CutPiece] = field(default_factory=list)
    graphs: dict[bytes, CutPiece] = field(default_factory=dict)
    graph_of: list[int] = field(default_factory=list)
    alternatives: list[CutAlternative] = field(default_factory=list)
    alternative_graphs: list[list[int]] = field(default_factory=list)
    fused: Fused = field(default_factory=dict)
    chains: Mapping[int, NodeChain] = field(default_factory=dict)
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


def share_memory(divided: CutGraph, on_cpu: bool) -> None:
    """Let values lie inside others; on a CPU, groups with such a value inside are none any more."""
    divided.aliases = find_aliases(divided.graph, divided.fused)
    if on_cpu:
        elided, parents = divided.aliases.elided, divided.aliases.parents
        divided.fused = kept_whole(divided.fused, elided, parents, divided.graph)


def _grouped(divided: CutGraph) -> set[int]:
    """Return the nodes of all groups."""
    return {index for group in divided.fused.values() for index in range(group.first, group.end)}


def chain(divided: CutGraph) -> None:
    """Find chains; what is in between lies in the memory of a slice."""
    divided.chains = find_chains(divided.graph, divided.aliases, _grouped(divided))
    divided.graph, divided.aliases = place_chains(divided.graph, divided.aliases, divided.chains)


def write_over(divided: CutGraph) -> None:
    """Let operators on elements outside of chains and groups write over what they read."""
    sliced = {index for item in divided.chains.values() for index in range(item.first, item.end)}
    sliced |= _grouped(divided)
    lone = (index for index in range(len(divided.graph.nodes)) if index not in sliced)
    divided.aliases = over_operands(
        divided.graph, divided.aliases, lone_writes(divided.graph, lone)
    )


def cut_pieces(divided: CutGraph, target: Target, chunk_bytes: int, measure: Measure) -> None:
    """Make pieces.

    Nodes for which ``measure`` has no figure run on the CPU, and share no piece with others.
    """
    graph, aliases, fused = divided.graph, divided.aliases, divided.fused
    on_cpu = target.capability is None
    kept = {*aliases.parents, *(parent for parent, _ in aliases.parents.values())}

    def region_piece(index: int) -> CutPiece | None:
        region = graph.region(index)
        return None if region is None else resident_piece(graph, region, kept)

    def on_device(piece: CutPiece) -> bool:
        return measure(serialise(graph, piece, aliases.elided, sized=True), False) is not None

    around = {edge for item in divided.bottlenecks for edge in (item.first_node, item.end_node)}
    divided.pieces, divided.aliases = cut(
        graph,
        aliases,
        target,
        chunk_bytes,
        region_piece=region_piece,
        chains=divided.chains,
        fused=fused,
        alike=lambda one, other: on_cpu or on_device(one) == on_device(other),
        starts=around | quantised_edges(graph, fused),
    )
    aliases = divided.aliases
    serialised = [
        serialise(
            graph, piece, aliases.elided, sized=not on_cpu or not accepts_any_size(graph, piece)
        )
        if piece.region is None
        else serialise_resident(graph, piece)
        for piece in divided.pieces
    ]
    divided.graph_of = divided.numbers(serialised, divided.pieces)


def faults(load: Load) -> Fault:
    """Return what says why ``load`` refuses a piece; it asks once of each."""

    @functools.cache
    def fault(data: bytes) -> str | None:
        try:
            load(data)
        except SessionError as exc:
            return " ".join(str(exc).split())
        return None

    return fault


def refusals(divided: CutGraph, source: Path, fault: Fault) -> dict[str, str]:
    """Return why nodes have to be in resident pieces, by what each makes first; none: all pieces load.

    Raises:
        CompileError: ONNX Runtime refuses a resident piece of ``source``.
    """
    return {
        key: reason
        for data, piece in divided.graphs.items()
        for key, reason in _refused(divided, data, piece, source, fault)
    }


def add_alternatives(divided: CutGraph, target: Target, fault: Fault) -> None:
    """Add the alternatives without a ``fault`` that give the same bits.

    Kernels for GPUs (pipeline/devices/cuda/kernels) add up each output channel by itself: there all do.
    """
    certain = target.capability is not None
    equality = Equality(divided.graph)
    finest = list(divided.graphs)
    for alternative in alternatives(divided.graph, divided.pieces, target):
        serialised = [
            serialise(divided.graph, piece, divided.aliases.elided, sized=certain)
            for piece in alternative.pieces
        ]
        if any(fault(data) is not None for data in serialised):
            continue
        run = range(alternative.first, alternative.end)
        if certain or equality.holds(
            [(divided.pieces[number], finest[divided.graph_of[number]]) for number in run],
            list(zip(alternative.pieces, serialised, strict=True)),
        ):
            numbers = divided.numbers(serialised, alternative.pieces)
            divided.alternatives.append(alternative)
            divided.alternative_graphs.append(numbers)


def load_rows(divided: CutGraph, target: Target, fault: Fault, measure: Measure) -> None:
    """Add the operators on rows without a ``fault`` whose kernels allocate nothing but what they unroll."""
    shapes, on_cpu = divided.rows.shapes, target.capability is None
    described = [
        (row, serialise_rows(divided.graph, row) if row.nodes else None)
        for row in divided.rows.nodes
    ]
    able = {
        index
        for row, data in described
        if data is None
        or (
            fault(data) is None
            and (
                allocates_nothing(divided.graph, row.nodes)
                if on_cpu
                else measure(serialise_all_rows(divided.graph, row, shapes), True) == 0
            )
        )
        for index in range(row.index, row.index + max(len(row.nodes), 1))
    }
    # A piece is replaced by all of its nodes or stays as it is.
    apart = {
        index
        for piece in divided.pieces
        if not able.issuperset(nodes := _computed(divided, piece))
        for index in nodes
    }
    described = [item for item in described if item[0].index in able - apart]
    divided.rows.nodes[:] = [row for row, _ in described]
    for row, data in described:
        piece = divided.whole(row.index, row.index + max(len(row.nodes), 1) - 1)
        divided.row_graphs.append(None if data is None else divided.numbers([data], [piece])[0])


def load_bottlenecks(divided: CutGraph, fault: Fault) -> None:
    """Keep the bottlenecks that are whole pieces and whose graphs have no ``fault``; add these graphs."""
    kept = []
    for bottleneck in divided.bottlenecks:
        if not divided.is_whole(range(bottleneck.first_node, bottleneck.end_node)):
            continue
        graphs = list(group_graphs(divided.graph, bottleneck, divided.aliases.elided))
        inner = divided.graph.nodes[bottleneck.first_node : bottleneck.end_node]
        if not allocates_nothing(divided.graph, inner) or any(
            fault(data) is not None for each in graphs for data in each
        ):
            continue
        kept.append(bottleneck)
        numbers = []
        for item, each in zip(bottleneck.operators, graphs, strict=True):
            piece = divided.whole(item.nodes[0], item.nodes[-1])
            numbers.append(divided.numbers(each, [piece] * len(each)))
        divided.group_graphs.append(numbers)
    divided.bottlenecks[:] = kept


def _computed(divided: CutGraph, piece: CutPiece) -> set[int]:
    return set(range(piece.first_node, piece.end_node)) - divided.aliases.elided


def _refused(
    divided: CutGraph, data: bytes, piece: CutPiece, source: Path, fault: Fault
) -> list[tuple[str, str]]:
    """Return first output and reason of the nodes of a piece that an engine refuses."""
    error = fault(data)
    nodes = divided.graph.nodes[piece.first_node : piece.end_node]
    if error is None:
        return []
    if piece.region is not None:
        raise CompileError(f"{source}: {name(nodes[0])}: {error}")
    faults = []
    for index in range(piece.first_node, piece.end_node):
        if index not in divided.aliases.elided:
            alone = serialise(divided.graph, divided.whole(index, index), divided.aliases.elided)
            faults.append((divided.graph.nodes[index].made[0], fault(alone)))
    guilty = [(key, reason) for key, reason in faults if reason is not None]
    reason = "ONNX Runtime takes its weights only as constants"
    return [
        (key, f"{reason}: {detail or error}"[:_REASON_LENGTH]) for key, detail in guilty or faults
    ]
