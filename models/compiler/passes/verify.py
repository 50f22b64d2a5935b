"""Rules that a network keeps between passes, whoever writes it.

Once the source was checked: each name has one maker and exists before it is read; outputs are made; names
of nodes are their own. Once ONNX Runtime has rewritten it: it infers types, and they are those that the
graph says. In blocks of channels: what lies in blocks is read by what takes it so. In pieces: values lie
inside of others without a circle, groups have no node in common, and each node with a kernel is in the
pieces of one place.
"""

import graphlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx

from models.compiler.cutting.partition import CutGraph
from models.compiler.optimising.by_onnxruntime import types_of
from models.compiler.optimising.model_checks import check_agreement
from models.compiler.passes.record import Compilation, Pass
from models.compiler.passes.view import Key, is_same, key_of, model_between
from models.errors import CompileError
from models.graphs.nodes import label, made, reads
from models.graphs.rewriting import Rewriter
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import NCHWC, Op, op_of
from models.network.operators.convolution import ADDEND
from models.network.operators.movement import Copy, strides_of
from models.network.operators.reading import Movement, Operator, Reshape


class Verifying:
    """Verifies a compilation after each pass: an observer of passes."""

    def __init__(self) -> None:
        self._last: Key | None = None

    def before(self, work: Compilation, step: Pass) -> None:
        """Look at nothing: it was verified after the pass before."""

    def after(self, work: Compilation, step: Pass) -> None:
        """Verify ``work``.

        Raises:
            CompileError: it breaks a rule; the message names the pass, and what is wrong.
        """
        last, self._last = self._last, key_of(work)
        try:
            if not is_same(last, self._last):
                verify(work)
            elif work.is_read:
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
    model = model_between(work)
    _refuse(work, _named(model.graph))
    if work.is_source:
        return
    types = types_of(model, work.path, work.folder)
    layouts = _Layouts(model, types.placed, work.target.block)
    layouts.run()
    _refuse(work, layouts.faults)
    if work.is_read:  # before, pools may have other outputs than are inferred
        graph = work.graph
        shapes = {name: graph.array(name).shape for name in (*graph.constants, *types.placed)}
        _refuse(work, _typed(work.divided, types.placed))
        check_agreement(graph.nodes, shapes, work.path)
        _refuse(work, _divided(work.divided))


def _refuse(work: Compilation, faults: Iterable[str]) -> None:
    fault = next(iter(faults), None)
    if fault is not None:
        raise CompileError(f"{work.path}: {fault}; please report this")


def _named(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield what is wrong with names."""
    inputs = {port.name for port in graph.input}
    constants = {tensor.name for tensor in graph.initializer}
    there = inputs | constants
    for name in inputs & constants:
        yield f"value {name!r} is an input and a constant"
    for node in graph.node:
        for name in reads(node):
            if name not in there:
                yield f"node {label(node)!r} reads {name!r}, which nothing made before"
        for name in made(node):
            if name in there:
                yield f"node {label(node)!r} makes {name!r}, which there is already"
            there.add(name)
    for port in graph.output:
        if port.name not in there:
            yield f"nothing makes the output {port.name!r}"
    counts = Counter(node.name for node in graph.node if node.name)
    for name, count in counts.items():
        if count > 1:
            yield f"{count} nodes are called {name!r}"


# Blocks of channels: each value lies in blocks, or as its shape says, or may be read as either.

_RANK = 4


class _Layouts(Rewriter):
    """Goes through a model and changes nothing; ``faults``: what is wrong with values in blocks.

    ``blocked``: values that lie in blocks. ``either``: those that are reshaped from one, for what comes
    between knows how they lie.
    """

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> None:
        super().__init__(model, values)
        self.faults: list[str] = []
        self._block = block
        self._blocked: set[str] = set()
        self._either: set[str] = set()

    def run(self) -> bool:
        """Look at all nodes and outputs."""
        super().run()
        self.faults += [
            f"the output {name!r} lies in blocks of channels"
            for name in sorted(self.outputs & self._blocked)
        ]
        return False

    def replaced(self, node: onnx.NodeProto) -> None:
        if node.domain == NCHWC:
            self._check_blocked(node)
            return
        names = [name for name in reads(node) if name in self.values]
        blocked = self._blocked.intersection(names)
        operator = self.operator(node) if names else None
        if isinstance(operator, Reshape):
            self._either.update(made(node) if blocked else ())
        elif blocked and (
            traits_of(op_of(node)).function is not None or self._moves_blocks(operator)
        ):
            self._check(node, [name for name in names if not self.is_single(name)])
            self._blocked.update(made(node))
        elif blocked:
            self._fault(node, sorted(blocked)[0], "lies in blocks of channels")
        if not self._either.isdisjoint(names) and not blocked:
            self._either.update(made(node))

    def _check_blocked(self, node: onnx.NodeProto) -> None:
        """Look at a node of ONNX Runtime's layout."""
        names = [*node.input[:1], *node.input[ADDEND:]]
        if op_of(node) == Op.ReorderInput:
            if names[0] in self._blocked:
                self._fault(node, names[0], "lies in blocks of channels")
        else:
            self._check(node, [name for name in names if name in self.values])
        if op_of(node) != Op.ReorderOutput:
            self._blocked.update(made(node))

    def _check(self, node: onnx.NodeProto, names: Sequence[str]) -> None:
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

    def _fault(self, node: onnx.NodeProto, name: str, how: str) -> None:
        self.faults.append(f"node {label(node)!r} ({node.op_type}) reads {name!r}, which {how}")


# Pieces.


def _typed(divided: CutGraph, types: Mapping[str, Array]) -> Iterator[str]:
    """Yield which values have other ``types`` than the graph says; in chains they are slices."""
    values = divided.graph.values
    slices = {name for chain in divided.chains.values() for name in chain.inner}
    for name, array in types.items():
        if name not in slices and values.get(name) != array:
            yield f"value {name!r} is {array}, the graph says {values.get(name)}"


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
            yield f"node {label(divided.graph.nodes[min(left)])!r} is in no piece"
        done = end
