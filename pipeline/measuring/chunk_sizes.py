"""Which sizes of chunks to run so that every kernel that a plan can choose has run."""

from pipeline.profiles.keys import piece_key
from pipeline.program.choice import choose_pieces, chunk_sizes
from pipeline.program.program import Program


def chunk_levels(program: Program) -> list[int]:
    """Return limits for ``choose_pieces`` that together choose every piece there is, ascending.

    Few of them (greedily, the one with the most new pieces first); 0 means the finest chunks.
    """
    chosen = {
        limit: {piece_key(piece) for piece in choose_pieces(program, limit)}
        for limit in (0, *chunk_sizes(program))
    }
    missing = set[str]().union(*chosen.values())
    levels = []
    while missing:
        best = max(chosen, key=lambda limit: len(chosen[limit] & missing))
        levels.append(best)
        missing -= chosen[best]
    return sorted(levels) or [0]
