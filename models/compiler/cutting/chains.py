"""Chains: runs of operators on elements, computed slice by slice so that what is in between stays in cache.

A Mish is six of them. Each alone reads and writes the whole tensor, 23 MB at 304 x 304 x 64; a slice of one
passes all six before the next one comes. Values between them need the memory of one slice, and most of
them can share it, since an operator on elements may write over what it reads.

Between layers of integers a chain begins with DequantizeLinear and ends with QuantizeLinear: floats, four
times as large as the bytes around them, are then only those of a slice.
"""

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

from models.compiler.analysis.alias import Aliases, InPlaceWrite, over_operands, written_over
from models.compiler.analysis.pieces import CutPiece, Slice
from models.compiler.optimising.byte_tables import is_on_elements
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.names import Op
from models.packs.records.pieces import TENSOR_ALIGNMENT

# Measured with 1 MiB of second-level cache a core, YOLOv4: 0.5 MiB 662 ms, 1 MiB 654, 2 MiB 645, 4 MiB
# 646.
_SLICE_BYTES = 2 << 20
# Below this a launch costs more than memory does.
_LEAST_BYTES = 256 << 10


@dataclass(frozen=True)
class NodeChain:
    """Nodes [first, end) on tensors of ``n_elements``; ``inner``: what they make and nothing else reads.

    ``step``: elements of a slice; the last one may have fewer.
    """

    first: int
    end: int
    n_elements: int
    step: int
    inner: frozenset[str]


def find_chains(graph: Graph, aliases: Aliases, apart: Set[int]) -> dict[int, NodeChain]:
    """Return the chains of ``graph`` by their first node; those of ``apart`` are in none."""
    finder = _Finder(graph, aliases, apart)
    chains: dict[int, NodeChain] = {}
    index = 0
    while index < len(graph.nodes):
        chain = finder.chain(index)
        if chain is not None:
            chains[index] = chain
        index = index + 1 if chain is None else chain.end
    return chains


def place_chains(
    graph: Graph, aliases: Aliases, chains: Mapping[int, NodeChain]
) -> tuple[Graph, Aliases]:
    """Return ``graph`` with values inside chains as small as a slice, and ``aliases`` that share them."""
    values = dict(graph.values)
    for chain in chains.values():
        for name in chain.inner:
            values[name] = replace(values[name], shape=(chain.step,))
    writes = (write for chain in chains.values() for write in _writes(graph, chain))
    return replace(graph, values=values), over_operands(graph, aliases, writes)


def slices(graph: Graph, chain: NodeChain) -> Iterator[CutPiece]:
    """Yield the pieces of ``chain``, one a slice."""
    nodes = graph.nodes[chain.first : chain.end]
    computed = [name for node in nodes for name in node.made]
    read = dict.fromkeys(name for node in nodes for name in node.reads)
    outside = [name for name in read if name in graph.values and name not in computed]
    weights = [Slice(name, graph.array(name).shape) for name in read if graph.is_weight(name)]
    # What the piece is known by comes first: its own part of a result.
    results = sorted(computed, key=lambda name: name in chain.inner)
    item_bytes = {name: graph.values[name].item_bytes for name in [*outside, *results]}
    for first in range(0, chain.n_elements, chain.step):
        shape = (min(chain.step, chain.n_elements - first),)
        parts = {name: Slice(name, shape, first * item_bytes[name]) for name in item_bytes}
        parts |= {name: Slice(name, shape) for name in chain.inner}
        yield CutPiece(
            chain.first,
            chain.end,
            {name: parts[name] for name in outside} | {part.name: part for part in weights},
            {name: parts[name] for name in results},
            tuple(part for part in weights if part.name not in graph.resident),
            tuple(part for part in weights if part.name in graph.resident),
        )


