"""Rules that a network keeps between passes, whoever writes it.

Once the source was checked: each name has one maker and exists before it is read; outputs are made; names
of nodes are their own. Once ONNX Runtime has rewritten it: it infers types, and they are those that the
graph says, and that records of nodes say. In blocks of channels: what lies in blocks is read by what takes
it so. In pieces: values lie inside of others without a circle, groups have no node in common, and each node
with a kernel is in the pieces of one place.
"""

import graphlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from models.compiler.cutting.partition import CutGraph
from models.compiler.optimising.by_onnxruntime import types_of
from models.compiler.optimising.model_checks import check_agreement
from models.compiler.passes.record import Compilation, Pass
from models.compiler.passes.view import is_same
from models.errors import CompileError
from models.graphs.graph import Graph, with_files
from models.graphs.rewriter import Rewriter
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import NCHWC, Op
from models.network.node import Node
from models.network.operators.convolution import ADDEND
from models.network.operators.movement import Copy, strides_of
from models.network.operators.reading import Movement, Operator, Reshape, results


class Verifying:
    """Verifies a compilation after each pass: an observer of passes."""

    def __init__(self) -> None:
        self._last: Graph | None = None

    def before(self, work: Compilation, step: Pass) -> None:
        """Look at nothing: it was verified after the pass before."""

    def after(self, work: Compilation, step: Pass) -> None:
        """Verify ``work``.

        Raises:
            CompileError: it breaks a rule; the message names the pass, and what is wrong.
        """
        last, self._last = self._last, work.graph
        try:
            if not is_same(last, self._last):
                verify(work)
            else:
                _refuse(work, _divided(work.divided))
        except CompileError as exc:
            message = str(exc).removeprefix(f"{work.path}: ")
            raise CompileError(f"{work.path}: after the pass {step.name!r}: {message}") from exc


def verify(work: Compilation) -> None:
    """Check the rules of what ``work`` is now.

    Raises:
        CompileError: it breaks one of them.
    """
    if not work.is_valid:
        return
    graph = work.graph
    _refuse(work, _named(graph))
    if work.is_source:
        return
    types = types_of(with_files(graph, work.folder / "verified.data"), work.path, work.folder)
    layouts = _Layouts(graph.with_types(types), work.target.block)
    layouts.run()
    _refuse(work, layouts.faults)
    if work.is_typed:  # before, pools may have other outputs than are inferred
        shapes = {name: graph.array(name).shape for name in (*graph.constants, *types.placed)}
        _refuse(work, _typed(work.divided, types.placed))
        _refuse(work, _ruled(replace(graph, values=types.placed)))
        check_agreement(graph.nodes, shapes, work.path)
        _refuse(work, _divided(work.divided))


def _refuse(work: Compilation, faults: Iterable[str]) -> None:
    fault = next(iter(faults), None)
    if fault is not None:
        raise CompileError(f"{work.path}: {fault}; please report this")


def _named(graph: Graph) -> Iterator[str]:
    """Yield what is wrong with names."""
    there = {*graph.inputs, *graph.constants}
    for name in graph.constants.keys() & graph.inputs:
        yield f"value {name!r} is an input and a constant"
    for node in graph.nodes:
        for name in node.reads:
            if name not in there:
                yield f"node {node.label!r} reads {name!r}, which nothing made before"
        for name in node.made:
            if name in there:
                yield f"node {node.label!r} makes {name!r}, which there is already"
            there.add(name)
    for name in graph.outputs:
        if name not in there:
            yield f"nothing makes the output {name!r}"
    counts = Counter(node.name for node in graph.nodes if node.name)
    for name, count in counts.items():
        if count > 1:
            yield f"{count} nodes are called {name!r}"


# Blocks of channels: each value lies in blocks, or as its shape says, or may be read as either.

_RANK = 4


