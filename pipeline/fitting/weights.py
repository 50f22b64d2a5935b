"""The best way to stream a network whose parts on rows are decided: ring, chunks and resident weights."""

from collections.abc import Callable
from functools import lru_cache, partial
from math import inf

from pipeline.fitting.wanted import Fitted, Wanted
from pipeline.planning.auto import Goal, plan_auto
from pipeline.planning.draft import Drafts
from pipeline.planning.make import make_plan
from pipeline.planning.search import search
from pipeline.planning.streaming import PAGE_BYTES
from pipeline.planning.thumb import USEFUL_RING_BYTES, SmallestPlans, rule_of_thumb
from pipeline.profiles.profile import Profile
from pipeline.profiles.times import Quantile
from pipeline.program.cuts import Region
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture

# The search tries rings in steps of this, or of this part of the weights.
_STEP_BYTES = 1 << 20
_STEPS = 128
# As many variants as searches in neighbouring budgets plan.
_MOST_DRAFTS = 8
_MOST_TRIED = 4


class Tried:
    """What questions about one network have in common: its smallest plans, and drafts, by their regions.

    The last of both are kept: a search asks for the same again, and the next one for other memory.
    """

    def __init__(
        self, program: Program, architecture: Architecture, profile: Profile | None
    ) -> None:
        self.program = program
        self.architecture = architecture
        self.profile = profile
        self.least = SmallestPlans(program, architecture)
        self.drafts = lru_cache(maxsize=_MOST_DRAFTS)(self._drafts)

    @staticmethod
    def of(program: Program, architecture: Architecture, profile: Profile | None) -> "Tried":
        """Return what was tried of ``program`` before, and is kept with it."""
        return program.made(_tried)(architecture, profile)

    def _drafts(self, regions: tuple[Region, ...], quantile: Quantile) -> Drafts:
        assert self.profile is not None  # nobody drafts without times
        times = partial(self.profile.durations, quantile=quantile)
        return Drafts(self.program, times, self.architecture, regions)


def _tried(program: Program) -> Callable[[Architecture, Profile | None], Tried]:
    return lru_cache(maxsize=_MOST_TRIED)(partial(Tried, program))


def plan_weights(
    tried: Tried,
    limit: int | None,
    regions: tuple[Region, ...] = (),
    wanted: Wanted | None = None,
    enough: float = inf,
) -> Fitted:
    """Return the best plan with at most ``limit`` bytes for weights; None: with what helps.

    Nobody has judged it yet. It may have more where there is none so small. ``regions`` run on rows. Of the
    time that is ``wanted`` only ``auto`` knows: about the least memory that reaches it; what is slower than
    ``enough`` it need not find.

    Raises:
        PlanError: ``auto`` has no such plan. ProfileError: the profile lacks a kernel.
    """
    program, architecture, profile = tried.program, tried.architecture, tried.profile
    if architecture.tuned == "auto" and limit is None:
        limit = tried.least.of(regions).resident_bytes + USEFUL_RING_BYTES
    if profile is not None and architecture.tuned == "auto":
        goal = None if wanted is None else _goal(wanted, profile)
        bounded = wanted is not None and wanted.guaranteed
        drafts = tried.drafts(regions, "max" if bounded else "median")
        auto = plan_auto(drafts, limit, goal, enough)
        return Fitted(auto.plan, reasons=auto.reasons, complete=auto.complete)
    if profile is not None and architecture.tuned == "search":
        return _searched(program, architecture, limit, profile)
    if limit is None:
        return Fitted(make_plan(program, architecture))
    return Fitted(rule_of_thumb(tried.least, limit, regions))


def _goal(wanted: Wanted, profile: Profile) -> Goal | None:
    """Return what a sweep has to reach, for a request to reach what is wanted."""
    if wanted.delay_seconds is None:
        return None
    outside = profile.outside.max if wanted.guaranteed else profile.outside.median
    return Goal(wanted.delay_seconds - outside, bounded=wanted.guaranteed)


def _searched(
    program: Program, architecture: Architecture, limit: int | None, profile: Profile
) -> Fitted:
    """Return the smallest ring of minimal delay, or that of the least delay within ``limit``."""
    step = max(_STEP_BYTES, program.weight_bytes // _STEPS // PAGE_BYTES * PAGE_BYTES)
    result = search(program, architecture, profile.durations, step)
    chosen = result.chosen
    allowed = [each for each in result.curve if limit is None or each.weight_bytes <= limit]
    if chosen not in allowed and allowed:
        chosen = min(allowed, key=lambda point: point.delay_seconds)
    plan = make_plan(program, architecture, chosen.ring_bytes)
    return Fitted(plan, curve=result.curve)
