"""What pieces compute where a device may do it itself: programs on elements, tasks of quantised layers.

Invariant: a piece and the row operators that make the same have programs of the same steps, or none. So a
network has the same bits whole and on rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from models.compiler.analysis.pieces import CutPiece, Slice
from models.compiler.cutting.partition import CutGraph
from models.compiler.cutting.piece_models import inline_constants
from models.compiler.cutting.quantised_tasks import whole_task
from models.compiler.cutting.row_nodes import RowNode
from models.graphs.graph import Graph
from models.graphs.writer import constant_offsets
from models.network.activations import Activation, Arithmetic
from models.network.catalogue import OPERATORS, read_operator, traits_of
from models.network.fields import Array, stretches
from models.network.node import KnownTensors, Node, UnsuitedError
from models.network.operators.elements import Combine, Map
from models.network.operators.quantised import Quantised
from models.network.patterns import activations_in
from models.packs.records.pieces import LARGEST, ElementProgram, ElementStep, Elementwise
from models.packs.target import Target
from models.runtime.kernels import kernel_of


@dataclass(frozen=True)
class _Found:
    """``result`` is ``function`` of ``operands``, by names of values; ``nodes``: those that it stands for.

    Arithmetic of one operand has ``number`` for the second.
    """

    function: Activation | Arithmetic
    operands: tuple[str, ...]
    result: str
    nodes: tuple[int, ...]
    number: float = 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        if isinstance(self.function, Activation):
            return self.function.parameters
        return (self.number,) if len(self.operands) == 1 else ()

    @property
    def is_of_a_file(self) -> bool:
        """Return whether a manifest can have its numbers."""
        numbers = self.numbers
        if isinstance(self.function, Activation) and self.function.kind == "clip":
            numbers = tuple(number for number in numbers if not math.isinf(number))
        return all(abs(number) <= LARGEST for number in numbers)  # no NaN is

    def step(self, places: Mapping[str, int]) -> ElementStep:
        """Return the record, where values have these ``places``."""
        return ElementStep(
            kind=self.function.kind if isinstance(self.function, Activation) else self.function,
            reads=tuple(places[name] for name in self.operands),
            numbers=tuple(None if math.isinf(number) else number for number in self.numbers),
        )


@dataclass(frozen=True)
class _Share:
    """What is done of some steps, by names: ``results`` are values by what they are made as."""

    steps: Sequence[_Found] = ()
    results: Mapping[str, str] = field(default_factory=dict)


class ProgramDescriber:
    """Describes the programs of ``parts``, each once, in the order in which they are asked for.

    A GPU has none (``on_gpu``): its kernels compute such operators with what is around them.
    """

    def __init__(self, parts: CutGraph, on_gpu: bool = False) -> None:
        self._parts = parts
        self._on_gpu = on_gpu
        numbered = zip(parts.rows.nodes, parts.row_graphs, strict=True)
        self._rows = {row.index: row for row, graph in numbered if graph is not None}
        self._steps: dict[tuple[int, int], list[_Found] | None] = {}
        self._programs: list[ElementProgram] = []
        self._numbers: dict[str, int] = {}
        root = parts.aliases.root
        read = {part.name for piece in parts.pieces for part in piece.inputs.values()}
        self._read = {root(name) for name in (*parts.graph.inputs, *parts.graph.outputs, *read)}

    @property
    def programs(self) -> tuple[ElementProgram, ...]:
        """All that were described."""
        return tuple(self._programs)

    def piece(self, piece: CutPiece) -> Elementwise | None:
        """Return what ``piece`` computes; None: something else, or what is not worth a program."""
        steps = self._steps_of(piece)
        if steps is None:
            return None
        made = {step.result for step in steps} & self._kept(piece)
        results = {name: name for name in piece.outputs if name in made}
        return self._described(_Share(steps, results), [*piece.inputs], [*piece.outputs])

    def row_operator(self, row: RowNode) -> Elementwise | None:
        """Return what an operator on rows has to do; None: there is no program for it.

        An activation of several operators is done by one of them, and the others have nothing to do.
        """
        steps = self._steps_of(self._parts.pieces[self._parts.pieces_of(row.index)[0]])
        if steps is None:
            return None
        own = next(step for step in steps if row.index in step.nodes)
        share = (self._shares(own) or {})[row.index]
        return self._described(share, _inputs(row), row.outputs)

    def _kept(self, piece: CutPiece) -> set[str]:
        """Return the outputs of ``piece`` that something outside of it reads.

        What lies in the same memory as one that is read counts as read.
        """
        root = self._parts.aliases.root
        return {name for name, part in piece.outputs.items() if root(part.name) in self._read}

    def _steps_of(self, piece: CutPiece) -> list[_Found] | None:
        """Return all that ``piece`` computes, where it has a program; slices of a chain do the same."""
        key = piece.first_node, piece.end_node
        if key not in self._steps:
            reader = _Reader(self._parts.graph, self._parts.aliases.elided, piece)
            steps = reader.steps(self._kept(piece))
            is_kept = (
                steps
                and not self._on_gpu
                and _is_worth_it(steps)
                and self._goes_on_rows(steps, key)
            )
            self._steps[key] = steps if is_kept else None
        return self._steps[key]

    def _goes_on_rows(self, steps: Sequence[_Found], nodes: tuple[int, int]) -> bool:
        """Return whether row operators, if there are any of ``nodes``, can do ``steps``."""
        rows = self._rows.keys() & range(*nodes)
        computed = {node for step in steps for node in step.nodes}
        return not rows or (
            rows == computed and all(self._shares(step) is not None for step in steps)
        )

    def _shares(self, step: _Found) -> dict[int, _Share] | None:
        """Return what the row operator of each node of ``step`` does of it.

        It is done where its operands are read for the last time: later they may be gone. The operator that
        reads the result then hands it on; the others do nothing. None: it does not come to the last one.
        """
        rows = {node: self._rows[node] for node in step.nodes}
        reading = [node for node in rows if {*step.operands} <= {*_inputs(rows[node])}]
        shares = dict.fromkeys(rows, _Share())
        holding = ""  # the result
        for node, row in rows.items():
            (result,) = row.outputs
            if node == max(reading, default=None):
                shares[node] = _Share([replace(step, result=result)], {result: result})
                holding = result
            elif holding in _inputs(row):
                shares[node] = _Share([], {result: holding})
                holding = result
        return shares if holding == step.result else None

    def _described(
        self, share: _Share, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Elementwise:
        """Return ``share`` where ports have these names."""
        results = {step.result for step in share.steps}
        used = (*(name for step in share.steps for name in step.operands), *share.results.values())
        read = dict.fromkeys(name for name in used if name not in results)
        values = (*read, *(step.result for step in share.steps))
        places = {name: place for place, name in enumerate(values)}
        program = ElementProgram(
            n_inputs=len(read),
            steps=tuple(step.step(places) for step in share.steps),
            results=tuple(places[name] for name in share.results.values()),
        )
        # Equal as text: 0 and -0 are equal numbers.
        number = self._numbers.setdefault(repr(program), len(self._programs))
        if number == len(self._programs):
            self._programs.append(program)
        return Elementwise(
            program=number,
            reads=tuple(map(inputs.index, read)),
            makes=tuple(map(outputs.index, share.results)),
        )


def _inputs(row: RowNode) -> list[str]:
    return [*(name for name, _ in row.inputs), *row.weights]


def _is_worth_it(steps: Sequence[_Found]) -> bool:
    """Return whether there is more than one operator, which ONNX Runtime passes over once, too."""
    function = steps[0].function
    return len(steps) > 1 or len(steps[0].nodes) > 1 or not _has_kernel(function)


def _has_kernel(function: Activation | Arithmetic) -> bool:
    """Return whether ONNX Runtime computes ``function`` in one pass."""
    name = function.kind if isinstance(function, Activation) else function
    return any(row.function == name and kernel_of(row.name) for row in OPERATORS.values())


class _Reader:
    """Reads the nodes of ``piece``, but for those ``elided``, which have no kernel."""

    def __init__(self, graph: Graph, elided: frozenset[int], piece: CutPiece) -> None:
        self._graph = graph
        self._piece = piece
        own = range(piece.first_node, piece.end_node)
        self._indices = [index for index in own if index not in elided]
        self._nodes = [graph.nodes[index] for index in self._indices]
        made = (name for node in self._nodes for name in node.outputs if name in graph.values)
        whole = {name: Slice(name, graph.values[name].shape) for name in made}
        self._values = {**whole, **piece.inputs, **piece.outputs}
        self._known = KnownTensors(self._array, self._constant)

    def steps(self, kept: set[str]) -> list[_Found] | None:
        """Return all that is computed as steps; None: not all of it are operators on elements.

        ``kept``: outputs that something else reads.
        """
        if self._piece.region is not None or not all(
            traits_of(node.operator).function for node in self._nodes
        ):
            return None
        described = [
            _Found(item.activation, (item.x,), self._nodes[item.nodes[-1]].output, item.nodes)
            for item in activations_in(self._nodes, kept, self._known.number)
        ]
        covered = {at for step in described for at in step.nodes}
        for at, node in enumerate(self._nodes):
            if at not in covered:
                step = self._single(node, at)
                if step is None:
                    return None
                described.append(step)
        if not all(step.is_of_a_file for step in described) or not self._fits(described, kept):
            return None
        described.sort(key=lambda step: step.nodes[-1])
        return [
            replace(step, nodes=tuple(self._indices[at] for at in step.nodes)) for step in described
        ]

    def _fits(self, steps: Sequence[_Found], kept: set[str]) -> bool:
        """Return whether the results of ``steps`` have one shape, to which stretches what they read."""
        made = {step.result for step in steps}
        shapes = {self._values[name].shape for name in made & kept}
        read = {name for step in steps for name in step.operands} - made
        return len(shapes) == 1 and all(
            stretches(self._values[name].shape, shape) for name in read for shape in shapes
        )

    def _single(self, node: Node, at: int) -> _Found | None:
        """Return the step that one node is."""
        try:
            read = read_operator(node, self._known)
        except UnsuitedError:
            return None
        if isinstance(read, Combine):
            return self._combined(read, at)
        if not isinstance(read, Map) or read.x.name not in self._values:
            return None
        return _Found(read.function, (read.x.name,), read.y.name, (at,))

    def _combined(self, read: Combine, at: int) -> _Found | None:
        """Return the step that arithmetic of two is; one of them may be a number."""
        names = tuple(operand.name for operand in read.operands)
        values = tuple(name for name in names if name in self._values)
        if len(names) != 2 or not values:
            return None
        if len(values) == 2:
            return _Found(read.kind, values, read.y.name, (at,))
        number_last = names[0] == values[0]
        number = self._known.number(names[1 if number_last else 0])
        if number is None or not (number_last or traits_of(self._nodes[at].operator).commutes):
            return None
        if read.kind == "subtract":
            return _Found("add", values, read.y.name, (at,), -number)
        return _Found(read.kind, values, read.y.name, (at,), number)

    def _array(self, name: str) -> Array | None:
        part = self._values.get(name)
        if part is not None:
            return Array(dtype=self._graph.array(part.name).dtype, shape=part.shape)
        return self._graph.array(name) if name in self._graph.constants else None

    def _constant(self, name: str) -> NDArray[Any] | None:
        return None if name in self._values else self._graph.constants.get(name)


# Describe what pieces of quantised layers compute: the tasks of a manifest, each of them once.


@dataclass(frozen=True)
class QuantisedDescriber:
    """Describes the pieces of ``parts`` for ``target``; ``numbers``: of the tasks that were described."""

    parts: CutGraph
    target: Target
    numbers: dict[Quantised, int] = field(default_factory=dict)

    def piece(self, piece: CutPiece, data: bytes) -> int | None:
        """Return the number of the task that ``piece``, serialised as ``data``, is; None: it is none."""
        nodes = range(piece.first_node, piece.end_node)
        on_gpu = self.target.capability is not None
        if on_gpu or piece.region is not None or not self.parts.aliases.elided.isdisjoint(nodes):
            return None
        found_task = whole_task(self.parts.graph, nodes, tuple(piece.inputs))
        if found_task is None or len(piece.outputs) != 1:
            return None
        graph = self.parts.graph
        names = inline_constants(graph, graph.nodes[nodes.start : nodes.stop], piece.inputs)
        places = dict(zip(names, constant_offsets(data), strict=True))
        constants = tuple(places[name] for name in found_task.names[len(piece.inputs) :])
        task = replace(found_task.task, constants=constants)
        return self.numbers.setdefault(task, len(self.numbers))
