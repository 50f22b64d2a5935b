"""Where to cut a network so that its partitions take about the same time: pure."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

# Of cuts whose slowest partition is within this of the best one, the one where least crosses is taken.
_ALIKE = 1.02

#: What a partition from one edge to another costs; infinite where there must be none.
_Cost = Callable[[int, int], float]


def balanced(
    seconds: Sequence[float], places: Sequence[int], crossing: Sequence[int], partitions: int
) -> tuple[int, ...] | None:
    """Return the ``places`` that cut ``seconds`` of pieces into so many ``partitions``; None: too few.

    The slowest partition takes the least time; of alike ones those where the fewest bytes of ``crossing``,
    of each place, cross.
    """
    edges = (0, *places, len(seconds))
    if partitions > len(edges) - 1:
        return None
    total = [0.0]
    for each in seconds:
        total.append(total[-1] + each)
    crosses = (0, *crossing, 0)

    def took(first: int, end: int) -> float:
        return total[edges[end]] - total[edges[first]]

    def crossed(first: int, end: int) -> float:
        return crosses[end] if took(first, end) <= _ALIKE * least else math.inf

    least, _ = _cheapest(len(edges), partitions, took, max)
    _, chosen = _cheapest(len(edges), partitions, crossed, lambda one, other: one + other)
    return tuple(edges[edge] for edge in chosen)


def partition_seconds(seconds: Sequence[float], cuts: Sequence[int]) -> list[float]:
    """Return what each partition takes where pieces take ``seconds`` and the network is cut at ``cuts``."""
    return [sum(seconds[first:end]) for first, end in pairwise((0, *cuts, len(seconds)))]


def _cheapest(
    count: int, partitions: int, cost: _Cost, together: Callable[[float, float], float]
) -> tuple[float, tuple[int, ...]]:
    """Return the least cost of ``partitions`` from edge 0 to edge ``count`` - 1, and the edges between."""
    best: list[tuple[float, tuple[int, ...]]] = [
        (cost(0, end) if end else math.inf, ()) for end in range(count)
    ]
    for _ in range(partitions - 1):
        best = [
            min(
                (
                    (together(best[cut][0], cost(cut, end)), (*best[cut][1], cut))
                    for cut in range(1, end)
                ),
                default=(math.inf, ()),
            )
            for end in range(count)
        ]
    return best[-1]
