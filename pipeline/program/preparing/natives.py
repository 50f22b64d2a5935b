"""Which quantised pieces kernels of the device compute, and what they take there.

What each piece computes the compiler has said (``Piece.quantised``).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from models.network.operators.quantised import Quantised, QuantisedTask
from models.packs.records.pieces import Operand, Piece
from pipeline.program.decided import Native, NativePiece
from pipeline.program.program import Program
from pipeline.program.values.shared_memory import roots


class NativeAbility(Protocol):
    """What a device says of the quantised layers of one network."""

    def natives(self, found: Sequence[Quantised]) -> "Natives":
        """Return what it says of them; ``found``: all that it is to compute."""
        ...


class Natives(Protocol):
    """What kernels of a device take for quantised layers of one network."""

    def native(self, found: Quantised, n_inputs: int, by_rows: bool) -> tuple[int, Native]:
        """Return what ``found`` allocates while it runs, and the rest that is decided of it.

        ``by_rows``: its first input is one as a request gives it.
        """
        ...


def with_natives(program: Program, able: NativeAbility) -> Program:
    """Return ``program`` with the pieces that kernels of the device compute."""
    if not program.quantised:
        return program
    return replace(program, pieces=_Decision(program, able).pieces())


class _Decision:
    """Decides about ``program``."""

    def __init__(self, program: Program, able: NativeAbility) -> None:
        self._program = program
        self._roots = roots(program)
        self._inputs = {(port.value, port.dtype, port.shape) for port in program.inputs}
        self._found = [self._task(piece) for piece in program.pieces]
        self._able = able.natives([each for each in self._found if each is not None])
        # By number of the task, of inputs, and whether these are taken by rows.
        self._natives: dict[tuple[int | None, int, bool], tuple[int, Native]] = {}

    def pieces(self) -> tuple[Piece, ...]:
        return tuple(map(self._decided, self._program.pieces, self._found))

    def _task(self, piece: Piece) -> Quantised | None:
        """Return what kernels of the device compute; None: a session does."""
        if piece.quantised is None:
            return None
        found = self._program.quantised[piece.quantised]
        (made,) = map(self._place, piece.outputs)
        read = (
            self._place(operand)
            for number, operand in enumerate(piece.inputs)
            if operand.kind == "value"
            and not (number == found.over and self._place(operand) == made)
        )
        # Rows are read again.
        over_another = any(
            made[0] == other[0] and made[1] < other[2] and other[1] < made[2] for other in read
        )
        return None if over_another else found

    def _place(self, operand: Operand) -> tuple[int, int, int]:
        """Return the value whose memory an operand lies in, its first byte there, and its end."""
        root, offset = self._roots[operand.index]
        start = offset + operand.offset
        return root, start, start + operand.n_bytes

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
            self._natives[key] = self._able.native(found, len(piece.inputs), by_rows)
        scratch, native = self._natives[key]
        return NativePiece.of(piece, native, scratch)

    def _is_whole(self, operand: Operand) -> bool:
        """Return whether ``operand`` is an input as a request gives it: all of it, in this form."""
        as_given = operand.index, operand.dtype, operand.shape
        return operand.kind == "value" and operand.offset == 0 and as_given in self._inputs
