"""Values that can live inside another value, so that no kernel has to copy them.

Shapes agree (models/compiler/analysis/agree.py). Four cases: the inputs of a concatenation are written
straight into its output; a reshaped tensor is the tensor; a convolution that adds a tensor no one reads
afterwards writes over it, and so does an operator on elements.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

import onnx

from models.compiler.analysis.fused import Fused
from models.compiler.analysis.graph import NCHWC_DOMAIN, Graph
from models.graphs.nodes import attributes, made, reads
from models.network.operators.convolution import ADDEND
from models.network.operators.elements import IN_PLACE
from models.network.operators.movement import RESHAPES

# Limits of floats are parts of chains; over what they read, fewer layers run on rows.
_IN_PLACE_OF_INTEGERS = IN_PLACE | {"Clip"}
# A smaller value had better be inside a piece, with nodes around it.
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


def find_aliases(graph: Graph, fused: Fused = MappingProxyType({})) -> Aliases:
    """Return the aliases of ``graph``; every value has at most one parent and none is its own."""
    parents: dict[str, tuple[str, int]] = {}
    elided = set()
    for index, node in enumerate(graph.nodes):
        if graph.region(index) is None and _is_reshape(graph, node):
            parents[node.output[0]] = (node.input[0], 0)
            elided.add(index)
    for index, node in enumerate(graph.nodes):
        if graph.region(index) is not None:
            continue
        if node.op_type == "Concat" and _joins_in_place(graph, node, parents):
            offset = 0
            for name in node.input:
                parents[name] = (node.output[0], offset)
                offset += graph.values[name].n_bytes
            elided.add(index)
    aliases = Aliases(parents, frozenset(elided))
    _add_sums(graph, aliases, fused)
    return aliases


def over_operands(graph: Graph, aliases: Aliases, nodes: Iterable[int]) -> Aliases:
    """Return ``aliases`` with what ``nodes`` make, operators on elements, over operands that die there."""
    parents = dict(aliases.parents)
    storage = Storage(graph, aliases)
    for index in nodes:
        node = graph.nodes[index]
        if len(made(node)) != 1 or graph.region(index) is not None:
            continue
        result = graph.values.get(node.output[0])
        is_float = result is None or result.dtype.startswith("float")
        if node.op_type not in (IN_PLACE if is_float else _IN_PLACE_OF_INTEGERS):
            continue
        operands = [name for name in reads(node) if name in graph.values]
        # What was made last is what regions make and use up at once.
        for name in sorted(operands, key=lambda each: -graph.makers.get(each, -1)):
            others = {each for each in operands if each != name}
            if (
                result == graph.values[name]
                and result.n_bytes >= _LEAST_BYTES
                and node.output[0] not in parents
                and storage.names(name).isdisjoint(others)
                and storage.dies(name, index + 1)
            ):
                parents[node.output[0]] = (name, 0)
                storage.join(node.output[0], name)
                break
    return Aliases(parents, aliases.elided)


@dataclass
class _Place:
    """``names`` lie in the same memory; ``last``: the last node that reads it, -1: none does."""

    names: set[str]
    last: int
    is_input: bool
    is_output: bool


class Storage:
    """Which values of ``graph`` lie in the same memory, and until when it is read."""

    def __init__(self, graph: Graph, aliases: Aliases) -> None:
        inputs, outputs = set(graph.inputs), set(graph.outputs)
        self._places = {
            name: _Place(
                {name},
                max(graph.readers.get(name, ()), default=-1),
                name in inputs,
                name in outputs,
            )
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
        more.is_input |= less.is_input
        more.is_output |= less.is_output
        self._places.update(dict.fromkeys(less.names, more))

    def names(self, name: str) -> set[str]:
        """Return the values in the memory of ``name``."""
        return self._places[name].names

    def ends(self, name: str, end: int) -> bool:
        """Return whether the memory of ``name`` is no output and not read from node ``end`` on."""
        place = self._places[name]
        return place.last < end and not place.is_output

    def dies(self, name: str, end: int) -> bool:
        """Return whether it ends so and is no input."""
        return self.ends(name, end) and not self._places[name].is_input


def _is_reshape(graph: Graph, node: onnx.NodeProto) -> bool:
    extra_outputs = [name for name in node.output[1:] if name]
    # The third input of a Dropout says whether it drops.
    trains = node.op_type == "Dropout" and any(node.input[2:])
    return (
        node.op_type in RESHAPES
        and node.input[0] in graph.values
        and not extra_outputs
        and not trains
    )


def _joins_in_place(
    graph: Graph, node: onnx.NodeProto, parents: dict[str, tuple[str, int]]
) -> bool:
    """Return whether all inputs are contiguous in the output and free to be placed there."""
    shape = graph.values[node.output[0]].shape
    outer = math.prod(shape[: attributes(node)["axis"] % len(shape)])
    return (
        outer == 1
        and len(set(node.input)) == len(node.input)
        and all(
            name in graph.values and name not in parents and name not in graph.inputs
            for name in node.input
        )
    )


@dataclass(frozen=True)
class _Sum:
    """Nodes up to ``last`` make ``result`` of ``others`` and, element by element, of ``addend``."""

    last: int
    addend: str
    result: str
    others: frozenset[str]


def _add_sums(graph: Graph, aliases: Aliases, fused: Fused) -> None:
    """Let a convolution with a sum write over what it adds where its storage is dead afterwards."""
    storage = Storage(graph, aliases)
    for item in _sums(graph, fused):
        if (
            item.addend in graph.values
            and graph.values[item.addend].n_bytes == graph.values[item.result].n_bytes
            and storage.ends(item.addend, item.last + 1)
            and storage.names(item.addend).isdisjoint(item.others)
            and item.result not in aliases.parents
        ):
            aliases.parents[item.result] = (item.addend, 0)
            storage.join(item.result, item.addend)


def _sums(graph: Graph, fused: Fused) -> Iterator[_Sum]:
    """Yield the sums of ``Conv(x, w, b, sum)`` in the blocked layout, and those of fused pieces."""
    for index, node in enumerate(graph.nodes):
        own = fused.get(index)
        if own is not None and own.residual is not None:
            nodes = graph.nodes[own.first : own.end]
            times = Counter(name for inner in nodes for name in reads(inner))
            times[own.residual] -= 1  # where it is added
            yield _Sum(own.end - 1, own.residual, nodes[-1].output[0], frozenset(+times))
        if node.domain != NCHWC_DOMAIN or node.op_type != "Conv" or len(node.input) <= ADDEND:
            continue
        if graph.region(index) is None:
            others = frozenset(node.input[:ADDEND])
            yield _Sum(index, node.input[ADDEND], node.output[0], others)
