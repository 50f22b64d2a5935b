"""The one decision what runs each piece of a pack on a device, made when the pack is opened.

Invariant: plans count what a program says, and engines bind it; neither asks the device again.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol, TypeVar

from models.network.fields import Array
from models.network.operators.quantised import Quantised, QuantisedTask
from models.packs.pack import Pack
from models.packs.records.pieces import ElementProgram, Elementwise, Operand
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
    """

    threads: int | None = None
    integers: IntegerAbility | None = None
    chains: ChainChoice | None = None
    joins: Callable[[bytes], bool] = lambda graph: False
    scratch_bytes: Callable[[bytes], int | None] | None = None


class Able(Protocol):
    """A device, as far as programs are made for it."""

    def abilities(self) -> Abilities: ...


def prepare(pack: Pack, device: Able) -> Program:
    """Return the network of ``pack`` as ``device`` runs it, as it works now.

    Raises:
        PackError: its pieces are such that no kernel could run them.
    """
    able = device.abilities()
    program = Program.as_compiled(pack)
    if able.threads is not None:
        program = _with_threads(program, able.threads)
    if able.integers is not None and program.quantised:
        program = _with_tasks(program, able.integers)
    if able.chains is not None and program.programs:
        program = with_chains(program, able.chains)
    program = _with_joins(program, able.joins)
    return program if able.scratch_bytes is None else _with_scratch(program, able.scratch_bytes)


_Item = TypeVar("_Item", PreparedPiece, PreparedJoin)


def _changed(
    program: Program,
    of_piece: Callable[[PreparedPiece], PreparedPiece],
    of_joined: Callable[[PreparedJoin], PreparedJoin],
) -> Program:
    """Return ``program`` with other pieces."""
    return replace(
        program,
        pieces=tuple(map(of_piece, program.pieces)),
        alternatives=tuple(
            item._replace(joined=tuple(map(of_joined, item.joined)))
            for item in program.alternatives
        ),
    )


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
        for first, end, numbers in _making_the_same(whole.row_operators):
            chosen = [*pieces[first:end], *(operators[number] for number in numbers)]
            if None in chosen:
                pieces[first:end] = [None] * (end - first)
                for number in numbers:
                    operators[number] = None
        alternatives = zip(whole.alternatives, whole.pack.manifest.alternatives, strict=True)
        return replace(
            whole,
            pieces=tuple(
                piece if chosen is None else piece._replace(kernel=chosen)
                for piece, chosen in zip(whole.pieces, pieces, strict=True)
            ),
            alternatives=tuple(
                self._alternative(item, [part.elementwise for part in compiled.joined])
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
        joined = zip(item.joined, chosen, strict=True)
        return item._replace(
            joined=tuple(part._replace(kernel=new or part.kernel) for part, new in joined)
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
    places, pieces = PlacedValues(program), list(program.pieces)
    as_given = {(port.value, port.dtype, port.shape) for port in program.inputs}
    numbers = {
        number: compiled.quantised
        for number, compiled in enumerate(program.pack.manifest.pieces)
        if compiled.quantised is not None
        and _can_write(pieces[number], program.quantised[compiled.quantised], places)
    }
    choose = able({task: program.quantised[task] for task in numbers.values()})
    for number, task in numbers.items():
        piece, found = pieces[number], program.quantised[task]
        takes_rows = (
            isinstance(found, QuantisedTask)
            and found.rectangle is not None
            and _is_whole(piece.inputs[0], as_given)
        )
        kernel, scratch_bytes = choose(task, piece.graph, len(piece.inputs), takes_rows)
        pieces[number] = piece._replace(
            kernel=kernel,
            scratch_bytes=scratch_bytes,
            unrolled=None,
            takes_rows=takes_rows,
        )
    return replace(program, pieces=tuple(pieces))


def _can_write(piece: PreparedPiece, task: Quantised, places: PlacedValues) -> bool:
    """Return whether what ``piece`` makes lies over nothing that it reads, whose rows are read again."""
    (made,) = map(places.of, piece.outputs)
    return not any(
        made.overlaps(places.of(operand))
        for number, operand in enumerate(piece.inputs)
        if operand.kind == "value" and not (number == task.over and places.of(operand) == made)
    )


def _is_whole(operand: Operand, as_given: Collection[tuple[int, str, Shape]]) -> bool:
    """Return whether ``operand`` is an input as a request gives it: all of it, in this form."""
    form = operand.index, operand.dtype, operand.shape
    return operand.kind == "value" and operand.offset == 0 and form in as_given


# What kernels allocate, and which may be one of several in a launch.


def _with_threads(program: Program, threads: int) -> Program:
    """Return ``program`` with what plain convolutions allocate where ``threads`` threads compute."""

    def fit(item: _Item) -> _Item:
        if item.unrolled is None:
            return item
        return item._replace(scratch_bytes=unrolled_bytes(item.unrolled, threads))

    def on_rows(item: RowOperator) -> RowOperator:
        if item.unrolled is None:
            return item
        segments = min(item.unrolled.segments, threads)
        return replace(item, unrolled=replace(item.unrolled, segments=segments))

    rows = tuple(map(on_rows, program.row_operators))
    return replace(_changed(program, fit, fit), row_operators=rows)


def _with_scratch(program: Program, scratch_bytes: Callable[[bytes], int | None]) -> Program:
    """Return ``program`` with what kernels of the device allocate."""
    needed = functools.cache(lambda number: scratch_bytes(program.pack.graphs[number]))

    def fit(item: _Item) -> _Item:
        n_bytes = needed(item.graph)
        return item if n_bytes is None else item._replace(scratch_bytes=n_bytes)

    return _changed(program, fit, fit)


def _with_joins(program: Program, joins: Callable[[bytes], bool]) -> Program:
    """Return ``program`` with the graphs that join others: with all of their pieces, or with none."""
    graphs = program.pack.graphs

    @functools.cache
    def can(kernel: Kernel) -> bool:
        match kernel:
            case OrtGraph(graph, resident):
                return not resident and joins(graphs[graph])
            case Chain():
                return kernel.node_bytes is not None
            case IntegerTask() | CopyKernel() | FillKernel():
                return False

    items: list[PreparedPiece | PreparedJoin] = [*program.pieces]
    items += (part for alternative in program.alternatives for part in alternative.joined)
    by_graph: dict[int, bool] = {}
    for item in items:
        by_graph[item.graph] = by_graph.get(item.graph, True) and can(item.kernel)
    joining: dict[int, Joining] = {
        number: "freeing" if is_one(graphs[number]) else "keeping"
        for number, each in by_graph.items()
        if each
    }
    return replace(program, joins=joining)
