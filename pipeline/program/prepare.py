"""The one decision what runs each piece of a pack on a device, made when the pack is opened.

Invariant: plans count what a program says, and engines bind it; neither asks the device again.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Protocol, TypeVar

from models.network.fields import Array
from models.network.operators.quantised import Quantised, QuantisedTask
from models.packs.pack import Pack
from models.packs.records.pieces import (
    PAGE_BYTES,
    ElementProgram,
    Elementwise,
    Operand,
    max_pages,
)
from models.packs.records.row_parts import RowOperator, unrolled_bytes
from models.runtime.joined_graphs import is_one
from pipeline.program.choice import joined_pieces
from pipeline.program.kernels import (
    Chain,
    CopyKernel,
    FillKernel,
    IntegerTask,
    Joining,
    Kernel,
    OrtGraph,
    TableLookup,
)
from pipeline.program.program import PreparedAlternative, PreparedJoin, PreparedPiece, Program
from pipeline.program.shared_memory import PlacedValues

# What a device can do.

Shape = tuple[int, ...]
#: Returns what runs a program on arrays of these shapes: those read, then those made. None: a session.
ChainChoice = Callable[[Elementwise, ElementProgram, tuple[Shape, ...]], Chain | CopyKernel | None]
#: Returns what runs a task with constants in a graph, both by number, on so many inputs, and what that
#: allocates while it runs; True: the first input is one as a request gives it.
IntegerChoice = Callable[[int, int, int, bool], tuple[IntegerTask, int]]
#: Returns how a device runs each of the tasks of a network that it is to compute, by number.
IntegerAbility = Callable[[Mapping[int, Quantised]], IntegerChoice]


@dataclass(frozen=True)
class Abilities:
    """What a device can do beside loading pieces as they were compiled, as it works now.

    ``threads`` compute; None: as many as the compiler counted with. ``integers``, ``chains``: what it
    chooses for quantised layers and for operators on elements that it has kernels for. ``joins``: whether a
    serialised piece, whose values are floats of 32 bits, may be one of several in a session.
    ``scratch_bytes``: what its kernel of a serialised piece allocates, None where the pack says it.
    ``reads_rows``: whether a kernel may read rows of a table while it runs.
    """

    threads: int | None = None
    integers: IntegerAbility | None = None
    chains: ChainChoice | None = None
    joins: Callable[[bytes], bool] = lambda graph: False
    scratch_bytes: Callable[[bytes], int | None] = lambda graph: None
    reads_rows: bool = False


class Able(Protocol):
    """A device, as far as programs are made for it."""

    def abilities(self) -> Abilities: ...


def prepare(pack: Pack, device: Able) -> Program:
    """Return the network of ``pack`` as ``device`` runs it, as it works now, in all shapes of the pack.

    Raises:
        PackError: its pieces are such that no kernel could run them.
    """
    able = device.abilities()
    first, *others = (_prepared(shape, able) for shape in (pack, *pack.others))
    return replace(first, others=tuple(others)) if others else first


def _prepared(pack: Pack, able: Abilities) -> Program:
    program = _with_scratch(Program.as_compiled(pack), able)
    if able.integers is not None and program.quantised:
        program = _with_tasks(program, able.integers)
    if able.chains is not None and program.programs:
        program = with_chains(program, able.chains)
    if able.reads_rows:
        program = with_lookups(program)
    return _with_joins(program, able.joins)


# Which programs of operators on elements run in one pass.
#
# Pieces and the row operators that make the same have it all, or none: the same bits whole and on rows.


def with_chains(program: Program, choose: ChainChoice) -> Program:
    """Return ``program`` with what the device runs in one pass."""
    return _Chains(program, choose).program()


class _Chains:
    """Chooses what of ``whole`` runs in one pass; its other kernels stay."""

    def __init__(self, whole: Program, choose: ChainChoice) -> None:
        self._whole = whole
        self._choose = choose
        self._places = PlacedValues(whole)
        self._chosen: dict[tuple[Elementwise, tuple[Shape, ...]], Chain | CopyKernel | None] = {}

    def program(self) -> Program:
        whole = self._whole
        numbered = zip(whole.pack.manifest.pieces, whole.pieces, strict=True)
        pieces = [
            None if compiled.quantised is not None else self._of_piece(compiled.elementwise, piece)
            for compiled, piece in numbered
        ]
        operators = [self._of_operator(item) for item in whole.row_operators]
        for first, end, indices in _making_the_same(whole.row_operators):
            chosen = [*pieces[first:end], *(operators[index] for index in indices)]
            if None in chosen:
                pieces[first:end] = [None] * (end - first)
                for index in indices:
                    operators[index] = None
        alternatives = zip(whole.alternatives, whole.pack.manifest.alternatives, strict=True)
        return replace(
            whole,
            pieces=tuple(
                piece if chosen is None else piece._replace(kernel=chosen)
                for piece, chosen in zip(whole.pieces, pieces, strict=True)
            ),
            alternatives=tuple(
                self._alternative(item, [join.elementwise for join in compiled.joined])
                if all(pieces[item.first_piece : item.end_piece])
                else item
                for item, compiled in alternatives
            ),
            row_kernels=tuple(
                chosen or kernel
                for kernel, chosen in zip(whole.row_kernels, operators, strict=True)
            ),
        )

    def _alternative(
        self, item: PreparedAlternative, elementwise: Sequence[Elementwise | None]
    ) -> PreparedAlternative:
        pieces = joined_pieces(self._whole.pieces, item)
        chosen = map(self._of_piece, elementwise, pieces)
        pairs = zip(item.joined, chosen, strict=True)
        return item._replace(
            joined=tuple(join._replace(kernel=new or join.kernel) for join, new in pairs)
        )

    def _of_piece(
        self, item: Elementwise | None, piece: PreparedPiece
    ) -> Chain | CopyKernel | None:
        if item is None:
            return None
        read, made = item.ports(piece.inputs, piece.outputs)
        if not all(self._apart(one, other) for one in made for other in (*read, *made)):
            return None
        return self._chain(item, (*read, *made))

    def _of_operator(self, operator: RowOperator) -> Chain | CopyKernel | None:
        item, values = operator.elementwise, self._whole.row_values
        if item is None:
            return None
        inputs = [values[taken.row_value] for taken in operator.inputs]
        read, made = item.ports([*inputs, *operator.weights], [values[operator.output]])
        return self._chain(item, (*read, *made))

    def _chain(self, item: Elementwise, arrays: Sequence[Array]) -> Chain | CopyKernel | None:
        """Return what runs ``item`` on ``arrays``: those read, then those made."""
        key = item, tuple(array.shape for array in arrays)
        if key not in self._chosen:
            self._chosen[key] = self._choose(item, self._whole.programs[item.program], key[1])
        return self._chosen[key]

    def _apart(self, one: Operand, other: Operand) -> bool:
        """Return whether two operands are the same memory, or have none in common."""
        if one.kind != other.kind:
            return True
        first, second = self._places.of(one), self._places.of(other)
        return first == second or not first.overlaps(second)


def _making_the_same(operators: Sequence[RowOperator]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield pieces, first and end, and the numbers of the row operators that make the same."""
    numbered = enumerate(operators)
    for (first, end), group in groupby(
        numbered, lambda item: (item[1].first_piece, item[1].end_piece)
    ):
        yield first, end, [number for number, _ in group]


