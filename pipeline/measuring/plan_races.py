"""The plans of a profile: for some budgets the best of those that were run against each other."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from loader.pool.pool import ReadPool
from loader.readers.disk import REAL_DISK, Disk
from pipeline.devices.base import Device
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.judge import check
from pipeline.fitting.plan_search import PlanSearch, Tried
from pipeline.fitting.wanted import LEAST, Wanted
from pipeline.measuring.races import MAX_CANDIDATES, RacedPlan, race
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.joined_launches import joined
from pipeline.planning.make import make_plan, of_weights
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.profile import MeasuredPlan, Profile
from pipeline.profiles.times import plan_key
from pipeline.program.program import Program
from pipeline.program.region_plan import Region
from pipeline.schedule.architectures import ARCHITECTURES, Architecture

#: Budgets between the smallest and that of all weights, in even ratios, that are measured by default.
DEFAULT_BETWEEN = 3
# A race takes about as long as so many passes of ``pre``, within these seconds.
_PASSES = 40
_MIN_SECONDS, _MAX_SECONDS = 1.0, 6.0
# A candidate takes part in so many passes at least, or there are fewer candidates.
_MIN_PASSES = 3
# Of the memory that is free, what engines that are open at once may take.
_PART_OF_FREE = 0.5


@dataclass(frozen=True)
class RacedBudget:
    """What was measured for a budget of ``n_bytes``: ``plan`` was the best of so many ``candidates``.

    ``is_sure``: the machine was quiet enough to say so; else nothing is kept.
    """

    n_bytes: int
    plan: MeasuredPlan
    candidates: int
    is_sure: bool


def default_budgets(
    program: Program, architecture: Architecture, cached: FoundPlans | None = None
) -> list[int]:
    """Return the smallest budget, some between, and the one from which on all weights stay."""
    least = fit(program, architecture, LEAST, cached=cached).plan.total_bytes
    resident_plan = joined(program, make_plan(program, ARCHITECTURES["pre"])).total_bytes
    if resident_plan <= least:
        return [least]
    count = DEFAULT_BETWEEN + 1
    between = (round(least * (resident_plan / least) ** (step / count)) for step in range(1, count))
    return [least, *between, resident_plan]


def measure_plans(
    program: Program,
    architecture: Architecture,
    profile: Profile,
    device: Device,
    budgets: Sequence[int],
    *,
    cached: FoundPlans | None = None,
    report: Callable[[RacedBudget], None] = lambda raced: None,
    disk: Disk = REAL_DISK,
    free_bytes: int | None = None,
) -> Profile:
    """Return ``profile`` with the plans that ran against each other for each of ``budgets``, ascending.

    What was measured within less memory races within more, so that no larger budget has a slower plan.
    ``free_bytes``: of the system's memory, which engines that are open at once share.

    Raises:
        PlanError: a budget is too small. LoaderError: weights.bin cannot be read. DeviceError: a kernel
            cannot be loaded or fails.
    """
    resident_plan = joined(program, make_plan(program, ARCHITECTURES["pre"]))
    usual = profile.resident.median
    seconds, most = race_length(usual)
    with closing(ReadPool()) as pool, opened(program, resident_plan, device, pool) as resident:
        resident.run(random_inputs(program))
        for n_bytes in sorted(budgets):
            plans = race_candidates(program, architecture, profile, n_bytes, most, cached)
            chosen = _without_reads(plans) or list(_at_once(plans, free_bytes))
            outcome = race(program, chosen, resident, device, pool, seconds, disk=disk, usual=usual)
            if outcome.best is None:
                continue
            report(RacedBudget(n_bytes, outcome.best, outcome.candidates, outcome.is_sure))
            if outcome.is_sure:
                # Those that lost are measured, too: no estimate prefers them again.
                profile = profile.with_plans((*outcome.others, outcome.best))
    return profile


def race_length(usual: float) -> tuple[float, int]:
    """Return how many seconds passes of a race take, and its candidates; ``usual``: seconds of ``pre``."""
    seconds = min(max(_PASSES * usual, _MIN_SECONDS), _MAX_SECONDS)
    return seconds, max(min(MAX_CANDIDATES, int(seconds / (_MIN_PASSES * usual or 1.0))), 2)


def _without_reads(plans: Sequence[Plan]) -> list[Plan]:
    """Return the first of ``plans`` that keeps all weights: nothing is faster."""
    return [plan for plan in plans if not plan.read_bytes][:1]


def _at_once(plans: Sequence[Plan], free_bytes: int | None) -> Iterator[Plan]:
    """Yield the first of ``plans`` that may be open at once; at least one."""
    taken = 0
    for number, plan in enumerate(plans):
        taken += plan.total_bytes
        if number and free_bytes is not None and taken > _PART_OF_FREE * free_bytes:
            return
        yield plan


# Plans that race are of so many variants, each with so many ways to stream; so many have the same parts on
# rows, since estimates err in these together.
_RACED, _RACED_STREAMS, _MAX_EQUAL = 6, 6, 3


def race_candidates(
    program: Program,
    architecture: Architecture,
    profile: Profile,
    n_bytes: int,
    count: int,
    cached: FoundPlans | None = None,
) -> list[Plan]:
    """Return up to ``count`` plans within ``n_bytes`` to be run against each other.

    The best that was measured within them or less, then the first by estimates. The smallest plan where
    nothing else fits.

    Raises:
        PlanError: ``n_bytes`` are too few.
    """
    wanted = Wanted(total_bytes=n_bytes)
    tried = Tried.of(program, of_weights(architecture, program), profile)
    search = PlanSearch(tried, wanted, cached)
    measured = search.measured(n_bytes)
    chosen = {} if measured is None else {plan_key(measured): measured}
    of_regions = Counter[tuple[Region, ...]]()
    for plan in search.candidates(n_bytes, _RACED, _RACED_STREAMS):
        if len(chosen) >= count:
            break
        key = plan_key(plan)  # several choices make the same plan
        if key not in chosen and of_regions[plan.regions] < _MAX_EQUAL:
            of_regions[plan.regions] += 1
            chosen[key] = plan
    if not chosen:
        fitted = search.least()
        check(program, fitted, wanted)
        return [fitted.plan]
    return list(chosen.values())


class Entrant(NamedTuple):
    """A plan that may take the place of one that serves; ``memory``: its bytes by kind."""

    plan: RacedPlan
    memory: Mapping[str, int]


def budget_entrants(
    program: Program,
    architecture: Architecture,
    profile: Profile,
    n_bytes: int,
    serving: Choice,
    cached: FoundPlans | None = None,
) -> list[Entrant]:
    """Return plans within ``n_bytes`` to be raced in place of one that serves, of choice ``serving``.

    The first one is the reference: its ratio to `pre` was measured. Empty where that of none was.

    Raises:
        PlanError: ``n_bytes`` are too few.
    """
    _, count = race_length(profile.resident.median)
    plans = race_candidates(program, architecture, profile, n_bytes, count, cached)
    if profile.measured(plans[0]) is None:
        return []
    if all(plan.choice != serving for plan in plans):
        plans.append(make_plan(program, of_weights(architecture, program), choice=serving))
    return [Entrant(RacedPlan.of(plan), plan.memory) for plan in plans]
