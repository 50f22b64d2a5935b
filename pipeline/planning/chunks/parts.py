"""Chunks of other sizes in other parts of a network: fine where the ring drains fast, coarse elsewhere."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from pipeline.planning.plan import Choice
from pipeline.program.program import Program

# Parts of about as many bytes of weights each.
_PARTS = 8


class PartChunks:
    """Changes the chunks of parts of ``program`` among ``sizes``, ascending."""

    def __init__(self, program: Program, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._starts = part_starts(program)

    def changed(self, choice: Choice) -> Iterator[Choice]:
        """Yield ``choice`` with every other size of chunks in each part."""
        limits = self._limits(choice)
        for part, limit in enumerate(limits):
            for size in self._sizes:
                if size != limit:
                    yield self._with(choice, [*limits[:part], size, *limits[part + 1 :]])

    def _limits(self, choice: Choice) -> list[int]:
        """Return the limit of each part."""
        starts = [piece for piece, _ in choice.later_chunks]
        limits = [choice.chunk_bytes or 0, *(n_bytes for _, n_bytes in choice.later_chunks)]
        return [limits[bisect_right(starts, start)] for start in self._starts]

    def _with(self, choice: Choice, limits: Sequence[int]) -> Choice:
        later = tuple(
            (start, limit)
            for start, (before, limit) in zip(self._starts[1:], pairwise(limits), strict=True)
            if limit != before
        )
        return replace(choice, chunk_bytes=limits[0], later_chunks=later)


def part_starts(program: Program) -> list[int]:
    """Return the first piece of each part; none begins within a layer."""
    inside = {
        piece
        for item in program.alternatives
        for piece in range(item.first_piece + 1, item.end_piece)
    }
    total = sum(span.length for span in program.spans if not span.resident)
    starts, passed = [program.own.start], 0
    for number in program.own:
        piece = program.pieces[number]
        if number not in inside and passed * _PARTS >= total * len(starts) > 0:
            starts.append(number)
        if piece.span is not None:
            spans = program.spans[piece.span : piece.span + piece.n_spans]
            passed += sum(span.length for span in spans if not span.resident)
    return starts
