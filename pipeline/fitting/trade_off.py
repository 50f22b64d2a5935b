"""Memory against delay: the best plans of a model from the smallest to the one that keeps all weights."""

from dataclasses import dataclass

from pipeline.fitting.fit import fit
from pipeline.fitting.judge import judged, with_joined
from pipeline.fitting.plan_search import PlanSearch, Tried
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.wanted import LEAST, NOTHING, EnginePlanResult, Wanted
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.program.stopping import tell
from pipeline.schedule.architectures import ARCHITECTURES, Architecture

#: At least so many limits are tried; plans that are the same are points once.
_LIMITS = 18
_MOST_LIMITS = 40
_SAME = 1.01
#: At least so many points, where a network has as many plans.
POINTS = 12
# Delays up to this factor of that with all memory are hardly longer.
_HARDLY_LONGER = 1.3
# How closely the memory for that is looked for, between the least and all of it.
_HALVINGS = 5


@dataclass(frozen=True)
class FrontierPoint:
    """A plan and its delay; ``estimated``: it was not measured."""

    fitted: EnginePlanResult
    seconds: float
    estimated: bool

    @property
    def plan(self) -> Plan:
        return self.fitted.plan


def frontier(
    program: Program,
    architecture: Architecture,
    resident: Architecture = ARCHITECTURES["pre"],
    profile: Profile | None = None,
    known: FoundPlans | None = None,
) -> list[FrontierPoint]:
    """Return plans from the smallest up to that of ``resident``, ascending; none beside a better one.

    Raises:
        PlanError: there is no plan.
    """
    tell("the smallest plan", 0, 1)
    smallest = fit(program, architecture, LEAST, profile, known)
    largest = fit(program, resident, NOTHING, profile, known)
    low, high = smallest.plan.total_bytes, max(largest.plan.total_bytes, 1)
    fitted = [smallest, largest]
    count = _LIMITS
    while True:
        for step in range(1, count):
            tell("plans", step, count)
            limit = max(round(low * (high / low) ** (step / count)), low)
            wanted = Wanted(total_bytes=limit)
            fitted.append(fit(program, architecture, wanted, profile, known))
        points = _unbeaten([_point(program, item, profile) for item in fitted])
        if len(points) >= POINTS or count >= _MOST_LIMITS:
            return points
        count = _MOST_LIMITS


def _point(program: Program, fitted: EnginePlanResult, profile: Profile | None) -> FrontierPoint:
    predictions = Predictions.of(program, profile)
    measured = predictions.measured(fitted.plan) is not None
    return FrontierPoint(fitted, predictions.seconds(fitted.plan), estimated=not measured)


def _unbeaten(points: list[FrontierPoint]) -> list[FrontierPoint]:
    """Return those that no smaller one beats by more than what is the same delay."""
    kept: list[FrontierPoint] = []
    least = float("inf")
    for point in sorted(points, key=lambda item: (item.plan.total_bytes, item.seconds)):
        same = kept and kept[-1].plan.total_bytes == point.plan.total_bytes
        if not same and point.seconds < _SAME * least:
            kept.append(point)
            least = min(least, point.seconds)
    return kept


@dataclass(frozen=True)
class Cost:
    """``times`` the delay with all memory is taken within ``total_bytes``; ``estimated``: by arithmetic."""

    total_bytes: int
    times: float
    estimated: bool


def costs_of_least(program: Program, least: Plan, profile: Profile | None = None) -> list[Cost]:
    """Return what ``least``, the smallest plan, costs, then from which memory on that is hardly anything.

    The second only where the first takes longer: the same parts on rows or none, more weights in
    memory. Nothing is searched for, so less memory may be enough.

    Raises:
        PlanError: there is no such plan.
    """
    resident = ARCHITECTURES["pre"]
    all_memory = _point(program, fit(program, resident, NOTHING, profile), profile)
    if not all_memory.seconds:  # a model without kernels
        return []

    def cost(fitted: EnginePlanResult, total_bytes: int) -> Cost:
        point = _point(program, fitted, profile)
        return Cost(total_bytes, point.seconds / all_memory.seconds, point.estimated)

    first = cost(judged(program, least, profile), least.total_bytes)
    if first.times <= _HARDLY_LONGER:
        return [first]
    choices = [Choice()]
    if least.choice.regions:
        # No memory makes the same parts faster than all of it does.
        kept = EnginePlanResult(
            make_plan(program, resident, choice=Choice(regions=least.choice.regions))
        )
        fastest = cost(with_joined(program, kept, profile), least.total_bytes)
        if fastest.times <= _HARDLY_LONGER:
            choices.insert(0, least.choice)
    enough: list[Cost] = []
    search = PlanSearch(Tried.of(program, least.architecture, profile), NOTHING)
    for choice in choices:
        low, high = least.total_bytes, all_memory.plan.total_bytes
        for _ in range(_HALVINGS):
            middle = round((low * high) ** 0.5)
            candidate = search.streaming(choice, middle)
            tried = None if candidate is None else cost(judged(program, candidate, profile), middle)
            if tried is not None and tried.times <= _HARDLY_LONGER:
                high, enough = middle, [tried]
            else:
                low = middle
        if enough:
            break
    return [first, *(enough or [Cost(all_memory.plan.total_bytes, 1.0, all_memory.estimated)])]
