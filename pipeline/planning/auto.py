"""The plan of ``auto``: ring, chunks, reads and resident weights chosen together on a profile."""

from dataclasses import dataclass, replace

from models.packs.manifest import Manifest
from pipeline.planning.draft import Draft, Drafts, DurationsOf
from pipeline.planning.explain import explain
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan, PlanError
from pipeline.planning.tune import Tuner, smallest_bytes
from pipeline.planning.words import sized
from pipeline.program.regions import Region
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from pipeline.timing.simulator import Simulated, simulate

# The least memory for a delay is found to within this ratio.
_PRECISION = 1.05


@dataclass(frozen=True)
class AutoPlan:
    """``predicted``: a request after an idle moment, when the head of the weights is in the ring.

    ``back_to_back_seconds``: the delay of a request right after another. ``reasons`` in words, for users.
    """

    plan: Plan
    predicted: Simulated
    back_to_back_seconds: float
    reasons: tuple[str, ...]


def plan_auto(
    manifest: Manifest,
    weight_limit_bytes: int | None,
    delay_target_seconds: float | None,
    durations_of: DurationsOf,
    architecture: Architecture = ARCHITECTURES["auto"],
    regions: tuple[Region, ...] = (),
) -> AutoPlan:
    """Return the fastest plan whose ``weight_bytes`` are within the limit (None: no limit).

    ``regions`` run on rows. With a delay target: the plan of about the least weight memory that reaches
    it within the limit.

    Raises:
        PlanError: the limit is too small for any plan, or no plan within it reaches the target.
    """
    drafts = Drafts(manifest, durations_of, architecture, regions)
    limit = sum(span.length for span in manifest.spans)
    if weight_limit_bytes is not None:
        limit = min(limit, weight_limit_bytes)
    draft = Tuner(manifest, drafts, limit).best()
    if delay_target_seconds is not None:
        draft = _least(manifest, drafts, draft, delay_target_seconds)
    plan = make_plan(manifest, architecture, choice=replace(draft.choice, regions=regions))
    return AutoPlan(
        plan,
        simulate(plan.stages, durations_of(plan), plan.stages[0].ahead),
        draft.again.delay_seconds,
        explain(manifest, draft),
    )


def _least(manifest: Manifest, drafts: Drafts, fastest: Draft, target: float) -> Draft:
    """Return about the smallest draft that reaches ``target``; ``fastest`` is the largest allowed.

    Raises:
        PlanError: not even that one does.
    """
    if fastest.idle.delay_seconds > target:
        raise PlanError(
            f"{manifest.name}: a delay of {1e3 * target:.1f} ms cannot be reached with "
            f"{sized(fastest.weight_bytes)} of weights in memory; the least is "
            f"{1e3 * fastest.idle.delay_seconds:.1f} ms: allow more memory or a longer delay"
        )
    found, least = fastest, smallest_bytes(manifest, drafts)
    tried = least
    while True:
        draft = Tuner(manifest, drafts, tried).best(rounds=1)
        if draft.idle.delay_seconds <= target:
            found = min(found, draft, key=lambda item: item.weight_bytes)
        else:
            least = tried
        if found.weight_bytes <= _PRECISION * least:
            return found
        tried = max(round((least * found.weight_bytes) ** 0.5), least + 1)
