"""The one decision which pieces and row operators of a pack run in one pass, and what they take there.

Invariant: the ``chain`` of pieces, finest or joined, and of row operators is what plans count and what
binding does. Pieces and the row operators that make the same have it all, or none: the same bits whole and
on rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from models.packs.choice import joined_pieces
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.packs.records.decided import Chain
from models.packs.records.pieces import Alternative, Operand, Piece
from models.packs.records.rows import RowOperator
from pipeline.devices.elementwise.job_session import JOB_BYTES
from pipeline.devices.elementwise.of_pack import PackPrograms, Ports, ports, row_ports
from pipeline.devices.elementwise.operator_node import Shape, chain_model, strides_of
from pipeline.devices.elementwise.programs import WORTH_SHARING, Program, code_of
from pipeline.program.values.shared_memory import roots

# What a launch of the library takes beside arrays: its structures, and what Python has around them.
# Measured 1.1 KB.
_BOUND_BYTES = 2 << 10
# A session with one chain, beside its message. Measured 24 to 27 KB.
_SESSION_BYTES = 34 << 10
_FLOATS = "float32"


def with_chains(pack: Pack, are_sessions: bool) -> Pack:
    """Return ``pack`` with ``chain`` of what runs in one pass.

    ``are_sessions``: ONNX Runtime's threads compute long chains, and those in one launch with others.
    """
    if pack.manifest.target.capability is not None:
        return pack  # what a GPU does not run has sessions
    return replace(pack, manifest=_Decision(pack, are_sessions).manifest())


class _Decision:
    """Decides about ``pack``."""

    def __init__(self, pack: Pack, are_sessions: bool) -> None:
        self._manifest: Manifest = pack.manifest
        self._programs = PackPrograms(pack.manifest, pack.graphs)
        self._are_sessions = are_sessions
        self._roots = roots(pack.manifest)
        self._numbers: dict[object, int] = {}

    def manifest(self) -> Manifest:
        """Return the manifest with what was decided of each piece, finest or joined, and row operator."""
        manifest = self._manifest
        pieces = [replace(piece, chain=self._of_piece(piece)) for piece in manifest.pieces]
        operators = [
            replace(item, chain=self._of_operator(number, item))
            for number, item in enumerate(manifest.row_operators)
        ]
        for first, end, numbers in _making_the_same(operators):
            chains = [each.chain for each in pieces[first:end]]
            chains += [operators[number].chain for number in numbers]
            if None in chains:
                pieces[first:end] = [replace(each, chain=None) for each in pieces[first:end]]
                for number in numbers:
                    operators[number] = replace(operators[number], chain=None)
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
        all_have = all(piece.chain for piece in finest[given.first_piece : given.end_piece])
        whole = joined_pieces(self._manifest, given)
        joined = (
            replace(item, chain=self._of_piece(piece) if all_have else None)
            for item, piece in zip(given.joined, whole, strict=True)
        )
        return replace(given, joined=tuple(joined))

    def _of_piece(self, piece: Piece) -> Chain | None:
        program = None if piece.native is not None else self._programs.piece(piece)
        if program is None:
            return None
        names = ports(piece)
        used = dict(zip((*names[0], *names[1]), (*piece.inputs, *piece.outputs), strict=True))
        results = [used[name] for name in program.results]
        read = [used[name] for name in program.inputs]
        if any(operand.dtype != _FLOATS or operand.is_loose for operand in (*read, *results)):
            return None
        if not all(self._apart(made, other) for made in results for other in (*read, *results)):
            return None
        return self._chain(program, names, {name: item.shape for name, item in used.items()})

    def _of_operator(self, number: int, item: RowOperator) -> Chain | None:
        program = self._programs.row_operator(number)
        if program is None:
            return None
        values = self._manifest.row_values
        held = (
            *(values[taken.row_value] for taken in item.inputs),
            *item.weights,
            values[item.output],
        )
        names = row_ports(item)
        shapes = {
            name: array.shape for name, array in zip((*names[0], *names[1]), held, strict=True)
        }
        if any(array.dtype != _FLOATS for array in held):
            return None
        return self._chain(program, names, shapes)

    def _chain(self, program: Program, names: Ports, shapes: dict[str, Shape]) -> Chain | None:
        """Return what is decided of ``program``, where ports ``names`` have ``shapes``."""
        made = sorted(program.results)
        whole = next((shapes[name] for name in made), ())
        if any(strides_of(shapes[name], whole) is None for name in (*program.inputs, *made)):
            return None
        number = self._numbers.setdefault(code_of(program), len(self._numbers))
        model = chain_model(program, shapes) if made and self._are_sessions else None
        return Chain(
            program=number,
            reads=tuple(names[0].index(name) for name in program.inputs),
            makes=tuple(names[1].index(name) for name in made),
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


def _making_the_same(operators: Sequence[RowOperator]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield pieces, first and end, and the numbers of the row operators that make the same."""
    numbered = enumerate(operators)
    for (first, end), group in groupby(
        numbered, lambda item: (item[1].first_piece, item[1].end_piece)
    ):
        yield first, end, [number for number, _ in group]


def _overlap(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    return one[1] < other[2] and other[1] < one[2]
