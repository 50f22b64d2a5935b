"""The best plan within so many bytes of everything: weights, activations, scratch, sessions, tensors.

What runs on rows decides how much activations take, and with it how much is left for weights. So the first
variants of the network are planned within the limit, each with a few ways to stream its weights, and what
is expected to be fastest wins. What was measured within less memory is a candidate, too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from math import ceil, inf

from loader.errors import LoaderError
from pipeline.fitting.judge import activation_bytes, fits_arena, judged, reaches
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.row_variants import row_variants
from pipeline.fitting.wanted import EnginePlanResult, Wanted
from pipeline.planning.explain import explain
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.joined_launches import joined, reserved_bytes
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.planning.row_variant import Variant, Variants
from pipeline.planning.smallest import SmallestPlans, smaller_plans
from pipeline.planning.streams import USEFUL_RING_BYTES, all_weight_bytes, streams
from pipeline.profiles.profile import MeasuredPlan, Profile
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RegionError
from pipeline.program.stopping import tell
from pipeline.schedule.architectures import Architecture

_MOST_TRIED = 4


class Tried:
    """What questions about one network have in common: its smallest plans, and what plans take.

    The last of both are kept: a search asks for the same again, and the next one for other memory.
    """

    def __init__(
        self, program: Program, architecture: Architecture, profile: Profile | None
    ) -> None:
        self.program = program
        self.architecture = architecture
        self.profile = profile
        self.least = SmallestPlans(program, architecture)
        self.predictions = Predictions.of(program, profile)

    @staticmethod
    def of(program: Program, architecture: Architecture, profile: Profile | None) -> "Tried":
        """Return what was tried of ``program`` before, and is kept with it."""
        return program.made(_tried)(architecture, profile)


def _tried(program: Program) -> Callable[[Architecture, Profile | None], Tried]:
    return lru_cache(maxsize=_MOST_TRIED)(partial(Tried, program))


def plan_weights(tried: Tried, limit: int | None) -> EnginePlanResult:
    """Return the best plan of the whole network with at most ``limit`` bytes for weights; not judged yet.

    None: with what helps. It may have more where there is none so small.
    """
    if limit is None and tried.architecture.tuned != "auto":
        return EnginePlanResult(make_plan(tried.program, tried.architecture))
    smallest = tried.least.of()
    if limit is None:
        limit = smallest.resident_bytes + USEFUL_RING_BYTES
    plans = list(streams(tried.program, smallest, limit))
    possible_plans = [plan for plan in plans if plan.weight_bytes <= limit] or plans[:1]
    return EnginePlanResult(min(possible_plans, key=tried.predictions.seconds))


# Of the variants with the least estimated memory so many are planned to see which has it.
_TRIED = 4
# Of those that fit in a budget so many are planned, each with so many ways to stream.
_PLANNED, _STREAMS = 3, 3
# The estimate leaves out what an arena takes beside what lives in it, and may count a binding too much.
_PROMISE = 0.97
# A plan that is too large by what its chunks take beside weights is made again with less of them.
_MOST_TRIES = 4
# The least memory for a delay is found to within this ratio.
_PRECISION = 1.05
# What was measured is left for what is only estimated to be faster by so much.
_SURELY = 0.9
# More than any machine has.
_UNLIMITED_BYTES = 1 << 62


class PlanSearch:
    """Plans within what is ``wanted``, of the network that was ``tried``; ``known``: found before."""

    def __init__(self, tried: Tried, wanted: Wanted, known: FoundPlans | None = None) -> None:
        self._tried = tried
        self._cached = known
        self._program = tried.program
        self._predictions = tried.predictions
        self._least = tried.least
        self._wanted = wanted
        total = wanted.total_bytes
        self._capacity = _UNLIMITED_BYTES if total is None else total

    @cached_property
    def _search(self) -> Variants:
        architecture = self._tried.architecture
        return row_variants(self._program, architecture, self._wanted.arena_bytes, self._cached)

    @cached_property
    def _variants(self) -> tuple[Variant, ...]:
        """What was found, and the whole network, which may be faster than by arithmetic."""
        fastest, *_ = variants = self._search.variants
        if any(not item.regions for item in variants):
            return variants
        return (Variant((), self._least.of().total_bytes, fastest.seconds), *variants)

    @property
    def complete(self) -> bool:
        """Whether no clock ended the search for what runs on rows."""
        return "_search" not in self.__dict__ or self._search.complete

    def least(self) -> EnginePlanResult:
        """Return the plan of the least memory that is known.

        No times decide on it: budgets are named to users when nothing is measured yet, and hold whatever is
        asked later.
        """
        tried = sorted(self._search.variants, key=self._promised)[:_TRIED]
        plan = min(self._smallest(tried), key=self._excess)
        # The same regions may take less with other chunks.
        again = self._least.of(plan.choice.regions)
        plan = min(plan, again, key=self._excess)
        whole = self._least.of() if plan.choice.regions else plan
        smaller = [
            smaller_plans(self._program, item)
            for item in ([plan] if whole is plan else [plan, whole])
        ]
        return self._judged(min(chain.from_iterable(smaller), key=self._excess))

    def fastest(self) -> EnginePlanResult:
        """Return the plan that fits and is expected to be fastest, or the smallest one.

        ``enough_bytes`` is known where each variant has all memory that it can use.
        """
        plans = self.candidates(self._capacity)
        best = self._best_of(plans)
        if best is None:
            return self.least()
        reasons = (*explain(best, self._predictions.estimates), *self._reasons(len(plans)))
        fitted, enough = self._judged(best, reasons), max(self._enough_bytes(), best.total_bytes)
        return fitted if self._capacity < enough else replace(fitted, enough_bytes=enough)

    def _best_of(self, plans: Sequence[Plan]) -> Plan | None:
        """Return the fastest that was measured and fits, or the first of ``plans`` if it is surely faster.

        It is then estimated to be faster than the measured one was estimated, since errors are alike, and
        than it was measured, so that no figure is worse than that of a smaller budget. Of two that were
        measured no estimate decides.
        """
        measured = self.measured(self._capacity)
        if measured is None:
            return plans[0] if plans else None
        predictions = self._predictions
        others = (plan for plan in plans if predictions.measured(plan) is None)
        other = next(others, measured)
        seconds = min(predictions.estimated(measured), predictions.seconds(measured))
        return other if predictions.estimated(other) < _SURELY * seconds else measured

    def candidates(
        self, capacity: int, variants: int = _PLANNED, n_streams: int | None = _STREAMS
    ) -> list[Plan]:
        """Return plans of ``variants`` within ``capacity`` bytes of everything, the fastest first.

        Of the first that fit, each with the first ``n_streams`` ways to stream; None: all there are. By
        estimates and measurements; of equal ones the smaller first.
        """
        ranked: list[tuple[float, int, int]] = []
        plans: list[Plan] = []
        possible, planned = self._possible(capacity), 0
        for number, variant in enumerate(possible):
            tell("ways to stream", number + 1, len(possible))
            before = len(plans)
            for plan in self._plans(variant, capacity, n_streams):
                ranked.append((self._predictions.seconds(plan), plan.total_bytes, len(plans)))
                plans.append(plan)
            planned += len(plans) > before
            if planned == variants:
                break
        return [plans[index] for _, _, index in sorted(ranked)]

    def _possible(self, capacity: int) -> list[Variant]:
        """Return the variants that may fit in ``capacity``, those first that may be fastest there."""
        possible = (item for item in self._variants if self._may_fit(item, capacity))
        return sorted(possible, key=partial(self._first_guess, capacity))

    def measured(self, capacity: int) -> Plan | None:
        """Return the fastest of the plans that were measured and fit."""
        possible_plans = (item for item in self._measurements() if item.total_bytes <= capacity)
        for best in sorted(possible_plans, key=lambda item: (item.ratio, item.total_bytes)):
            plan = self._again(best.choice)
            is_same = plan is not None and self._predictions.measured(plan) == best
            if plan is not None and is_same and self._fits(plan, capacity):
                return plan
        return None

    def _measurements(self) -> Iterator[MeasuredPlan]:
        """Yield what was measured of plans of this architecture."""
        profile, name = self._tried.profile, self._tried.architecture.name
        plans = () if profile is None else profile.plans
        return (item for item in plans if item.architecture == name)

    def _fits(self, plan: Plan, capacity: int) -> bool:
        """Return whether all of ``plan`` fits in ``capacity``, its parts in what is required of these."""
        weights = self._wanted.weight_bytes
        return (
            plan.total_bytes <= capacity
            and fits_arena(plan, self._wanted)
            and (weights is None or plan.weight_bytes <= weights)
        )

    def _again(self, choice: Choice) -> Plan | None:
        try:
            return make_plan(self._program, self._tried.architecture, choice=choice)
        except (PlanError, LoaderError, RegionError):  # of another version, or edited
            return None

    def _first_guess(self, capacity: int, variant: Variant) -> float:
        """Return about what ``variant`` takes in ``capacity``: its kernels, or its reads if longer.

        What is read into the arena is read while no kernel runs.
        """
        times, whole = self._predictions.estimates.times, self._search.variants[0]
        kernels = sum(times.pieces) * (variant.seconds / whole.seconds if whole.seconds else 1.0)
        streamed = self._program.weight_bytes - max(capacity - variant.n_bytes, 0)
        alone = (region for region in variant.regions if region.in_arena)
        waiting = sum(times.read(n_bytes, 1) for item in alone if (n_bytes := self._weights(item)))
        return max(kernels, times.read(streamed, 1) if streamed > 0 else 0.0) + waiting

    def _weights(self, region: Region) -> int:
        """Return the bytes of weights of the pieces of ``region``."""
        program = self._program
        spans = {program.pieces[piece].span for piece in region.pieces} - {None}
        return sum(program.spans[span].length for span in spans if span is not None)

    def _reasons(self, planned: int) -> tuple[str, ...]:
        known = len(self._search.variants)
        if known == 1:
            return ()
        return (
            f"of {known} ways to run parts on rows or channels the first were planned, in {planned} "
            f"plans; {self._search.effort}",
        )

    def streaming(self, choice: Choice, total_bytes: int | None = None) -> Plan | None:
        """Return the best plan with exactly the regions of ``choice`` that fits; None: there is none.

        ``total_bytes``: instead of what is wanted.
        """
        variant = Variant(choice.regions, 0, 0.0, choice.chunk_bytes)
        return self._best(variant, self._capacity if total_bytes is None else total_bytes)

    def in_time(self) -> EnginePlanResult:
        """Return a plan of about the least memory that is as fast as is wanted.

        Raises:
            PlanError: none is.
        """
        fitted = self._bounded() if self._wanted.guaranteed else self._smallest_in_time()
        return self.fastest() if fitted is None else fitted

    def _smallest_in_time(self) -> EnginePlanResult | None:
        """Return the smallest plan of the first variant, from the smallest on, that is as fast."""
        for variant in sorted(self._search.variants, key=lambda item: item.n_bytes):
            largest = self._best(variant, self._capacity)
            if largest is None or not self._reaches(largest):
                continue
            smallest, low = largest, next(self._smallest([variant])).total_bytes
            while smallest.total_bytes > _PRECISION * low:
                middle = round((low * smallest.total_bytes) ** 0.5)
                plan = self._best(variant, middle)
                if plan is not None and self._reaches(plan):
                    smallest = plan
                    if plan.total_bytes <= low:
                        break
                else:
                    low = middle
            return self._judged(smallest)
        return None

    def _bounded(self) -> EnginePlanResult | None:
        """Return the smallest plan with a measured bound as short; else that of the least bound."""
        profile, name = self._tried.profile, self._tried.architecture.name
        assert profile is not None  # no time is wanted without a profile
        limits = (item for item in profile.limits.values() if item.architecture == name)
        plans = (plan for item in limits if (plan := self._again(item.choice)) is not None)
        possible_plans = [self._judged(plan) for plan in plans if self._fits(plan, self._capacity)]
        reaching = [item for item in possible_plans if reaches(item, self._wanted)]
        if reaching:
            return min(reaching, key=lambda item: item.plan.total_bytes)
        return min(possible_plans, key=lambda item: item.bound_seconds or inf, default=None)

    def _reaches(self, plan: Plan) -> bool:
        return reaches(self._judged(plan), self._wanted)

    def _best(self, variant: Variant, capacity: int) -> Plan | None:
        """Return the plan of one variant in ``capacity`` that is expected to be fastest; None: none."""
        return min(self._plans(variant, capacity), key=self._predictions.seconds, default=None)

    def _plans(
        self, variant: Variant, capacity: int, n_streams: int | None = _STREAMS
    ) -> Iterator[Plan]:
        """Yield plans of one variant in ``capacity``, with the launches that these have capacity for."""
        least = next(self._smallest([variant]))
        if least.choice.regions != variant.regions or not self._fits(least, capacity):
            return
        plans = (least, *self._streams(least, capacity, n_streams))
        for plan in {plan.choice: plan for plan in plans}.values():
            yield joined(self._program, plan, capacity - plan.total_bytes)

    def _streams(self, least: Plan, capacity: int, n_streams: int | None) -> list[Plan]:
        """Return plans with the regions of the smallest one that fit in ``capacity``."""
        limit = capacity if self._wanted.weight_bytes is None else self._wanted.weight_bytes
        all_bytes = all_weight_bytes(self._program, least)
        if self._tried.architecture.tuned == "auto" and all_bytes <= limit:
            everything = next(streams(self._program, least, all_bytes))
            if self._fits(everything, capacity):
                return [everything]
        weights = min(capacity - (least.total_bytes - least.weight_bytes), limit)
        weights -= reserved_bytes(self._program, weights - least.weight_bytes)
        possible_plans: list[Plan] = []
        for _ in range(_MOST_TRIES):
            if weights <= least.weight_bytes:
                break
            plans = list(streams(self._program, least, weights, n_streams))
            plans = [plan for plan in plans if fits_arena(plan, self._wanted)]
            possible_plans = [plan for plan in plans if self._fits(plan, capacity)]
            if len(possible_plans) > 1 or len(possible_plans) == len(plans):
                break
            # Larger chunks take more scratch or larger sessions: what they take is not there for weights.
            smallest = min(plan.total_bytes for plan in plans if plan not in possible_plans)
            weights -= smallest - capacity
        return possible_plans

    def _enough_bytes(self) -> int:
        """Return from how many bytes on the same is found, or more than there are.

        From there on all variants may fit, the first ones have all that they can use, and what was measured
        fits.
        """
        if self._tried.architecture.tuned != "auto" or self._wanted.weight_bytes is not None:
            return _UNLIMITED_BYTES
        weights = self._program.weight_bytes
        variants = (weights + self._min_bytes(item) for item in self._variants)
        measured = (item.total_bytes for item in self._measurements())
        enough = max((*variants, *measured), default=0)
        if self._capacity < enough:
            return enough
        first = self._possible(_UNLIMITED_BYTES)[:_PLANNED]
        return max(enough, *map(self._full_bytes, first))

    def _full_bytes(self, variant: Variant) -> int:
        """Return from how many bytes on ``_plans`` are the same."""
        least = next(self._smallest([variant]))
        weights = max(all_weight_bytes(self._program, least), least.weight_bytes + 1)
        other_bytes = least.total_bytes - least.weight_bytes
        plans = (least, *streams(self._program, least, weights))
        longer = (joined(self._program, plan) for plan in plans)
        reserved = reserved_bytes(self._program, _UNLIMITED_BYTES)
        return max(
            other_bytes + weights + reserved, *(plan.total_bytes for plan in (*plans, *longer))
        )

    def _smallest(self, variants: Sequence[Variant]) -> Iterator[Plan]:
        """Yield the smallest plans of variants; not of one whose regions cannot run after all."""
        for variant in variants:
            try:
                yield self._least.of(variant.regions, variant.chunk_bytes)
            except RegionError:
                continue
        if not any(not variant.regions for variant in variants):
            yield self._least.of()

    def _may_fit(self, variant: Variant, capacity: int) -> bool:
        """Return whether the estimate of ``variant`` is what is allowed, or hardly more."""
        limit = self._wanted.arena_bytes
        small = limit is None or _PROMISE * variant.activation_bytes <= limit
        return small and _PROMISE * variant.n_bytes <= capacity

    def _min_bytes(self, variant: Variant) -> int:
        """Return the bytes from which on ``variant`` may fit, where its activations are what is allowed."""
        return ceil(variant.n_bytes / _PROMISE)

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

    def _judged(self, plan: Plan, reasons: tuple[str, ...] = ()) -> EnginePlanResult:
        return judged(self._program, plan, self._tried.profile, reasons)
