"""The smallest ring of minimal delay (seed 003, Section V-D), found on the simulator."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.planning.draft import Drafts
from pipeline.planning.found_plans import Point
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture
from pipeline.timing.durations import Durations

# Medians have no noise: delays that differ by less are the same.
TOLERANCE = 5e-3


@dataclass(frozen=True)
class SearchResult:
    """``curve``: every ring that was tried, from small to large (Fig. 13); ``chosen`` is one of them."""

    curve: tuple[Point, ...]
    chosen: Point

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {"curve": [asdict(point) for point in self.curve], "chosen": asdict(self.chosen)}


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
