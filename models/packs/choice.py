"""Which pieces of a pack run: the finest, or several chunks of a layer joined to one kernel.

Fine pieces stream through little memory, coarse ones are faster; outputs are the same bits.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from models.packs.manifest import Manifest
from models.packs.records.pieces import Alternative, Joined, Operand, Piece

# What ONNX Runtime 1.32 takes for the binding of a piece: names, pointers, shapes. Measured 2.2 to 2.4 KB.
BINDING_BYTES = 2560

Run = Sequence[Piece]
#: (piece, bytes), ascending: from that piece of the manifest on chunks have up to so many bytes.
LaterChunks = Sequence[tuple[int, int]]


def choose_pieces(
    manifest: Manifest, chunk_bytes: int | None, later: LaterChunks = ()
) -> tuple[Piece, ...]:
    """Return all pieces in execution order, each layer in the coarsest chunks of up to ``chunk_bytes``.

    ``later``: layers from a piece on have another limit. Chunks are counted as they lie in weights.bin.
    None: the coarsest there are. A layer that has no such chunks runs in its finest ones.
    """
    starts = [piece for piece, _ in later]
    limits = [chunk_bytes, *(n_bytes for _, n_bytes in later)]

    def fits(way: "_Way") -> bool:
        limit = limits[bisect_right(starts, way.pieces.start)]
        return limit is None or way.n_bytes <= limit

    return _with_ways(manifest, filter(fits, _ways(_Same(manifest))))


def with_alternatives(manifest: Manifest, chosen: Iterable[Alternative]) -> tuple[Piece, ...]:
    """Return all pieces in execution order, joined as ``chosen`` say; of one run the last one counts."""
    return _with_ways(manifest, (_Way.of(manifest, alternative) for alternative in chosen))


def _with_ways(manifest: Manifest, chosen: Iterable["_Way"]) -> tuple[Piece, ...]:
    replaced = {way.pieces.start: way for way in chosen}
    pieces: list[Piece] = []
    number = 0
    while number < len(manifest.pieces):
        way = replaced.get(number)
        if way is None:
            pieces.append(manifest.pieces[number])
            number += 1
        else:
            pieces.extend(way.joined)
            number = way.pieces.stop
    return tuple(pieces)


@dataclass(frozen=True, slots=True)
class _Way:
    """``pieces`` of the manifest as those ``joined``, the largest of which has ``n_bytes`` of weights."""

    pieces: range
    joined: tuple[Piece, ...]
    n_bytes: int

    @classmethod
    def of(cls, manifest: Manifest, item: Alternative) -> Self:
        pieces = range(item.first_piece, item.end_piece)
        return cls(pieces, tuple(joined_pieces(manifest, item)), alternative_bytes(manifest, item))


class _Same:
    """A manifest; equal to any other of the same object."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.manifest is self.manifest

    def __hash__(self) -> int:
        return id(self.manifest)


@lru_cache(maxsize=2)  # planners ask for hundreds of choices of a model
def _ways(key: _Same) -> list[_Way]:
    return [_Way.of(key.manifest, item) for item in key.manifest.alternatives]


def forget_choices() -> None:
    """Let go of what was joined for the manifests that were asked about last."""
    _ways.cache_clear()


def every_piece(manifest: Manifest) -> Iterator[Piece]:
    """Yield the finest pieces, then all that they can be joined to."""
    yield from manifest.pieces
    for alternative in manifest.alternatives:
        yield from joined_pieces(manifest, alternative)


def joined_pieces(manifest: Manifest, alternative: Alternative) -> Iterator[Piece]:
    """Yield the pieces of ``alternative``, one for each of its ``joined``."""
    return (_join(*item) for item in _runs(manifest, alternative))


def _runs(manifest: Manifest, alternative: Alternative) -> Iterator[tuple[Joined, Run]]:
    """Yield each of the joined pieces with those that it stands for."""
    first = alternative.first_piece
    for part in alternative.joined:
        yield part, manifest.pieces[first : first + part.n_chunks]
        first += part.n_chunks


def _join(part: Joined, run: Run) -> Piece:
    return replace(
        run[0],
        graph=part.graph,
        n_spans=part.n_chunks,
        inputs=_joined_operands([piece.inputs for piece in run]),
        outputs=_joined_operands([piece.outputs for piece in run]),
        scratch_bytes=max(part.scratch_bytes, scratch_bytes(run)),
        elementwise=part.elementwise,
        chain=part.chain,
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


def finest_positions(pieces: Iterable[Piece]) -> list[range]:
    """Return, for each of the chosen ``pieces``, the manifest's pieces that it stands for.

    A piece stands for as many as it has spans: only chunks are joined, and each of them has one.
    """
    ends = itertools.accumulate((piece.n_spans for piece in pieces), initial=0)
    return [range(first, end) for first, end in itertools.pairwise(ends)]


def streamed_bytes(manifest: Manifest, piece: Piece) -> int:
    """Return the length of the spans of ``piece``, which must all be in the ring when it runs."""
    if piece.span is None:
        return 0
    return sum(span.length for span in manifest.spans[piece.span : piece.span + piece.n_spans])


def largest_unit_bytes(manifest: Manifest, pieces: Iterable[Piece]) -> int:
    """Return the streamed weights of the largest piece: the smallest ring that can run ``pieces``."""
    return max((streamed_bytes(manifest, piece) for piece in pieces), default=0)


def alternative_bytes(manifest: Manifest, alternative: Alternative) -> int:
    """Return the streamed weights of the largest piece of ``alternative``."""
    return max(
        sum(streamed_bytes(manifest, piece) for piece in run)
        for _, run in _runs(manifest, alternative)
    )


def scratch_bytes(pieces: Iterable[Piece]) -> int:
    """Return what any one of ``pieces`` allocates at most while it runs."""
    return max((piece.scratch_bytes for piece in pieces), default=0)


def chunk_sizes(manifest: Manifest) -> list[int]:
    """Return the limits, ascending, from each of which on ``choose_pieces`` joins more."""
    return sorted({way.n_bytes for way in _ways(_Same(manifest))})