def _slice_elements(n_elements: int, item_bytes: Set[int]) -> int:
    """Return how many of ``n_elements`` a slice has: equal parts, aligned for each item size, or all."""
    count = -(-n_elements * max(item_bytes) // _SLICE_BYTES)
    unit = TENSOR_ALIGNMENT // min(item_bytes)
    return min(-(-n_elements // (count * unit)) * unit, n_elements)


class _Finder:
    def __init__(self, graph: Graph, aliases: Aliases, apart: Set[int]) -> None:
        self._graph = graph
        self._aliases = aliases
        self._outside = apart | aliases.elided
        self._readers = graph.readers
        parents = {parent for parent, _ in aliases.parents.values()}
        self._pinned = {*graph.outputs, *aliases.parents, *parents}

    def chain(self, first: int) -> NodeChain | None:
        """Return the longest chain from node ``first`` on; None where there is none worth it."""
        computed: set[str] = set()
        end = first
        while end < len(self._graph.nodes) and self._joins(end, first, computed):
            computed.update(self._graph.nodes[end].made)
            end += 1
        own = set(range(first, end))
        inner = {
            name for name in computed - self._pinned if own.issuperset(self._readers.get(name, ()))
        }
        if not inner or not self._apart(first, end, computed):
            return None
        values = self._graph.values
        nodes = self._graph.nodes[first:end]
        names = {name for node in nodes for name in (*node.reads, *node.made)}
        items = {values[name].item_bytes for name in names if name in values}
        n_elements = math.prod(self._shape(first))
        step = _slice_elements(n_elements, items)
        return NodeChain(first, end, n_elements, step, frozenset(inner))

    def _shape(self, index: int) -> tuple[int, ...]:
        return self._graph.values[self._graph.nodes[index].output].shape

    def _joins(self, index: int, first: int, computed: set[str]) -> bool:
        """Return whether node ``index`` works on elements and continues what began at ``first``."""
        graph, node = self._graph, self._graph.nodes[index]
        if (
            not is_on_elements(node.operator)
            or traits_of(node.operator).on_bytes
            or index in self._outside
            or graph.region(index) is not None
            or len(node.made) != 1
            or node.made[0] not in graph.values
        ):
            return False
        value = graph.values[node.made[0]]
        names = node.reads
        tensors = [name for name in names if name in graph.values]
        constants = [graph.constants[name] for name in names if name in graph.constants]
        return (
            max(graph.values[name].n_bytes for name in [*tensors, *node.made]) >= _LEAST_BYTES
            and len(tensors) + len(constants) == len(names)
            and all(constant.size == 1 and constant.ndim <= 1 for constant in constants)
            and bool(tensors)
            and all(graph.values[name].shape == value.shape for name in tensors)
            and value.shape == self._shape(first)
            and (index == first or not computed.isdisjoint(tensors))
        )

    def _apart(self, first: int, end: int, computed: set[str]) -> bool:
        """Return whether no slice writes where another reads: results lie in memory of their own."""
        root = self._aliases.root
        nodes = self._graph.nodes[first:end]
        outside = {root(name) for node in nodes for name in node.reads if name not in computed}
        return outside.isdisjoint(root(name) for name in computed)


def _writes(graph: Graph, chain: NodeChain) -> Iterator[InPlaceWrite]:
    """Yield what the chain writes: inner values over inner ones, others over what comes from outside.

    ONNX Runtime orders nodes by what they read and nothing else: the other readers of an operand must be
    among those that a node depends on.
    """
    nodes = graph.nodes[chain.first : chain.end]
    maker = {node.made[0]: at for at, node in enumerate(nodes)}
    before: list[set[int]] = []
    for at, node in enumerate(nodes):
        needed = (before[maker[name]] for name in node.reads if name in maker)
        before.append({at}.union(*needed))
    for at, node in enumerate(nodes):
        (result,), own = node.made, node.reads
        later = {name for k, each in enumerate(nodes) if k not in before[at] for name in each.reads}
        operands = written_over(graph, node)
        if traits_of(node.operator).of is Op.QuantizeLinear:
            # The bytes that the chain is made of: all of a slice is read by then.
            others = dict.fromkeys(name for each in nodes for name in each.reads)
            operands = [name for name in others if name not in own]
        alike = [
            name
            for name in operands
            if name not in later
            and (name in chain.inner if result in chain.inner else name not in maker)
        ]
        yield InPlaceWrite(result, alike, {*own, *later}, chain.end)
