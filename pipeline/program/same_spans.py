"""Spans that are the same bytes of weights.bin: what layers share is there, and stays in memory, once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from pipeline.program.program import Program


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
        found = set(map(self.first, spans))
        return tuple(sorted(span for first in found for span in self._alike[first]))


def shared_bytes(program: Program) -> int:
    """Return by how much all weights of layers are more than what they take in memory where they stay."""
    same = SameSpans(program)
    return sum(span.length for span in program.spans) - same.n_bytes(range(len(program.spans)))


def _by_layer(program: Program) -> Iterator[list[int]]:
    """Yield the spans of each layer."""
    for layer in program.layers:
        pieces = program.pieces[layer.first_piece : layer.end_piece]
        yield [piece.span for piece in pieces if piece.span is not None]
