"""Plans of a network in partitions that compute at once, each on a core of its own (seed 000, Section 2.2).

Each partition is planned as a network of its own, by arithmetic: a profile is of the whole network,
with the whole machine. It says where to cut, where it was measured with one thread.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from pipeline.fitting.fit import fit
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.wanted import LEAST, PlanResult, Wanted
from pipeline.planning.estimates import LAUNCH_SECONDS
from pipeline.planning.plan import BUFFERS, Plan, PlanError, partitioned
from pipeline.planning.words import brief
from pipeline.profiles.profile import Profile
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture

# Of cuts whose slowest partition is within this of the best one, the one where least crosses is taken.
_ALIKE = 1.02

#: What a partition from one edge to another costs; infinite where there must be none.
_Cost = Callable[[int, int], float]


def fit_partitions(
    program: Program,
    architecture: Architecture,
    partitions: int,
    total_bytes: int | None = None,
    profile: Profile | None = None,
) -> PlanResult:
    """Return the plan of ``program`` in so many partitions within ``total_bytes``; None: the smallest.

    The smallest also where ``total_bytes`` are too few.

    Raises:
        PlanError: it cannot be cut into so many.
    """
    seconds = _piece_seconds(program, profile)
    places = Cuts(program)
    cuts = _balanced(places, program, seconds, partitions)
    edges = [places.edge_bytes(cut) for cut in cuts]
    parts = places.parts(cuts)
    plans = [fit(part, architecture, LEAST).plan for part in parts]
    if total_bytes is not None:
        plans = _within(parts, architecture, plans, total_bytes - BUFFERS * sum(edges))
    plan = partitioned(plans, cuts, edges)
    reason = _reason(cuts, partition_seconds(seconds, cuts), edges, profile is not None)
    return PlanResult(plan, reasons=(reason,))


def balanced_cuts(
    program: Program, partitions: int, profile: Profile | None = None
) -> tuple[int, ...]:
    """Return the pieces before which partitions begin that take about the same time.

    Raises:
        PlanError: it cannot be cut into so many.
    """
    return _balanced(Cuts(program), program, _piece_seconds(program, profile), partitions)


def _piece_seconds(program: Program, profile: Profile | None) -> list[float]:
    times = Predictions.of(program, profile).estimates.times
    return [LAUNCH_SECONDS + seconds for seconds in times.pieces]


def _balanced(
    places: Cuts, program: Program, seconds: Sequence[float], partitions: int
) -> tuple[int, ...]:
    crossing = [places.edge_bytes(place) for place in places.places]
    chosen = balanced(seconds, places.places, crossing, partitions)
    if chosen is None:
        pieces = len(program.pieces)
        raise PlanError(
            f"{program.name}: cannot be cut into {partitions} partitions: of its {pieces} pieces "
            f"{len(places.places) + 1 if pieces else 0} may begin one; a cut lies between layers, where "
            "tensors of known size cross"
        )
    return chosen


def _within(
    parts: Sequence[Program], architecture: Architecture, least: Sequence[Plan], n_bytes: int
) -> list[Plan]:
    """Return the best plans that take ``n_bytes`` together; what one leaves is there for the next."""
    free = n_bytes - sum(plan.total_bytes for plan in least)
    plans = []
    for number, (part, smallest) in enumerate(zip(parts, least, strict=True)):
        room = smallest.total_bytes + max(free, 0) // (len(parts) - number)
        plan = fit(part, architecture, Wanted(total_bytes=room)).plan
        free -= plan.total_bytes - smallest.total_bytes
        plans.append(plan)
    return plans


def _reason(
    cuts: Sequence[int], seconds: Sequence[float], edges: Sequence[int], measured: bool
) -> str:
    total = sum(seconds) or 1.0
    parts = ", ".join(f"{100 * each / total:.0f} %" for each in seconds)
    by = "by the profile" if measured else "by multiplications and bytes"
    places = ", ".join(map(str, cuts))
    crossing = ", ".join(map(brief, edges))
    return (
        f"{len(seconds)} partitions, cut before piece {places}: {parts} of the time {by}; "
        f"{crossing} cross, in {BUFFERS} buffers"
    )


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
