"""Our own plans for an application, memory against delay: every model's, and one arena for those in turns.

``preloaded``: all weights stay in memory, as the papers have it, and parts of the network run on rows.
``streamed``: weights pass through a ring as well. Partitions that run at once are planned each for itself,
and put together (``at_once``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from papers.applications.application import Application
from papers.applications.ours.members import (
    ApplicationMember,
    PlannedMember,
    Together,
    at_once,
    in_step,
    together,
    unbeaten,
)
from pipeline.fitting.fit import fit
from pipeline.fitting.judge import judged
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.row_variants import row_variants
from pipeline.fitting.wanted import EnginePlanResult, Wanted
from pipeline.planning.make import make_plan
from pipeline.planning.plan import AnyPlan, Choice, PartitionedPlan
from pipeline.program.region_plan import Region, RegionError
from pipeline.schedule.architectures import ARCHITECTURES

#: So many points at least, where a network has as many plans.
POINTS = 8
_PRE = ARCHITECTURES["pre"]
# Variants have 1, 2, 4, 8, ... rows a phase; between two of them lie these.
_BETWEEN = (1.5, 1.25, 1.75)
_ROWS_BETWEEN = 4
# Several budgets may have one plan: then twice as many are tried, and once more.
_MOST_DOUBLED = 3


def planned(member: ApplicationMember, plan: AnyPlan) -> PlannedMember:
    """Return any plan of a model, in partitions where it has some, with what a frame takes."""
    if not isinstance(plan, PartitionedPlan):
        return _fitted(member, judged(member.program, plan, member.profile))
    pairs = zip(member.parts, plan.partitions, strict=True)
    return in_step(member, [planned(part, each) for part, each in pairs])


def _fitted(member: ApplicationMember, fitted: EnginePlanResult) -> PlannedMember:
    """Return a plan of one partition with the delay of a request, as far as it is known."""
    if fitted.prediction is not None:
        return PlannedMember(fitted.plan, fitted.prediction.delay_seconds)
    return PlannedMember(fitted.plan, Predictions.of(member.program, None).seconds(fitted.plan))


def preloaded(member: ApplicationMember) -> list[PlannedMember]:
    """Return plans with all weights in memory, from the least activations on; none beside a better one."""
    program, architecture = member.program, member.architecture
    stays = replace(program, spans=tuple(replace(span, resident=True) for span in program.spans))
    variants = row_variants(stays, architecture).variants
    found = unbeaten(_resident(member, item.regions) for item in variants)
    for factor in _BETWEEN:
        if len(found) >= POINTS:
            break
        found = unbeaten([*found, *_between(member, found, factor)])
    return found


def _between(
    member: ApplicationMember, found: Sequence[PlannedMember], factor: float
) -> Iterator[PlannedMember]:
    """Yield plans with the regions of ``found``, but ``factor`` times the rows where they are not few."""
    for item in found:
        regions = tuple(
            replace(region, cut=replace(region.cut, rows=round(factor * region.cut.rows)))
            if region.cut.rows >= _ROWS_BETWEEN
            else region
            for region in item.plan.regions
        )
        try:
            yield _resident(member, regions)
        except RegionError:
            continue


def _resident(member: ApplicationMember, regions: tuple[Region, ...]) -> PlannedMember:
    plan = make_plan(member.program, _PRE, choice=Choice(regions=regions))
    return planned(member, plan)


def streamed(member: ApplicationMember, points: int) -> list[PlannedMember]:
    """Return plans that stream, from the least memory up to that of all weights; none beside a better one.

    Raises:
        PlanError: there is none.
    """
    program, profile = member.program, member.profile
    least = fit(program, member.architecture, Wanted(least=True), profile)
    most = fit(program, _PRE, profile=profile)
    low, high = least.plan.total_bytes, most.plan.total_bytes
    found = [_fitted(member, least)]
    for step in range(1, points):
        limit = _between_sizes(low, high, step / (points - 1))
        fitted = fit(program, member.architecture, Wanted(total_bytes=limit), profile)
        found.append(_fitted(member, fitted))
    return unbeaten(found)


def preloaded_frontier(
    application: Application, members: Sequence[ApplicationMember]
) -> list[Together]:
    """Return plans of an application with all weights in memory: memory against delay."""
    curves = [_curve(member, preloaded) for member in members]
    limits = sorted({item.used_bytes for curve in curves for item in curve})
    return unbeaten(
        together(application, [_within(curve, limit, _used) for curve in curves])
        for limit in limits
    )


def streaming_frontier(
    application: Application, members: Sequence[ApplicationMember], points: int = POINTS
) -> list[Together]:
    """Return plans of an application that stream, from the least memory up to that of all weights.

    ``points`` budgets are tried, and more where they have fewer than POINTS plans.

    Raises:
        PlanError: a model has none.
    """
    plans: list[Together] = []
    for more in range(_MOST_DOUBLED):
        count = points << more
        curves = [_curve(member, partial(streamed, points=count)) for member in members]
        plans = unbeaten(
            together(application, [_at(curve, step / (count - 1)) for curve in curves])
            for step in range(count)
        )
        if len(plans) >= min(points, POINTS):
            break
    return plans


def _curve(
    member: ApplicationMember, plans: Callable[[ApplicationMember], list[PlannedMember]]
) -> list[PlannedMember]:
    if not member.cuts:
        return plans(member)
    return at_once(member, [plans(part) for part in member.parts])


def _at(curve: Sequence[PlannedMember], part: float) -> PlannedMember:
    """Return the plan of ``curve`` that lies ``part`` of the way from its first to its last."""
    limit = _between_sizes(_total(curve[0]), _total(curve[-1]), part)
    return _within(curve, limit, _total)


def _between_sizes(low: int, high: int, part: float) -> int:
    """Return a size between two, in proportions."""
    ratio: float = (high / max(low, 1)) ** part
    return max(round(low * ratio), low)


def _within(
    curve: Sequence[PlannedMember], limit: int, size: Callable[[PlannedMember], int]
) -> PlannedMember:
    """Return the largest plan of ``curve`` within ``limit``, or its first one."""
    return max((item for item in curve if size(item) <= limit), key=size, default=curve[0])


def _used(item: PlannedMember) -> int:
    return item.used_bytes


def _total(item: PlannedMember) -> int:
    return item.plan.total_bytes