class _Layouts(Rewriter):
    """Goes through a graph and changes nothing; ``faults``: what is wrong with values in blocks.

    ``blocked``: values that lie in blocks. ``either``: those that are reshaped from one, for what comes
    between knows how they lie.
    """

    def __init__(self, graph: Graph, block: int) -> None:
        super().__init__(graph)
        self.faults: list[str] = []
        self._block = block
        self._blocked: set[str] = set()
        self._either: set[str] = set()

    def run(self) -> Graph:
        """Look at all nodes and outputs."""
        graph = super().run()
        self.faults += [
            f"the output {name!r} lies in blocks of channels"
            for name in sorted(self.outputs & self._blocked)
        ]
        return graph

    def replaced(self, node: Node) -> None:
        if node.domain == NCHWC:
            self._check_blocked(node)
            return
        names = [name for name in node.reads if name in self.values]
        blocked = self._blocked.intersection(names)
        operator = self.operator(node) if names else None
        if isinstance(operator, Reshape):
            self._either.update(node.made if blocked else ())
        elif blocked and (
            traits_of(node.operator).function is not None or self._moves_blocks(operator)
        ):
            self._check(node, [name for name in names if not self.is_single(name)])
            self._blocked.update(node.made)
        elif blocked:
            self._fault(node, sorted(blocked)[0], "lies in blocks of channels")
        if not self._either.isdisjoint(names) and not blocked:
            self._either.update(node.made)

    def _check_blocked(self, node: Node) -> None:
        """Look at a node of ONNX Runtime's layout."""
        names = [*node.inputs[:1], *node.inputs[ADDEND:]]
        if node.operator == Op.ReorderInput:
            if names[0] in self._blocked:
                self._fault(node, names[0], "lies in blocks of channels")
        else:
            self._check(node, [name for name in names if name in self.values])
        if node.operator != Op.ReorderOutput:
            self._blocked.update(node.made)

    def _check(self, node: Node, names: Sequence[str]) -> None:
        """Check that ``node`` may read ``names`` in blocks."""
        for name in names:
            channels, *sides = self.shape(name)[1:] or (0,)
            # An image of few channels is read as it is; of one pixel both are the same.
            is_plain = channels < self._block or math.prod(sides) == 1
            if name not in self._blocked | self._either and not is_plain:
                self._fault(node, name, "does not lie in blocks of channels")

    def _moves_blocks(self, operator: Operator | None) -> bool:
        """Return whether it moves whole blocks of channels, rows and columns as they are."""
        return isinstance(operator, Movement) and all(map(self._moves_planes, operator.copies))

    def _moves_planes(self, copy: Copy) -> bool:
        if len(copy.sizes) != _RANK:
            return False
        _, channels, *sides = copy.sizes
        planes = self._block * math.prod(sides)
        same_sides = all(tensor.shape[2:] == tuple(sides) for tensor in (copy.x, copy.y))
        in_order = all(
            strides[1:] == strides_of(copy.sizes)[1:] for strides in (copy.read, copy.written)
        )
        return (
            same_sides
            and in_order
            and not (channels % self._block or copy.start % planes or copy.place % planes)
        )

    def _fault(self, node: Node, name: str, how: str) -> None:
        self.faults.append(f"node {node.label!r} ({node.operator}) reads {name!r}, which {how}")


# Pieces.


def _typed(divided: CutGraph, types: Mapping[str, Array]) -> Iterator[str]:
    """Yield which values have other ``types`` than the graph says; in chains they are slices."""
    values = divided.graph.values
    slices = {name for chain in divided.chains.values() for name in chain.inner}
    for name, array in types.items():
        if name not in slices and values.get(name) != array:
            yield f"value {name!r} is {array}, the graph says {values.get(name)}"


def _ruled(graph: Graph) -> Iterator[str]:
    """Yield which values have other types than what is read of their nodes says."""
    for node in graph.nodes:
        operator = graph.operator(node)
        for result in results(operator) if operator else ():
            array = Array(dtype=result.dtype, shape=result.shape)
            inferred = graph.values.get(result.name, array)
            if inferred != array:
                yield f"value {result.name!r} is {inferred}, node {node.label!r} makes {array}"


def _divided(divided: CutGraph) -> Iterator[str]:
    """Yield what is wrong with what a graph is divided into."""
    graph, parents = divided.graph, divided.aliases.parents
    for name, (parent, offset) in parents.items():
        if not 0 <= offset <= graph.values[parent].n_bytes - graph.values[name].n_bytes:
            yield f"value {name!r} lies at byte {offset} of {parent!r}, which ends before"
    try:
        graphlib.TopologicalSorter({name: {up} for name, (up, _) in parents.items()}).prepare()
    except graphlib.CycleError as exc:
        yield f"values lie inside of each other: {', '.join(exc.args[1])}"
    for one, other in itertools.pairwise(sorted(divided.fused)):
        if divided.fused[one].end > other:
            yield f"nodes {one} and {other} begin groups that have nodes in common"
    if divided.pieces:
        yield from _covered(divided)


def _covered(divided: CutGraph) -> Iterator[str]:
    """Yield which nodes with a kernel are in no piece, or in pieces of two places."""
    done = 0
    count = len(divided.graph.nodes)
    nodes = [*((piece.first_node, piece.end_node) for piece in divided.pieces), (count, count)]
    for (first, end), _ in itertools.groupby(nodes):
        if first < done:
            yield f"pieces of the nodes from {first} on begin before those up to {done} end"
        left = set(range(done, first)) - divided.aliases.elided
        if left:
            yield f"node {divided.graph.nodes[min(left)].label!r} is in no piece"
        done = end
