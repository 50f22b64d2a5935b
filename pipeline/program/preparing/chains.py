"""Which programs of operators on elements run in one pass, and what they take there.

Pieces and the row operators that make the same have it all, or none: the same bits whole and on rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from models.network.fields import Array
from models.packs.records.pieces import (
    Alternative,
    ElementProgram,
    Elementwise,
    JoinedPieces,
    Operand,
    Piece,
    joined_pieces,
)
from models.packs.records.row_parts import RowOperator
from pipeline.program.decided import ChainJoined, ChainPiece, NativeChain, NativePiece
from pipeline.program.program import Program
from pipeline.program.values.shared_memory import roots

Shape = tuple[int, ...]
#: Tells what a device decides of a program on arrays of these shapes: what it reads, then what it makes.
#: None: it does not run it in one pass.
ChainAbility = Callable[[ElementProgram, tuple[Shape, ...]], NativeChain | None]


def with_chains(program: Program, able: ChainAbility) -> Program:
    """Return ``program`` with what the device runs in one pass."""
    if program.target.capability is not None or not program.programs:
        return program  # what a GPU does not run has sessions
    return _Decision(program, able).program()


class _Decision:
    """Decides about ``whole``."""

    def __init__(self, whole: Program, able: ChainAbility) -> None:
        self._whole = whole
        self._able = able
        self._roots = roots(whole)
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
        """Return what is decided of a program on ``arrays``: what it reads, then what it makes."""
        key = item.program, tuple(array.shape for array in arrays)
        if key not in self._known:
            self._known[key] = self._able(self._whole.programs[item.program], key[1])
        return self._known[key]

    def _apart(self, one: Operand, other: Operand) -> bool:
        """Return whether two operands are the same memory, or have none in common."""
        if one.kind != other.kind:
            return True
        first, second = self._place(one), self._place(other)
        return first == second or first[0] != second[0] or not _overlap(first, second)

    def _place(self, operand: Operand) -> tuple[int, int, int]:
        """Return the value whose memory an operand lies in, its first byte there, and its end."""
        if operand.kind == "span":
            return operand.index, operand.offset, operand.offset + operand.n_bytes
        root, offset = self._roots[operand.index]
        return root, offset + operand.offset, offset + operand.offset + operand.n_bytes


def _making_the_same(operators: Sequence[RowOperator]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield pieces, first and end, and the numbers of the row operators that make the same."""
    numbered = enumerate(operators)
    for (first, end), group in groupby(
        numbered, lambda item: (item[1].first_piece, item[1].end_piece)
    ):
        yield first, end, [number for number, _ in group]


def _overlap(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    return one[1] < other[2] and other[1] < one[2]
