"""A limit of activations, divided between arena and scratch: each has a largest moment of its own."""

from dataclasses import dataclass

from pipeline.planning.spaced_sizes import spaced
from pipeline.program.program import Program
from pipeline.program.row_network import RowNetwork

# Sizes of scratch that differ by less are one.
_RATIO = 2.0
_MOST_LIMITS = 4
_ARENAS = 14


@dataclass(frozen=True)
class ArenaLimit:
    """At most ``arena_bytes`` of an arena, where the pieces ``never_whole`` run in regions."""

    arena_bytes: int
    never_whole: frozenset[int]


def arena_limits(program: Program, network: RowNetwork, most: int) -> list[ArenaLimit]:
    """Return ways to divide ``most`` bytes of activations, first that in which every piece may run whole.

    Pieces that run whole may need scratch (those of several nodes keep in it what is between them), in a
    region they do not. For a few sizes of scratch, pieces that need more are kept in regions if they can
    run there; the arena may have what such scratch leaves.
    """
    scratch = {number: program.pieces[number].scratch_bytes for number in program.own}
    fixed = max(
        (n_bytes for piece, n_bytes in scratch.items() if piece not in network.covered),
        default=0,
    )
    sizes = spaced(
        sorted({fixed, *(n_bytes for n_bytes in scratch.values() if n_bytes > fixed)}), _RATIO
    )
    kept = [*sizes[: _MOST_LIMITS - 1], max(fixed, *scratch.values())]
    return [
        ArenaLimit(
            max(most - size, 0),
            frozenset(
                piece
                for piece, n_bytes in scratch.items()
                if n_bytes > size and piece in network.covered
            ),
        )
        for size in sorted(set(kept), reverse=True)
    ]


def arenas(least: int, most: int) -> list[int]:
    """Return arenas to try, from ``least`` to ``most`` bytes in even ratios; or it alone."""
    if least >= most:
        return [least]
    return [round(least * (most / least) ** (step / (_ARENAS - 1))) for step in range(_ARENAS)]
