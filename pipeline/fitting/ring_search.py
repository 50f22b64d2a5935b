"""The search of seed 003, Section V-D: the smallest ring of minimal delay, on a virtual clock."""

from dataclasses import dataclass

from pipeline.fitting.judge import with_joined
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.wanted import EnginePlanResult
from pipeline.planning.estimates import Estimates
from pipeline.planning.found_plans import Point
from pipeline.planning.make import make_plan
from pipeline.planning.plan import PlanError
from pipeline.planning.streaming import PAGE_BYTES
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture

# The search tries rings in steps of this, or of this part of the weights.
_STEP_BYTES = 1 << 20
_STEPS = 128
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
    estimates: Estimates,
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
    # A plan without a ring takes the smallest for chunks of the usual size.
    ring = make_plan(program, architecture).largest_chunk_bytes
    curve: list[Point] = []
    while True:
        plan = make_plan(program, architecture, ring)
        delay = estimates.seconds(plan)
        curve.append(Point(ring, plan.weight_bytes, delay))
        # From here on every ring holds the whole model and is cut to it: nothing changes any more.
        if plan.ring_bytes < ring or not plan.reads:
            break
        ring += delta_bytes
    least = min(point.delay_seconds for point in curve)
    enough = (1 + tolerance) * least
    return SearchResult(
        tuple(curve), next(point for point in curve if point.delay_seconds <= enough)
    )


def judged_ring(
    program: Program, architecture: Architecture, limit: int | None, profile: Profile
) -> EnginePlanResult:
    """Return the plan of the smallest ring of minimal delay, or of the least delay within ``limit`` bytes.

    Raises:
        PlanError: the architecture has no ring to grow.
    """
    step = max(_STEP_BYTES, program.weight_bytes // _STEPS // PAGE_BYTES * PAGE_BYTES)
    estimates = Predictions.of(program, profile).estimates
    result = search(program, architecture, estimates, step)
    chosen = result.chosen
    allowed = [point for point in result.curve if limit is None or point.weight_bytes <= limit]
    if chosen not in allowed and allowed:
        chosen = min(allowed, key=lambda point: point.delay_seconds)
    plan = make_plan(program, architecture, chosen.ring_bytes)
    return with_joined(program, EnginePlanResult(plan, curve=result.curve), profile)
