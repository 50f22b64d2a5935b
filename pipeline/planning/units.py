"""Weights that come and go together: of one piece, or of all layers of a region."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipeline.program.program import Program
from pipeline.program.steps import Step, in_arena, units


@dataclass(frozen=True, slots=True)
class Unit:
    """The streamed weights of ``steps``: ``spans`` of ``length`` bytes, and ``stored`` in the file.

    ``offset``: where they are among all weights. ``in_arena``: they lie there while these run, and not in
    the ring.
    """

    steps: range
    spans: range
    offset: int
    length: int
    stored: int
    in_arena: bool = False


def streamed_units(
    program: Program, steps: Sequence[Step], kept: Collection[int]
) -> tuple[Unit, ...]:
    """Return the weights of ``steps`` that are streamed where the spans ``kept`` are resident."""
    spans = program.spans
    return tuple(
        Unit(
            users,
            own,
            spans[own.start].offset,
            sum(spans[i].length for i in own),
            sum(spans[i].file_length for i in own),
            in_arena(steps[users.start]),
        )
        for users, own in units(steps)
        if own and not all(span in kept for span in own)
    )
