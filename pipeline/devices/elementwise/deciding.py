"""The one decision which programs of a pack run in one pass on a device, and what they take there.

Invariant: the ``chain`` of pieces, finest or joined, and of row operators is what plans count and what
binding does. Pieces and the row operators that make the same have it all, or none: the same bits whole and
on rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from models.network.fields import Array
from models.packs.choice import joined_pieces
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.packs.records.decided import Chain
from models.packs.records.pieces import Alternative, Joined, Operand, Piece
from models.packs.records.programs import Elementwise
from models.packs.records.rows import RowOperator
from pipeline.devices.elementwise.job_session import JOB_BYTES
from pipeline.devices.elementwise.operator_node import Shape, chain_model, strides_of
from pipeline.devices.elementwise.programs import WORTH_SHARING, native_program
from pipeline.program.values.shared_memory import roots

# What a launch of the library takes beside arrays: its structures, and what Python has around them.
# Measured 1.1 KB.
_BOUND_BYTES = 2 << 10
# A session with one chain, beside its message. Measured 24 to 27 KB.
_SESSION_BYTES = 34 << 10

_Decided = TypeVar("_Decided", Piece, Joined, RowOperator)


def with_chains(pack: Pack, are_sessions: bool) -> Pack:
    """Return ``pack`` with ``chain`` of what runs in one pass.

    ``are_sessions``: ONNX Runtime's threads compute long chains, and those in one launch with others.
    """
    if pack.manifest.target.capability is not None or not pack.manifest.programs:
        return pack  # what a GPU does not run has sessions
    return replace(pack, manifest=_Decision(pack, are_sessions).manifest())


class _Decision:
    """Decides about ``pack``."""

    def __init__(self, pack: Pack, are_sessions: bool) -> None:
        self._manifest: Manifest = pack.manifest
        self._programs = [native_program(program) for program in pack.manifest.programs]
        self._are_sessions = are_sessions
        self._roots = roots(pack.manifest)
        self._known: dict[tuple[int, tuple[Shape, ...]], Chain | None] = {}

    def manifest(self) -> Manifest:
        """Return the manifest with what was decided of each piece, finest or joined, and row operator."""
        manifest = self._manifest
        pieces = [_with(piece, self._of_piece(piece)) for piece in manifest.pieces]
        operators = [_with(item, self._of_operator(item)) for item in manifest.row_operators]
        for first, end, numbers in _making_the_same(operators):
            chains = [each.chain for each in pieces[first:end]]
            chains += [operators[number].chain for number in numbers]
            if None in chains:
                pieces[first:end] = [_with(each, None) for each in pieces[first:end]]
                for number in numbers:
                    operators[number] = _with(operators[number], None)
        alternatives = (self._alternative(item, pieces) for item in manifest.alternatives)
        return manifest.model_copy(
            update={
                "pieces": tuple(pieces),
                "row_operators": tuple(operators),
                "alternatives": tuple(alternatives),
            }
        )

    def _alternative(self, given: Alternative, finest: Sequence[Piece]) -> Alternative:
        """Return ``given`` with what was decided of its pieces: nothing where the ``finest`` have none."""
        if not all(piece.chain for piece in finest[given.first_piece : given.end_piece]):
            return given
        whole = joined_pieces(self._manifest, given)
        joined = (
            _with(item, self._of_piece(piece))
            for item, piece in zip(given.joined, whole, strict=True)
        )
        return replace(given, joined=tuple(joined))

    def _of_piece(self, piece: Piece) -> Chain | None:
        item = piece.elementwise
        if item is None or piece.native is not None:
            return None
        read, made = item.ports(piece.inputs, piece.outputs)
        if not all(self._apart(one, other) for one in made for other in (*read, *made)):
            return None
        return self._chain(item, (*read, *made))

    def _of_operator(self, operator: RowOperator) -> Chain | None:
        item, values = operator.elementwise, self._manifest.row_values
        if item is None:
            return None
        inputs = [values[taken.row_value] for taken in operator.inputs]
        read, made = item.ports([*inputs, *operator.weights], [values[operator.output]])
        return self._chain(item, (*read, *made))

    def _chain(self, item: Elementwise, arrays: Sequence[Array]) -> Chain | None:
        """Return what is decided of a program on ``arrays``: what it reads, then what it makes."""
        key = item.program, tuple(array.shape for array in arrays)
        if key not in self._known:
            self._known[key] = self._decided(*key)
        return self._known[key]

    def _decided(self, number: int, shapes: tuple[Shape, ...]) -> Chain | None:
        program = self._programs[number]
        if program is None:
            return None
        made = shapes[program.n_inputs :]
        if made and any(strides_of(shape, made[0]) is None for shape in shapes):
            return None
        model = chain_model(program, shapes) if made and self._are_sessions else None
        return Chain(
            bound_bytes=_BOUND_BYTES,
            shared_elements=WORTH_SHARING if self._are_sessions else None,
            together_bytes=JOB_BYTES if self._are_sessions else 0,
            node_bytes=None if model is None else _SESSION_BYTES + 2 * len(model),
        )

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


def _with(item: _Decided, chain: Chain | None) -> _Decided:
    """Return ``item`` with what was decided; most have nothing, and stay what they are."""
    return item if chain is item.chain else replace(item, chain=chain)


def _making_the_same(operators: Sequence[RowOperator]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield pieces, first and end, and the numbers of the row operators that make the same."""
    numbered = enumerate(operators)
    for (first, end), group in groupby(
        numbered, lambda item: (item[1].first_piece, item[1].end_piece)
    ):
        yield first, end, [number for number, _ in group]


def _overlap(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    return one[1] < other[2] and other[1] < one[2]
