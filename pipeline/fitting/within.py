"""The best plan within so many bytes of everything: weights, activations, scratch, sessions, tensors.

What runs on rows decides how much activations take, and with it how much is left for weights. So each
variant of the network is planned within the limit, and the fastest plan wins.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from math import inf

from pipeline.fitting.auto import Goal, plan_auto, search
from pipeline.fitting.judge import (
    activation_bytes,
    fits_arena,
    judged,
    reaches,
    seconds_of,
    too_late,
    with_joined,
)
from pipeline.fitting.row_variants import estimated_seconds, row_variants
from pipeline.fitting.wanted import Fitted, Wanted
from pipeline.planning.draft import Drafts
from pipeline.planning.joined_launches import reserved_bytes
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.planning.rows.variants import Variant, Variants
from pipeline.planning.rows.walk import QUICK, THOROUGH, Effort
from pipeline.planning.streaming import PAGE_BYTES
from pipeline.planning.thumb import USEFUL_RING_BYTES, SmallestPlans, rule_of_thumb, smaller_plans
from pipeline.profiles.profile import Profile
from pipeline.profiles.times import Quantile
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RegionError
from pipeline.program.steps import row_network
from pipeline.program.stopping import tell
from pipeline.schedule.architectures import Architecture

# The best way to stream a network whose parts on rows are decided: ring, chunks and resident weights.

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
        assert self.profile is not None  # drafts need times
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

    It is not judged yet. It may have more where there is none so small. ``regions`` run on rows. Of the
    time that is ``wanted`` only ``auto`` makes use: it finds about the least memory that reaches it; what
    is slower than ``enough`` it need not find.

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
        return plan_auto(drafts, limit, goal, enough)
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


# Variants and weights together, within a budget.

# Of the variants with the least estimated memory so many are planned to see which has it.
_TRIED = 4
# Of those that fit in a budget so many are planned in full.
_PLANNED = 4
# The estimate leaves out what an arena takes beside what lives in it, and may count a binding too much.
_PROMISE = 0.97
# A plan that is too large by what its chunks take beside weights is made again with less of them.
_MOST_TRIES = 8
# What is faster by less than this by arithmetic may be slower.
_ROUGHLY = 0.95
# More than any machine has.
_UNLIMITED_BYTES = 1 << 62


class Within:
    """Plans within what is ``wanted``, of the network that was ``tried``, judged by its profile."""

    def __init__(self, tried: Tried, wanted: Wanted) -> None:
        self._tried = tried
        self._program = tried.program
        self._profile = tried.profile
        self._least = tried.least
        self._wanted = wanted
        #: Whether no clock ended a search.
        self.complete = True
        total = wanted.total_bytes
        self._room = _UNLIMITED_BYTES if total is None else total

    @cached_property  # nothing measured is asked for the least
    def _variants(self) -> tuple[Variant, ...]:
        return self._search.found

    @cached_property
    def _search(self) -> Variants:
        return self._found(THOROUGH if self._wanted.thorough else QUICK, self._profile)

    def _found(self, most: Effort, profile: Profile | None) -> Variants:
        architecture, limit = self._tried.architecture, self._wanted.arena_bytes
        variants = row_variants(self._program, architecture, profile, most, limit)
        self.complete = self.complete and variants.complete
        return variants

    def least(self) -> Fitted:
        """Return the plan of the least memory that is known.

        No measured times decide on it, nor how long a search may take: budgets are named to users when
        nothing is measured yet, and hold whatever is asked later.
        """
        untimed = self._found(QUICK, None).found if self._knows_rows else self._variants
        tried = sorted(untimed, key=self._promised)[:_TRIED]
        plan = min(self._smallest(tried), key=self._excess)
        # The same regions may take less with other chunks.
        again = self._least.of(plan.choice.regions)
        plan = min(plan, again, key=self._excess)
        whole = self._least.of() if plan.choice.regions else plan
        smaller = [
            smaller_plans(self._program, each)
            for each in ([plan] if whole is plan else [plan, whole])
        ]
        return self._judged(min(chain.from_iterable(smaller), key=self._excess))

    @property
    def _knows_rows(self) -> bool:
        """Whether it is known what plans on rows take: by arithmetic, or by a profile of them."""
        profile = self._profile
        return profile is None or profile.has_row_times(row_network(self._program))

    def fastest(self) -> Fitted:
        """Return the fastest plan that fits, or the smallest one."""
        best: Fitted | None = None
        variants = _spread([item for item in self._variants if self._may_fit(item)])
        for number, variant in enumerate(variants):
            tell("ways to stream", number + 1, len(variants))
            if best is not None and self._computes_longer(variant, best):
                break  # and so do the following ones
            fitted = self._best(variant, self._room, enough=self._enough(best))
            if fitted is not None and (best is None or self._is_faster(fitted, best)):
                best = fitted
        return self.least() if best is None else self._explained(best, variants)

    def _computes_longer(self, variant: Variant, best: Fitted) -> bool:
        """Return whether the kernels of ``variant`` alone take longer than ``best``.

        Without a profile none are known to be faster than those of the whole network: what waits for no
        weights is the fastest.
        """
        if self._profile is None:
            return best.plan.read_bytes == 0
        return variant.seconds >= self._seconds(best)

    def _is_faster(self, one: Fitted, other: Fitted) -> bool:
        """Return whether ``one`` is faster; without a profile, by so much that rough times show it."""
        certainly = 1.0 if self._profile else _ROUGHLY
        return self._seconds(one) < certainly * self._seconds(other)

    def _seconds(self, fitted: Fitted) -> float:
        """Return the delay of a plan, by the profile or by arithmetic."""
        known = fitted.predicted_seconds
        return estimated_seconds(self._program, fitted.plan) if known is None else known

    def _explained(self, best: Fitted, variants: Sequence[Variant]) -> Fitted:
        """Return ``best`` with how many variants it is the best of."""
        known = len(self._variants)
        if known == 1 and self.complete:
            return best
        reason = (
            f"of {known} ways to run parts on rows or channels up to {len(variants)} were planned; "
            f"{self._search.effort}"
        )
        return replace(best, reasons=(*best.reasons, reason))

    def streaming(self, choice: Choice, total_bytes: int | None = None) -> Fitted | None:
        """Return the best plan with exactly the regions of ``choice`` that fits; None: there is none.

        ``total_bytes``: instead of what is wanted.
        """
        variant = Variant(choice.regions, 0, 0.0, choice.chunk_bytes)
        return self._best(variant, self._room if total_bytes is None else total_bytes)

    def in_time(self) -> Fitted:
        """Return the plan of the first variant, from the smallest on, that is as fast as is wanted.

        Raises:
            PlanError: none is.
        """
        wanted = self._wanted
        tried = []
        for variant in sorted(self._variants, key=lambda item: item.n_bytes):
            # Kernels alone may take too long: the fastest variant says what could be reached.
            if variant.seconds <= (wanted.delay_seconds or 0.0) or variant is self._variants[0]:
                fitted = self._best(variant, self._room, wanted)
                if fitted is not None and reaches(fitted, wanted):
                    return fitted
                tried += [] if fitted is None else [fitted]
        # What was measured of exactly one plan may bound it better than any that is searched for.
        closest = min([*tried, self.fastest()], key=lambda fitted: seconds_of(fitted, wanted))
        if not reaches(closest, wanted):
            raise PlanError(f"{self._program.name}: {too_late(closest, wanted)}")
        return closest

    def _enough(self, best: Fitted | None) -> float:
        """Return the most seconds of a plan that joined kernels may make faster than ``best``."""
        if best is None or best.predicted_seconds is None or self._profile is None:
            return inf
        return best.predicted_seconds + self._profile.launch * len(best.plan.steps)

    def _best(
        self, variant: Variant, room: int, in_time: Wanted | None = None, enough: float = inf
    ) -> Fitted | None:
        """Return the best plan of one variant in ``room``, ``in_time`` if one is; None: it has none.

        What is slower than ``enough`` need not be found.
        """
        least = next(self._smallest([variant]))
        if least.choice.regions != variant.regions or least.total_bytes > room:
            return None
        if not fits_arena(least, self._wanted):
            return None
        weights = room - (least.total_bytes - least.weight_bytes)
        if self._wanted.weight_bytes is not None:
            weights = min(weights, self._wanted.weight_bytes)
        if in_time is None:
            weights -= reserved_bytes(self._program, weights - least.weight_bytes)
        for _ in range(_MOST_TRIES):
            if weights <= least.weight_bytes:
                break
            try:
                fitted = plan_weights(self._tried, weights, variant.regions, in_time, enough)
            except PlanError:
                break  # a little more than the smallest may be too little for what it chooses
            if not fits_arena(fitted.plan, self._wanted):
                break
            excess = fitted.plan.total_bytes - room
            if excess <= 0:
                if in_time:
                    return judged(fitted.plan, self._profile, fitted.reasons)
                return with_joined(self._program, fitted, self._profile, -excess)
            # Larger chunks take more scratch or larger sessions: what they take is not there for weights.
            weights = min(weights, fitted.plan.weight_bytes) - excess
        return self._judged(least)

    def _smallest(self, variants: Sequence[Variant]) -> Iterator[Plan]:
        """Yield the smallest plans of variants; not of one whose regions cannot run after all."""
        for variant in variants:
            try:
                yield self._least.of(variant.regions, variant.chunk_bytes)
            except RegionError:
                continue
        if not any(not variant.regions for variant in variants):
            yield self._least.of()

    def _may_fit(self, variant: Variant) -> bool:
        """Return whether the estimate of ``variant`` is what is allowed, or hardly more."""
        limit = self._wanted.arena_bytes
        small = limit is None or _PROMISE * variant.activation_bytes <= limit
        return small and _PROMISE * variant.n_bytes <= self._room

    def _promised(self, variant: Variant) -> tuple[int, int]:
        """Return what the smallest variant has least of."""
        limit = self._wanted.arena_bytes
        excess = 0 if limit is None else max(variant.activation_bytes - limit, 0)
        return excess, variant.n_bytes

    def _excess(self, plan: Plan) -> tuple[int, int, int]:
        """Return what the smallest plan has least of."""
        activations, weights = self._wanted.arena_bytes, self._wanted.weight_bytes
        return (
            0 if activations is None else max(activation_bytes(plan) - activations, 0),
            0 if weights is None else max(plan.weight_bytes - weights, 0),
            plan.total_bytes,
        )

    def _judged(self, plan: Plan) -> Fitted:
        return judged(plan, self._profile)


def _spread(variants: Sequence[Variant]) -> list[Variant]:
    """Return the fastest of ``variants``, and of the others, which leave more for weights, a few."""
    if len(variants) <= _PLANNED:
        return list(variants)
    last = len(variants) - 1
    return [variants[last * step // (_PLANNED - 1)] for step in range(_PLANNED)]
