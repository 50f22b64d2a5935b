"""The best way to stream a network whose parts on rows are decided: ring, chunks and resident weights."""

from functools import partial
from math import inf

from models.packs.manifest import Manifest
from pipeline.fitting.judge import judged
from pipeline.fitting.wanted import Fitted, Wanted
from pipeline.planning.auto import Goal, plan_auto
from pipeline.planning.make import make_plan
from pipeline.planning.search import search
from pipeline.planning.streaming import PAGE_BYTES
from pipeline.planning.thumb import USEFUL_RING_BYTES, SmallestPlans, rule_of_thumb
from pipeline.profiles.profile import Profile
from pipeline.program.regions import Region
from pipeline.schedule.architectures import Architecture

# The search tries rings in steps of this, or of this part of the weights.
_STEP_BYTES = 1 << 20
_STEPS = 128


def plan_weights(
    least: SmallestPlans,
    limit: int | None,
    profile: Profile | None,
    regions: tuple[Region, ...] = (),
    wanted: Wanted | None = None,
    enough: float = inf,
) -> Fitted:
    """Return the best plan with at most ``limit`` bytes for weights; None: with what helps.

    ``least``: the smallest ones of the model. The best may have more where there is none so small.
    ``regions`` run on rows. Of the time that is ``wanted`` only ``auto`` knows: about the least memory that
    reaches it; what is slower than ``enough`` it need not find.

    Raises:
        PlanError: ``auto`` has no such plan. ProfileError: the profile lacks a kernel.
    """
    manifest, architecture = least.manifest, least.architecture
    if architecture.tuned == "auto" and limit is None:
        limit = least.of(regions).resident_bytes + USEFUL_RING_BYTES
    if profile is not None and architecture.tuned == "auto":
        goal = None if wanted is None else _goal(wanted, profile)
        bounded = wanted is not None and wanted.guaranteed
        times = partial(profile.durations, quantile="max") if bounded else profile.durations
        auto = plan_auto(manifest, limit, goal, times, architecture, regions, enough=enough)
        return judged(auto.plan, profile, auto.reasons)
    if profile is not None and architecture.tuned == "search":
        return _searched(manifest, architecture, limit, profile)
    if limit is None:
        return judged(make_plan(manifest, architecture), profile)
    return judged(rule_of_thumb(least, limit, regions), profile)


def _goal(wanted: Wanted, profile: Profile) -> Goal | None:
    """Return what a sweep has to reach, for a request to reach what is wanted."""
    if wanted.delay_seconds is None:
        return None
    outside = profile.outside.max if wanted.guaranteed else profile.outside.median
    return Goal(wanted.delay_seconds - outside, bounded=wanted.guaranteed)


def _searched(
    manifest: Manifest, architecture: Architecture, limit: int | None, profile: Profile
) -> Fitted:
    """Return the smallest ring of minimal delay, or that of the least delay within ``limit``."""
    step = max(_STEP_BYTES, manifest.weight_bytes // _STEPS // PAGE_BYTES * PAGE_BYTES)
    result = search(manifest, architecture, profile.durations, step)
    chosen = result.chosen
    allowed = [each for each in result.curve if limit is None or each.weight_bytes <= limit]
    if chosen not in allowed and allowed:
        chosen = min(allowed, key=lambda point: point.delay_seconds)
    plan = make_plan(manifest, architecture, chosen.ring_bytes)
    return judged(plan, profile, curve=result.curve)