# Which quantised layers kernels of the device compute.
#
# What each piece computes the compiler has said (``Piece.quantised``).


def _with_tasks(program: Program, able: IntegerAbility) -> Program:
    """Return ``program`` with the quantised layers that kernels of the device compute."""
    memory, pieces = PlacedValues(program), list(program.pieces)
    graph_inputs = {(port.value, port.dtype, port.shape) for port in program.inputs}
    indices = {
        index: compiled.quantised
        for index, compiled in enumerate(program.pack.manifest.pieces)
        if compiled.quantised is not None
        and _can_write(pieces[index], program.quantised[compiled.quantised], memory)
    }
    choose = able({task: program.quantised[task] for task in indices.values()})
    for index, task in indices.items():
        piece, found = pieces[index], program.quantised[task]
        reads_rows = (
            isinstance(found, QuantisedTask)
            and found.rectangle is not None
            and _is_whole(piece.inputs[0], graph_inputs)
        )
        kernel, scratch_bytes = choose(task, piece.graph, len(piece.inputs), reads_rows)
        pieces[index] = piece._replace(
            kernel=kernel,
            scratch_bytes=scratch_bytes,
            unrolled=None,
            reads_rows=reads_rows,
        )
    return replace(program, pieces=tuple(pieces))


def _can_write(piece: PreparedPiece, task: Quantised, memory: PlacedValues) -> bool:
    """Return whether what ``piece`` makes lies over nothing that it reads, whose rows are read again."""
    (output,) = map(memory.of, piece.outputs)
    return not any(
        output.overlaps(memory.of(operand))
        for index, operand in enumerate(piece.inputs)
        if operand.kind == "value" and not (index == task.over and memory.of(operand) == output)
    )


