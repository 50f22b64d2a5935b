"""Which pieces of a program run: the finest, or several chunks of a layer joined to one kernel.

Fine pieces stream through little memory, coarse ones are faster; outputs are the same bits.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from models.packs.records.pieces import merged_operands
from pipeline.program.program import PreparedAlternative, PreparedJoin, PreparedPiece, Program

# Spans that are the same bytes of weights.bin: what layers share is there, and stays in memory, once.


class SameSpans:
    """Which spans of ``program`` are the same, in memory.

    Chunks of a layer may be joined: then their spans lie one behind the other. So those of a layer are the
    same as those of another one all together, or not at all, though the file may have some of them once.
    """

    def __init__(self, program: Program) -> None:
        self._spans = program.spans
        self._first = list(range(len(program.spans)))
        self._alike: dict[int, list[int]] = defaultdict(list)
        known: dict[tuple[int, ...], list[int]] = {}
        for own in _by_layer(program):
            places = tuple(self._spans[span].file_offset for span in own)
            for span, first in zip(own, known.setdefault(places, own), strict=True):
                self._first[span] = first
        for span, first in enumerate(self._first):
            self._alike[first].append(span)

    def first(self, span: int) -> int:
        """Return the number of the first one with the bytes of ``span``.

        Of spans that are joined, the first ones follow each other as they do.
        """
        return self._first[span]

    def n_bytes(self, spans: Iterable[int]) -> int:
        """Return what ``spans`` take in memory where the same ones are there once."""
        return sum(self._spans[span].length for span in set(map(self.first, spans)))

    def with_same(self, spans: Iterable[int]) -> tuple[int, ...]:
        """Return ``spans`` and all that are the same, in order."""
        firsts = set(map(self.first, spans))
        return tuple(sorted(span for first in firsts for span in self._alike[first]))


def shared_bytes(program: Program) -> int:
    """Return by how much all weights of layers are more than what they take in memory where they stay."""
    same = SameSpans(program)
    return sum(span.length for span in program.spans) - same.n_bytes(range(len(program.spans)))


def _by_layer(program: Program) -> Iterator[list[int]]:
    """Yield the spans of each layer."""
    for layer in program.layers:
        pieces = program.pieces[layer.first_piece : layer.end_piece]
        spans = (piece.span if piece.table_span is None else piece.table_span for piece in pieces)
        yield [span for span in spans if span is not None]


# How chunks of a layer become one piece, as an alternative says.


def joined_pieces(
    pieces: Sequence[PreparedPiece], alternative: PreparedAlternative
) -> Iterator[PreparedPiece]:
    """Yield the pieces of ``alternative``; ``pieces``: all of the network."""
    for join, run in _runs(pieces, alternative):
        first = run[0]
        yield first._replace(
            graph=join.graph,
            kernel=join.kernel,
            n_spans=join.n_chunks,
            inputs=merged_operands([piece.inputs for piece in run]),
            outputs=merged_operands([piece.outputs for piece in run]),
            scratch_bytes=max(join.scratch_bytes, *(piece.scratch_bytes for piece in run)),
        )


def _runs(
    pieces: Sequence[PreparedPiece], alternative: PreparedAlternative
) -> Iterator[tuple[PreparedJoin, Sequence[PreparedPiece]]]:
    """Yield the joined pieces of ``alternative``, each with those of ``pieces`` that it stands for."""
    first = alternative.first_piece
    for join in alternative.joined:
        yield join, pieces[first : first + join.n_chunks]
        first += join.n_chunks


# Pieces in chunks of a chosen size.

# What ONNX Runtime 1.32 takes for the binding of a piece: names, pointers, shapes. Measured 2.2 to 2.4 KB.
BINDING_BYTES = 2560


def choose_pieces(program: Program, chunk_bytes: int | None) -> tuple[PreparedPiece, ...]:
    """Return all pieces in execution order, each layer in the coarsest chunks of up to ``chunk_bytes``.

    Chunks are counted as they lie in weights.bin. None: the coarsest there are. A layer that has no such
    chunks runs in its finest ones.
    """
    merges = program.made(_ways)
    if chunk_bytes is not None:
        merges = [merge for merge in merges if merge.n_bytes <= chunk_bytes]
    replaced = {merge.pieces.start: merge for merge in merges}
    pieces: list[PreparedPiece] = []
    number = program.own.start
    while number < program.own.stop:
        way = replaced.get(number)
        if way is None:
            pieces.append(program.pieces[number])
            number += 1
        else:
            pieces.extend(way.joined)
            number = way.pieces.stop
    return tuple(pieces)


@dataclass(frozen=True)
class _Way:
    """Some of the ``finest`` pieces as ``alternative`` joins them; ``n_bytes``: of weights, the largest."""

    finest: tuple[PreparedPiece, ...]
    alternative: PreparedAlternative
    n_bytes: int

    @property
    def pieces(self) -> range:
        return range(self.alternative.first_piece, self.alternative.end_piece)

    @cached_property  # plans have few of all that there are
    def joined(self) -> tuple[PreparedPiece, ...]:
        return tuple(joined_pieces(self.finest, self.alternative))


def _ways(program: Program) -> list[_Way]:
    return [
        _Way(program.pieces, item, alternative_bytes(program, item))
        for item in program.alternatives
    ]


def finest_positions(program: Program, pieces: Iterable[PreparedPiece]) -> list[range]:
    """Return, for each of the chosen ``pieces``, the pieces of ``program`` that it stands for.

    A piece stands for as many as it has spans: only chunks are joined, and each of them has one.
    """
    counts = (piece.n_spans for piece in pieces)
    ends = itertools.accumulate(counts, initial=program.own.start)
    return [range(first, end) for first, end in itertools.pairwise(ends)]


def streamed_bytes(program: Program, piece: PreparedPiece) -> int:
    """Return the length of the spans of ``piece``, which must all be in the ring when it runs."""
    if piece.span is None:
        return 0
    return sum(span.length for span in program.spans[piece.span : piece.span + piece.n_spans])


def ring_bytes(program: Program, piece: PreparedPiece) -> int:
    """Return what ``piece`` needs of the ring: nothing where its weights stay."""
    stays = piece.span is None or program.spans[piece.span].resident
    return 0 if stays else streamed_bytes(program, piece)


def largest_unit_bytes(program: Program, pieces: Iterable[PreparedPiece]) -> int:
    """Return the streamed weights of the largest piece: the smallest ring that can run ``pieces``."""
    return max((streamed_bytes(program, piece) for piece in pieces), default=0)


def alternative_bytes(program: Program, alternative: PreparedAlternative) -> int:
    """Return the streamed weights of the largest piece of ``alternative``."""
    return max(
        sum(streamed_bytes(program, piece) for piece in run)
        for _, run in _runs(program.pieces, alternative)
    )


def chunk_sizes(program: Program) -> list[int]:
    """Return the limits, ascending, from each of which on ``choose_pieces`` joins more."""
    return sorted({way.n_bytes for way in program.made(_ways)})
