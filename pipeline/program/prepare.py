"""The one decision what runs each piece of a pack on a device, made when the pack is opened.

Invariant: plans count what a program says, and engines bind it; neither asks the device again.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol, TypeVar

from models.network.fields import Array
from models.network.operators.quantised import Quantised, QuantisedTask
from models.packs.pack import Pack
from models.packs.records.pieces import (
    Alternative,
    ElementProgram,
    Elementwise,
    JoinedPieces,
    Operand,
    Piece,
    joined_pieces,
)
from models.packs.records.row_parts import RowOperator, unrolled_bytes
from models.runtime.joined_graphs import is_one
from pipeline.program.program import (
    ChainJoined,
    ChainPiece,
    Native,
    NativeChain,
    NativePiece,
    Program,
)
from pipeline.program.shared_memory import PlacedValues

# Which programs of operators on elements run in one pass, and what they take there.
#
# Pieces and the row operators that make the same have it all, or none: the same bits whole and on rows.

Shape = tuple[int, ...]
#: Returns a device's decision for a program on arrays of these shapes: those read, then those made.
#: None: it does not run it in one pass.
ChainAbility = Callable[[ElementProgram, tuple[Shape, ...]], NativeChain | None]


def with_chains(program: Program, able: ChainAbility) -> Program:
    """Return ``program`` with what the device runs in one pass."""
    if program.target.capability is not None or not program.programs:
        return program  # what a GPU does not run has sessions
    return _ChainDecision(program, able).program()


class _ChainDecision:
    """Decides about ``whole``."""

    def __init__(self, whole: Program, able: ChainAbility) -> None:
        self._whole = whole
        self._able = able
        self._places = PlacedValues(whole)
        self._known: dict[tuple[int, tuple[Shape, ...]], NativeChain | None] = {}

    def program(self) -> Program:
        """Return it with what was decided of each piece, finest or joined, and row operator."""
        pieces = [self._of_piece(piece) for piece in self._whole.pieces]
        operators = [self._of_operator(item) for item in self._whole.row_operators]
        for first, end, numbers in _making_the_same(self._whole.row_operators):
            chains = [*pieces[first:end], *(operators[number] for number in numbers)]
            if None in chains:
                pieces[first:end] = [None] * (end - first)
                for number in numbers:
                    operators[number] = None
        return replace(
            self._whole,
            pieces=tuple(
                piece if chain is None else ChainPiece.of(piece, chain)
                for piece, chain in zip(self._whole.pieces, pieces, strict=True)
            ),
            alternatives=tuple(
                self._alternative(item, pieces) for item in self._whole.alternatives
            ),
            row_chains={
                number: chain for number, chain in enumerate(operators) if chain is not None
            },
        )

    def _alternative(self, given: Alternative, finest: Sequence[NativeChain | None]) -> Alternative:
        """Return ``given`` with what was decided of its pieces: nothing where the ``finest`` have none."""
        if not all(finest[given.first_piece : given.end_piece]):
            return given
        whole = joined_pieces(self._whole.pieces, given)
        return replace(given, joined=tuple(map(self._joined, given.joined, whole)))

    def _joined(self, item: JoinedPieces, piece: Piece) -> JoinedPieces:
        chain = self._of_piece(piece)
        return item if chain is None else ChainJoined.of(item, chain)

    def _of_piece(self, piece: Piece) -> NativeChain | None:
        item = piece.elementwise
        if item is None or isinstance(piece, NativePiece):
            return None
        read, made = item.ports(piece.inputs, piece.outputs)
        if not all(self._apart(one, other) for one in made for other in (*read, *made)):
            return None
        return self._chain(item, (*read, *made))

    def _of_operator(self, operator: RowOperator) -> NativeChain | None:
        item, values = operator.elementwise, self._whole.row_values
        if item is None:
            return None
        inputs = [values[taken.row_value] for taken in operator.inputs]
        read, made = item.ports([*inputs, *operator.weights], [values[operator.output]])
        return self._chain(item, (*read, *made))

    def _chain(self, item: Elementwise, arrays: Sequence[Array]) -> NativeChain | None:
        """Return the decision for a program on ``arrays``: those read, then those made."""
        key = item.program, tuple(array.shape for array in arrays)
        if key not in self._known:
            self._known[key] = self._able(self._whole.programs[item.program], key[1])
        return self._known[key]

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


# Which quantised pieces kernels of the device compute, and what they take there.
#
# What each piece computes the compiler has said (``Piece.quantised``).


#: Returns what a layer of so many inputs allocates while it runs, and the rest that is decided of it; True:
#: its first input is one as a request gives it.
NativeChoice = Callable[[Quantised, int, bool], tuple[int, Native]]
#: Returns how a device runs each of the layers of a network that it is to compute.
NativeAbility = Callable[[Sequence[Quantised]], NativeChoice]


def _with_natives(program: Program, able: NativeAbility) -> Program:
    """Return ``program`` with the pieces that kernels of the device compute."""
    if not program.quantised:
        return program
    return replace(program, pieces=_NativeDecision(program, able).pieces())


class _NativeDecision:
    """Decides about ``program``."""

    def __init__(self, program: Program, able: NativeAbility) -> None:
        self._program = program
        self._places = PlacedValues(program)
        self._inputs = {(port.value, port.dtype, port.shape) for port in program.inputs}
        self._found = [self._task(piece) for piece in program.pieces]
        self._able = able([each for each in self._found if each is not None])
        # By number of the task, of inputs, and whether these are taken by rows.
        self._natives: dict[tuple[int | None, int, bool], tuple[int, Native]] = {}

    def pieces(self) -> tuple[Piece, ...]:
        return tuple(map(self._decided, self._program.pieces, self._found))

    def _task(self, piece: Piece) -> Quantised | None:
        """Return what kernels of the device compute; None: a session does."""
        if piece.quantised is None:
            return None
        quantised = self._program.quantised[piece.quantised]
        (made,) = map(self._places.of, piece.outputs)
        read = (
            self._places.of(operand)
            for number, operand in enumerate(piece.inputs)
            if operand.kind == "value"
            and not (number == quantised.over and self._places.of(operand) == made)
        )
        over_another = any(map(made.overlaps, read))  # rows are read again
        return None if over_another else quantised

    def _decided(self, piece: Piece, found: Quantised | None) -> Piece:
        """Return ``piece`` as it runs."""
        if found is None:
            return piece
        by_rows = (
            isinstance(found, QuantisedTask)
            and found.rectangle is not None
            and self._is_whole(piece.inputs[0])
        )
        key = (piece.quantised, len(piece.inputs), by_rows)
        if key not in self._natives:
            self._natives[key] = self._able(found, len(piece.inputs), by_rows)
        scratch, native = self._natives[key]
        return NativePiece.of(piece, native, scratch)

    def _is_whole(self, operand: Operand) -> bool:
        """Return whether ``operand`` is an input as a request gives it: all of it, in this form."""
        as_given = operand.index, operand.dtype, operand.shape
        return operand.kind == "value" and operand.offset == 0 and as_given in self._inputs


# All kinds of kernels together.

_Sized = TypeVar("_Sized", Piece, JoinedPieces)


@dataclass(frozen=True)
class Abilities:
    """What a device can do beside loading pieces as they were compiled, as it works now.

    ``threads`` compute; None: as many as the compiler counted with. ``quantised``, ``chains``: what it
    decides of quantised layers and of operators on elements that it has kernels for. ``joins``: whether a
    serialised piece, whose values are floats of 32 bits, may be one of several in a session.
    ``scratch_bytes``: what its kernel of a serialised piece allocates, None where the pack says it.
    """

    threads: int | None = None
    quantised: NativeAbility | None = None
    chains: ChainAbility | None = None
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
    if able.quantised is not None:
        program = _with_natives(program, able.quantised)
    if able.chains is not None:
        program = with_chains(program, able.chains)
    program = _with_joins(program, able.joins)
    return program if able.scratch_bytes is None else _with_scratch(program, able.scratch_bytes)


def _with_threads(program: Program, threads: int) -> Program:
    """Return ``program`` with what plain convolutions allocate where ``threads`` threads compute."""

    def fit(item: _Sized) -> _Sized:
        if item.unrolled is None:
            return item
        return replace(item, scratch_bytes=unrolled_bytes(item.unrolled, threads))

    def on_rows(item: RowOperator) -> RowOperator:
        if item.unrolled is None:
            return item
        segments = min(item.unrolled.segments, threads)
        return replace(item, unrolled=replace(item.unrolled, segments=segments))

    rows = tuple(map(on_rows, program.row_operators))
    return replace(_changed(program, fit, fit), row_operators=rows)


def _with_joins(program: Program, joins: Callable[[bytes], bool]) -> Program:
    """Return ``program`` with the graphs that join others: with all of their pieces, or with none."""
    as_compiled = functools.cache(lambda number: joins(program.pack.graphs[number]))

    def can(item: Piece | JoinedPieces) -> bool:
        if isinstance(item, ChainPiece | ChainJoined):
            return item.chain.node_bytes is not None
        return not isinstance(item, NativePiece) and as_compiled(item.graph)

    items: list[Piece | JoinedPieces] = [*program.pieces]
    items += (each for alternative in program.alternatives for each in alternative.joined)
    by_graph: dict[int, bool] = {}
    for item in items:
        by_graph[item.graph] = by_graph.get(item.graph, True) and can(item)
    joining = frozenset(number for number, each in by_graph.items() if each)
    one_kernel = frozenset(number for number in joining if is_one(program.pack.graphs[number]))
    return replace(program, joins=joining, one_kernel=one_kernel)


def _with_scratch(program: Program, scratch_bytes: Callable[[bytes], int | None]) -> Program:
    """Return ``program`` with what kernels of the device allocate."""
    needed = functools.cache(lambda number: scratch_bytes(program.pack.graphs[number]))

    def fit(item: _Sized) -> _Sized:
        n_bytes = needed(item.graph)
        return item if n_bytes is None else replace(item, scratch_bytes=n_bytes)

    return _changed(program, fit, fit)


def _changed(
    program: Program,
    of_piece: Callable[[Piece], Piece],
    of_joined: Callable[[JoinedPieces], JoinedPieces],
) -> Program:
    """Return ``program`` with other pieces; what stays as it is are the same objects."""

    def alternative(item: Alternative) -> Alternative:
        joined = tuple(map(of_joined, item.joined))
        same = all(new is old for new, old in zip(joined, item.joined, strict=True))
        return item if same else replace(item, joined=joined)

    return replace(
        program,
        pieces=tuple(map(of_piece, program.pieces)),
        alternatives=tuple(map(alternative, program.alternatives)),
    )
