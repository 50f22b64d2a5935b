"""The plan of ``auto``: ring, chunks, reads and resident weights chosen together on a profile."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from pipeline.fitting.wanted import Fitted
from pipeline.planning.draft import Draft, Drafts, Judge, bounded_seconds, idle_seconds
from pipeline.planning.explain import explain
from pipeline.planning.found_plans import Point
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.planning.tune import Tuner
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture
from pipeline.timing.durations import Durations

# The least memory for a delay is found to within this ratio.
_PRECISION = 1.05


@dataclass(frozen=True)
class Goal:
    """A sweep shall take at most so many ``seconds``; ``bounded``: by its bound, not as a rule."""

    seconds: float
    bounded: bool = False

    @property
    def judge(self) -> Judge:
        """What computes how long a draft takes."""
        return bounded_seconds if self.bounded else idle_seconds


def plan_auto(
    drafts: Drafts, weight_limit_bytes: int | None, goal: Goal | None = None, enough: float = inf
) -> Fitted:
    """Return the fastest plan whose ``weight_bytes`` are within the limit (None: no limit), not judged yet.

    With a ``goal``: the plan of about the least weight memory that reaches it within the limit, or the
    fastest one; where that is a bound, ``drafts`` are of the longest durations.

    ``enough``: seconds of a plan that is known; one that is slower need not be found.

    Raises:
        PlanError: the limit is too small for any plan, or for one that is as fast as is ``enough``.
    """
    limit = drafts.all_resident_bytes
    if weight_limit_bytes is not None:
        limit = min(limit, weight_limit_bytes)
    tuner = Tuner(drafts, limit, goal.judge if goal else idle_seconds, enough)
    draft = tuner.best()
    if goal is not None:
        draft = _least(drafts, draft, goal)
    reasons = (*explain(drafts.program, draft), tuner.effort)
    return Fitted(drafts.plan(draft.choice), reasons=reasons, complete=tuner.complete)


def _least(drafts: Drafts, fastest: Draft, goal: Goal) -> Draft:
    """Return about the smallest draft that reaches ``goal``, or ``fastest``, the largest allowed."""
    if goal.judge(fastest) > goal.seconds:
        return fastest
    smallest, least = fastest, drafts.smallest_bytes
    tried = least
    while True:
        draft = Tuner(drafts, tried, goal.judge).best(rounds=1)
        if goal.judge(draft) <= goal.seconds:
            smallest = min(smallest, draft, key=lambda item: item.weight_bytes)
        else:
            least = tried
        if smallest.weight_bytes <= _PRECISION * least:
            return smallest
        tried = max(round((least * smallest.weight_bytes) ** 0.5), least + 1)


# The search of the paper: the smallest ring of minimal delay (seed 003, Section V-D), on a virtual clock.

# Medians have no noise: delays that differ by less are the same.
TOLERANCE = 5e-3


@dataclass(frozen=True)
class SearchResult:
    """``curve``: every ring that was tried, from small to large (Fig. 13); ``chosen`` is one of them."""

    curve: tuple[Point, ...]
    chosen: Point


def search(
    program: Program,
    architecture: Architecture,
    durations_of: Callable[[Plan], Durations],
    delta_bytes: int,
    tolerance: float = TOLERANCE,
) -> SearchResult:
    """Grow the ring by ``delta_bytes`` from the smallest up to the model, then choose.

    Phase 1 records every delay; phase 2 takes the first ring whose delay is at most ``1 + tolerance`` times
    the smallest. The delay is that of a sweep that finds its ring empty, as in the paper.

    Raises:
        PlanError: the architecture has no ring to grow, or ``delta_bytes`` is not above 0.
    """
    if architecture.slots or architecture.resident or architecture.order != "free":
        raise PlanError(f"{architecture.name} has no ring to search; asynchronous pipelines have")
    if delta_bytes <= 0:
        raise PlanError(f"a ring cannot grow by {delta_bytes} bytes")
    drafts = Drafts(program, durations_of, architecture)
    # A plan without a ring takes the smallest for chunks of the usual size.
    ring = drafts.draft(Choice()).level.largest_bytes
    curve: list[Point] = []
    while True:
        draft = drafts.draft(Choice(ring_bytes=ring))
        curve.append(Point(ring, draft.weight_bytes, draft.idle.delay_seconds))
        # From here on every ring holds the whole model and is cut to it: nothing changes any more.
        if ring >= draft.level.streamable_bytes:
            break
        ring += delta_bytes
    least = min(point.delay_seconds for point in curve)
    enough = (1 + tolerance) * least
    return SearchResult(
        tuple(curve), next(point for point in curve if point.delay_seconds <= enough)
    )