def _is_whole(operand: Operand, graph_inputs: Collection[tuple[int, str, Shape]]) -> bool:
    """Return whether ``operand`` is an input as a request gives it: all of it, in this form."""
    form = operand.index, operand.dtype, operand.shape
    return operand.kind == "value" and operand.offset == 0 and form in graph_inputs


# Which tables stay in the file: rows of them are read while a request runs.

#: What is read at once, unless the rows of a request are fewer, or one is larger.
_BUFFER_BYTES = 256 << 10
#: What a lookup holds for each index beside the rows: its number, and where it comes in their order.
_INDEX_BYTES = 96


def with_lookups(program: Program) -> Program:
    """Return ``program`` with rows of tables read alone, unless a plan keeps a table (``with_table``)."""
    compiled = program.pack.manifest.pieces
    pieces = zip(program.pieces, compiled, strict=True)
    return replace(
        program,
        pieces=tuple(
            piece if item.page_checksums is None else _lookup(piece, item.page_checksums)
            for piece, item in pieces
        ),
    )


def _lookup(piece: PreparedPiece, checksums: Operand) -> PreparedPiece:
    (table,) = (operand for operand in piece.inputs if operand.kind == "span")
    (indices,) = (operand for operand in piece.inputs if operand.kind == "value")
    row_bytes, count = table.n_bytes // table.shape[0], prod(indices.shape)
    row_pages = max_pages(row_bytes)
    pages = max(min(_BUFFER_BYTES // PAGE_BYTES, count * row_pages), row_pages)
    kernel = TableLookup(
        span=table.index,
        rows=table.shape[0],
        row_bytes=row_bytes,
        buffer_bytes=pages * PAGE_BYTES,
        graph=piece.graph,
        graph_inputs=piece.inputs,
    )
    return piece._replace(
        kernel=kernel,
        span=None,
        inputs=(indices, checksums),
        scratch_bytes=kernel.buffer_bytes + _INDEX_BYTES * count,
    )


def with_table(piece: PreparedPiece) -> PreparedPiece:
    """Return ``piece``, which reads rows of a table, with the table in memory: it allocates nothing."""
    kernel = piece.kernel
    assert isinstance(kernel, TableLookup)
    return piece._replace(
        kernel=OrtGraph(kernel.graph, resident=False),
        span=kernel.span,
        inputs=kernel.graph_inputs,
        scratch_bytes=0,
    )


# What kernels allocate, and which may be one of several in a launch.


_Item = TypeVar("_Item", PreparedPiece, PreparedJoin)


def _with_scratch(program: Program, able: Abilities) -> Program:
    """Return ``program`` with what its graphs allocate on the device, with its threads."""
    needed = functools.cache(lambda graph: able.scratch_bytes(program.pack.graphs[graph]))

    def fit(item: _Item) -> _Item:
        n_bytes = needed(item.graph)
        if n_bytes is None and able.threads is not None and item.unrolled is not None:
            n_bytes = unrolled_bytes(item.unrolled, able.threads)
        return item if n_bytes is None else item._replace(scratch_bytes=n_bytes)

    def on_rows(item: RowOperator) -> RowOperator:
        if item.unrolled is None or able.threads is None:
            return item
        segments = min(item.unrolled.segments, able.threads)
        return replace(item, unrolled=replace(item.unrolled, segments=segments))

    def alternative(item: PreparedAlternative) -> PreparedAlternative:
        merged = tuple(map(fit, item.joined))
        return item if merged == item.joined else item._replace(joined=merged)

    return replace(
        program,
        pieces=tuple(map(fit, program.pieces)),
        alternatives=tuple(map(alternative, program.alternatives)),
        row_operators=tuple(map(on_rows, program.row_operators)),
    )


def _with_joins(program: Program, joins: Callable[[bytes], bool]) -> Program:
    """Return ``program`` with the graphs that join others: with all of their pieces, or with none."""
    graphs = program.pack.graphs

    def can(kernel: Kernel) -> bool:
        match kernel:
            case OrtGraph(graph, resident):
                return not resident and joins(graphs[graph])
            case Chain():
                return kernel.node_bytes is not None
            case IntegerTask() | TableLookup() | CopyKernel() | FillKernel():
                return False

    every = (join for alternative in program.alternatives for join in alternative.joined)
    kernels = {(piece.graph, piece.kernel) for piece in program.pieces}
    kernels |= {(join.graph, join.kernel) for join in every}
    by_graph: dict[int, bool] = {}
    for graph, kernel in kernels:
        by_graph[graph] = by_graph.get(graph, True) and can(kernel)
    joining: dict[int, Joining] = {
        number: "freeing" if is_one(graphs[number]) else "keeping"
        for number, each in by_graph.items()
        if each
    }
    return replace(program, joins=joining)
