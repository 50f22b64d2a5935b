"""How chunks of a layer become one piece, as an alternative of a manifest says."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from models.packs.records.pieces import Alternative, JoinedPieces, Operand, Piece

#: Pieces that follow each other.
Run = Sequence[Piece]


def joined_pieces(pieces: Run, alternative: Alternative) -> Iterator[Piece]:
    """Yield those of ``alternative``, one for each of its ``joined``; ``pieces``: all of the network."""
    return (join(*item) for item in runs(pieces, alternative))


def runs(pieces: Run, alternative: Alternative) -> Iterator[tuple[JoinedPieces, Run]]:
    """Yield each of the joined pieces of ``alternative`` with those of ``pieces`` that it stands for."""
    first = alternative.first_piece
    for part in alternative.joined:
        yield part, pieces[first : first + part.n_chunks]
        first += part.n_chunks


def join(part: JoinedPieces, run: Run) -> Piece:
    """Return ``run`` as the one piece that ``part`` says."""
    first = run[0]
    return Piece(
        graph=part.graph,
        span=first.span,
        n_spans=part.n_chunks,
        inputs=_joined_operands([piece.inputs for piece in run]),
        outputs=_joined_operands([piece.outputs for piece in run]),
        scratch_bytes=max(part.scratch_bytes, *(piece.scratch_bytes for piece in run)),
        unrolled=first.unrolled,
        elementwise=part.elementwise,
    )


def _joined_operands(operands: Sequence[tuple[Operand, ...]]) -> tuple[Operand, ...]:
    return tuple(_joined_operand(column) for column in zip(*operands, strict=True))


def _joined_operand(parts: Sequence[Operand]) -> Operand:
    """Return the one range that ``parts`` make together: all the same one, or one after the other."""
    first = parts[0]
    axis = channel_axis(first)
    if axis is None or all(part == first for part in parts):
        return first
    channels = sum(part.shape[axis] for part in parts)
    shape = (*first.shape[:axis], channels, *first.shape[axis + 1 :])
    return replace(first, shape=shape)


def channel_axis(operand: Operand) -> int | None:
    """Return the axis along which ranges that follow each other are one array: the first above 1."""
    return next((axis for axis, length in enumerate(operand.shape) if length > 1), None)
