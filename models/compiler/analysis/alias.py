"""Values that can live inside another value, so that no kernel has to copy them.

Shapes agree (optimising/model_checks.py). Four cases: the inputs of a concatenation are written straight
into its output; a reshaped tensor is the tensor; a convolution that adds a tensor which no later node reads
writes over it, and so does an operator on elements.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from models.compiler.analysis.node_groups import Fused
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node
from models.packs.records.pieces import ValueBytes
from models.runtime.kernels import kernel_of

# A smaller value is better inside a piece, with nodes around it.
_LEAST_BYTES = 256 << 10


@dataclass(frozen=True)
class Aliases:
    """``parents``: value -> (value it lives in, byte offset); ``elided``: nodes without a kernel."""

    parents: dict[str, tuple[str, int]]
    elided: frozenset[int]

    def root(self, name: str) -> str:
        while name in self.parents:
            name = self.parents[name][0]
        return name

    def memory(self, graph: Graph, name: str) -> ValueBytes[str]:
        """Return where the value ``name`` of ``graph`` lies."""
        start, n_bytes = 0, graph.values[name].n_bytes
        while name in self.parents:
            name, offset = self.parents[name]
            start += offset
        return ValueBytes(name, start, start + n_bytes)


def find_aliases(graph: Graph, fused: Fused = MappingProxyType({})) -> Aliases:
    """Return the aliases of ``graph``; every value has at most one parent and none is its own."""
    parents: dict[str, tuple[str, int]] = {}
    elided = set()
    for index, node in enumerate(graph.nodes):
        if graph.region(index) is None and _is_reshape(graph, node):
            parents[node.output] = (node.inputs[0], 0)
            elided.add(index)
    for index, node in enumerate(graph.nodes):
        if graph.region(index) is not None:
            continue
        if node.operator == Op.Concat and _joins_in_place(graph, node, parents):
            offset = 0
            for name in node.inputs:
                parents[name] = (node.output, offset)
                offset += graph.values[name].n_bytes
            elided.add(index)
    return over_operands(graph, Aliases(parents, frozenset(elided)), _sums(graph, fused))


def _is_reshape(graph: Graph, node: Node) -> bool:
    extra_outputs = [name for name in node.outputs[1:] if name]
    # The third input of a Dropout says whether it drops.
    trains = node.operator == Op.Dropout and any(node.inputs[2:])
    return (
        traits_of(node.operator).reshapes
        and node.inputs[0] in graph.values
        and not extra_outputs
        and not trains
    )


def _joins_in_place(graph: Graph, node: Node, parents: dict[str, tuple[str, int]]) -> bool:
    """Return whether all inputs are contiguous in the output and free to be placed there."""
    shape = graph.values[node.output].shape
    outer = math.prod(shape[: node.attributes["axis"] % len(shape)])
    return (
        outer == 1
        and len(set(node.inputs)) == len(node.inputs)
        and all(
            name in graph.values and name not in parents and name not in graph.inputs
            for name in node.inputs
        )
    )


def written_over(graph: Graph, node: Node) -> list[str]:
    """Return the values that the result of ``node`` may lie over: it writes no element that it still reads.

    That is what a convolution adds, and what an operator on elements reads.
    """
    kernel = kernel_of(node.operator)
    if kernel is None:
        return []
    over = {index for index in kernel.writes_over if index < len(node.inputs)}
    # Of what a convolution convolves it reads elements again.
    others = {name for index, name in enumerate(node.inputs) if index not in over}
    operands = [name for name in node.inputs if name in graph.values and name not in others]
    is_float = any(graph.values[name].dtype.startswith("float") for name in operands)
    if kernel.operator is Op.Clip and is_float:
        # Limits of floats are parts of chains; over what they read, fewer layers run on rows.
        return []
    return operands


@dataclass(frozen=True)
class InPlaceWrite:
    """That ``result`` may be written over one of ``operands``, the best one first.

    The nodes before ``end`` make it. ``reads``: all that may still be read when it is written.
    """

    result: str
    operands: Sequence[str]
    reads: Collection[str]
    end: int


def _sums(graph: Graph, fused: Fused) -> Iterator[InPlaceWrite]:
    """Yield what convolutions write over what they add, and fused pieces."""
    for index, node in enumerate(graph.nodes):
        own = fused.get(index)
        if own is not None and own.residual is not None:
            nodes = graph.nodes[own.first : own.end]
            times = Counter(name for inner in nodes for name in inner.reads)
            added = [own.residual] if times[own.residual] == 1 else []
            yield InPlaceWrite(nodes[-1].output, added, times, own.end)
        if traits_of(node.operator).computes(Op.Conv) and graph.region(index) is None:
            yield InPlaceWrite(node.output, written_over(graph, node), node.inputs, index + 1)


def lone_writes(graph: Graph, nodes: Iterable[int]) -> Iterator[InPlaceWrite]:
    """Yield what ``nodes`` write, each by itself, where it is worth it."""
    for index in nodes:
        node = graph.nodes[index]
        result = graph.values.get(node.output)
        if graph.region(index) is None and result is not None and result.n_bytes >= _LEAST_BYTES:
            operands = written_over(graph, node)
            # What was made last is what regions make and use up at once.
            operands.sort(key=lambda name: -graph.makers.get(name, -1))
            yield InPlaceWrite(node.output, operands, node.reads, index + 1)


def over_operands(graph: Graph, aliases: Aliases, writes: Iterable[InPlaceWrite]) -> Aliases:
    """Return ``aliases`` with what ``writes`` make over operands that die there."""
    parents = dict(aliases.parents)
    storage = Storage(graph, aliases)
    for write in writes:
        if write.result in parents:
            continue
        for name in write.operands:
            if (
                name in graph.values
                and graph.values[name].n_bytes == graph.values[write.result].n_bytes
                and storage.names(name).isdisjoint({*write.reads} - {name})
                and storage.dies(name, write.end)
            ):
                parents[write.result] = (name, 0)
                storage.join(write.result, name)
                break
    return Aliases(parents, aliases.elided)


@dataclass
class _Place:
    """``names`` lie in the same memory; ``last``: the last node that reads it, -1: none does."""

    names: set[str]
    last: int
    is_port: bool


class Storage:
    """Which values of ``graph`` lie in the same memory, and until when it is read."""

    def __init__(self, graph: Graph, aliases: Aliases) -> None:
        ports = {*graph.inputs, *graph.outputs}
        self._places = {
            name: _Place({name}, max(graph.readers.get(name, ()), default=-1), name in ports)
            for name in graph.values
        }
        for name, (parent, _) in aliases.parents.items():
            self.join(name, parent)

    def join(self, name: str, other: str) -> None:
        """Note that ``name`` lies in the memory of ``other``."""
        less, more = sorted(
            (self._places[name], self._places[other]), key=lambda place: len(place.names)
        )
        if less is more:
            return
        more.names |= less.names
        more.last = max(more.last, less.last)
        more.is_port |= less.is_port
        self._places.update(dict.fromkeys(less.names, more))

    def names(self, name: str) -> set[str]:
        """Return the values in the memory of ``name``."""
        return self._places[name].names

    def dies(self, name: str, end: int) -> bool:
        """Return whether the memory of ``name`` is no port and not read from node ``end`` on."""
        place = self._places[name]
        return place.last < end and not place.is_port
