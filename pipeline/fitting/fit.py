"""Architecture, wishes and profile in, plan out: the one decision that commands and the service share.

Pure, but with a profile it may take seconds.
"""

from dataclasses import dataclass, replace

from models.packs.manifest import Manifest
from pipeline.fitting.predict import Wanted, find_plan
from pipeline.planning.advice import chunk_advice
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.planning.thumb import USEFUL_RING_BYTES, rule_of_thumb, smallest_plan
from pipeline.planning.words import sized
from pipeline.profiles.profile import Profile
from pipeline.schedule.architectures import Architecture
from pipeline.timing.timeline import timeline

NOTHING = Wanted()


@dataclass(frozen=True)
class Fitted:
    """A plan and what a profile says of its sweeps, in seconds; None without a profile.

    ``predicted_seconds``: of one after an idle moment. ``reasons``: why this plan, in words.
    """

    plan: Plan
    predicted_seconds: float | None = None
    bound_seconds: float | None = None
    reasons: tuple[str, ...] = ()


def fit_plan(
    manifest: Manifest, architecture: Architecture, wanted: Wanted, profile: Profile | None
) -> Fitted:
    """Return the best plan of ``architecture`` within what is ``wanted``.

    Raises:
        PlanError: that is too little, or there is no plan without a profile. ProfileError: the
            profile lacks a kernel.
    """
    check_profile(manifest, architecture, wanted, profile)
    plan, reasons = _chosen(manifest, architecture, wanted, profile)
    limit = wanted.weight_bytes
    if limit is not None and plan.weight_bytes > limit:
        raise PlanError(
            f"{manifest.name}: {architecture.name} takes {sized(plan.weight_bytes)} for weights, "
            f"{sized(limit)} are allowed: allow more, take another architecture"
            + chunk_advice(manifest, architecture)
        )
    return judged(plan, profile, reasons)


def judged(plan: Plan, profile: Profile | None, reasons: tuple[str, ...] = ()) -> Fitted:
    """Return ``plan`` with what ``profile`` says of it."""
    if profile is None:
        return Fitted(plan, reasons=reasons)
    sweep = timeline(plan.stages, profile.durations(plan), plan.stages[0].ahead)
    return Fitted(plan, sweep.delay_seconds, profile.bound_seconds(plan), reasons)


def smallest_fitted(
    manifest: Manifest, architecture: Architecture, wanted: Wanted, profile: Profile | None
) -> Fitted:
    """Return the plan of the ring that is ``wanted``, or that of the least memory for weights.

    Raises:
        PlanError: that ring is too small.
    """
    if wanted.ring_bytes is not None:
        return fit_plan(manifest, architecture, wanted, profile)
    return judged(smallest_plan(manifest, architecture), profile)


def check_profile(
    manifest: Manifest, architecture: Architecture, wanted: Wanted, profile: Profile | None
) -> None:
    """Refuse what cannot be planned without a profile.

    Raises:
        PlanError: there is none; the message has the remedy.
    """
    searched = architecture.tuned == "search" and wanted.ring_bytes is None
    if profile is None and (searched or wanted.delay_seconds is not None):
        raise PlanError(
            f"{manifest.name}: {architecture.name} is planned on a profile, and the pack has none "
            "of this machine: run `layerstream profile PACK`, or give the ring's size (--ring)"
        )


def _chosen(
    manifest: Manifest, architecture: Architecture, wanted: Wanted, profile: Profile | None
) -> tuple[Plan, tuple[str, ...]]:
    limit = wanted.weight_bytes
    if wanted.ring_bytes is not None:
        choice = Choice(wanted.ring_bytes, ahead=architecture.ahead)
        return make_plan(manifest, architecture, choice=choice), ()
    if architecture.tuned == "auto" and limit is None and wanted.delay_seconds is None:
        least = smallest_plan(manifest, architecture, wanted.regions)
        limit = least.resident_bytes + USEFUL_RING_BYTES
        wanted = replace(wanted, weight_bytes=limit)
    if profile is None:
        if limit is None:
            return make_plan(manifest, architecture), ()
        return rule_of_thumb(manifest, architecture, limit, wanted.regions), ()
    found = find_plan(manifest, architecture, wanted, profile)
    if limit is not None and found.plan.weight_bytes > limit:
        # The search knows no limit: the least delay of the rings that it allows.
        allowed = [point for point in found.curve if point.weight_bytes <= limit]
        if allowed:
            best = min(allowed, key=lambda point: point.delay_seconds)
            return make_plan(manifest, architecture, best.ring_bytes), found.reasons
    return found.plan, found.reasons
