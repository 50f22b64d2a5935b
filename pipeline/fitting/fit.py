"""The one decision of planning, which commands, benchmarks and the service share.

Pure: what is found is kept in memory; a caller that needs it on the disk saves it there. It may take
seconds. What searches is imported when there is something to search.
"""

from dataclasses import asdict, replace
from functools import partial

from loader.errors import LoaderError
from pipeline.fitting.judge import check, judged, with_joined
from pipeline.fitting.row_variants import estimated_seconds
from pipeline.fitting.wanted import LEAST, NOTHING, Fitted, Wanted
from pipeline.planning.found_plans import PLANNER_VERSION, FoundPlan, FoundPlans, canonical
from pipeline.planning.make import make_plan, of_weights
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program, program_checksum
from pipeline.program.region_plan import RegionError
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import Architecture

_BY_THUMB = "a first plan, by rules of thumb: the best one is searched for"


def fit(
    program: Program,
    architecture: Architecture,
    wanted: Wanted = NOTHING,
    profile: Profile | None = None,
    known: FoundPlans | None = None,
) -> Fitted:
    """Return the best plan of ``architecture`` that is what is ``wanted``.

    What an earlier search found is taken from ``known``, unless it was quick and this may take its time,
    and what is found is kept there.

    Raises:
        PlanError: there is none, with the figures; or not without a profile. ProfileError: the profile
            lacks a kernel.
    """
    architecture = of_weights(architecture, program)
    _check_profile(program, architecture, wanted, profile)
    if known is None or not architecture.tuned or wanted.ring_bytes is not None:
        return _searched(program, architecture, wanted, profile)
    question = _question(program, architecture, wanted, profile)
    before = known.get(question)
    if before is not None and before.thorough >= (wanted.thorough and not wanted.least):
        earlier = _again(program, architecture, wanted, profile, before)
        if earlier is not None:
            return earlier
    fitted = _searched(program, architecture, wanted, profile)
    kept = FoundPlan(
        fitted.plan.choice, fitted.reasons, fitted.curve, fitted.thorough, fitted.plan.total_bytes
    )
    if fitted.complete:
        known.add(question, kept)
    least = _question(program, architecture, LEAST, profile)
    smallest = known.get(least)
    # A search for speed may come upon less than that for the least, whose rules try a few ways only.
    if smallest is not None and kept.total_bytes < smallest.total_bytes:
        known.add(least, kept)
    return fitted


def by_thumb(
    program: Program,
    architecture: Architecture,
    wanted: Wanted,
    least: Plan,
    profile: Profile | None = None,
) -> Fitted:
    """Return a plan within ``wanted.total_bytes`` that is found without a search.

    The whole network streams, or what is on rows is what ``least``, its smallest plan, has there: whichever
    is faster by arithmetic. Memory that is left keeps weights. ``profile`` judges it, and decides nothing.
    Where nothing else fits, or the architecture is planned on a profile alone, it is ``least``.

    Raises:
        ProfileError: the profile lacks a kernel.
    """
    plan = _streaming(program, architecture, wanted, least) or least
    return replace(judged(plan, profile, (_BY_THUMB,)), by_thumb=True)


def _streaming(
    program: Program, architecture: Architecture, wanted: Wanted, least: Plan
) -> Plan | None:
    if architecture.tuned == "search":
        return None
    from pipeline.fitting.within import Tried, Within

    within = Within(Tried.of(program, of_weights(architecture, program), None), wanted)
    choices = dict.fromkeys((Choice(), least.choice))
    plans = [draft.plan for choice in choices if (draft := within.streaming(choice)) is not None]
    return min(plans, key=partial(estimated_seconds, program), default=None)


def _searched(
    program: Program, architecture: Architecture, wanted: Wanted, profile: Profile | None
) -> Fitted:
    from pipeline.fitting.within import Tried, Within, plan_weights

    tried = Tried.of(program, architecture, profile)
    within = Within(tried, wanted)
    if wanted.ring_bytes is not None:
        choice = Choice(wanted.ring_bytes, ahead=architecture.ahead)
        plan = make_plan(program, architecture, choice=choice)
        fitted = with_joined(program, Fitted(plan), profile)
    elif wanted.least:
        fitted = within.least()
    elif wanted.delay_seconds is not None:
        fitted = within.in_time()
    elif wanted.total_bytes is not None or wanted.arena_bytes is not None:
        fitted = within.fastest()
    else:
        fitted = with_joined(program, plan_weights(tried, wanted.weight_bytes), profile)
    check(program, fitted, wanted)
    complete = fitted.complete and within.complete
    return replace(fitted, thorough=wanted.thorough and complete, complete=complete)


def _again(
    program: Program,
    architecture: Architecture,
    wanted: Wanted,
    profile: Profile | None,
    known: FoundPlan,
) -> Fitted | None:
    """Return what an earlier search found; None: it is no plan, or not what is wanted."""
    try:
        plan = make_plan(program, architecture, choice=known.choice)
        fitted = judged(plan, profile, known.reasons, known.curve)
        check(program, fitted, wanted)
    except (PlanError, LoaderError, RegionError):
        return None
    return replace(fitted, thorough=known.thorough)


def _check_profile(
    program: Program, architecture: Architecture, wanted: Wanted, profile: Profile | None
) -> None:
    """Refuse what cannot be planned without a profile.

    Raises:
        PlanError: there is none; the message has the remedy.
    """
    searched = architecture.tuned == "search" and wanted.ring_bytes is None
    if profile is None and (searched or wanted.delay_seconds is not None):
        raise PlanError(
            f"{program.name}: {architecture.name} is planned on a profile, and the pack has none "
            "of this machine: run `layerstream profile PACK`, or give the ring's size (--ring)"
        )


def _question(
    program: Program, architecture: Architecture, wanted: Wanted, profile: Profile | None
) -> str:
    """Return what a search depends on beside its effort, as canonical JSON."""
    asked = asdict(wanted)
    del asked["thorough"]
    shape = [architecture.name, *architecture.stages, architecture.slots]
    on = _searched_on(program, wanted, profile)
    return canonical({"planner": PLANNER_VERSION, "on": on, "architecture": shape, **asked})


def _searched_on(program: Program, wanted: Wanted, profile: Profile | None) -> str:
    """Return the checksum of what decides: a profile, or the network as its device runs it.

    No times decide on the least plan, if the profile has all that may be in it.
    """
    if profile is not None and not (wanted.least and profile.has_row_times(row_network(program))):
        return profile.searched_on
    return program.made(program_checksum)


# Plans whose sweeps carry several requests: as many lanes as have room, then the best way to stream.
#
# Lanes come before resident weights: a caller that asks for them has requests that wait, and weights that
# are read once for all of these take less time than weights of which a part is not read.

# A plan that is too large with its lanes is made again for less memory so often.
_MOST_TRIES = 3


def fit_lanes(
    program: Program,
    architecture: Architecture,
    wanted: Wanted,
    profile: Profile | None,
    lanes: int,
    known: FoundPlans | None = None,
) -> Fitted:
    """Return the best plan within ``wanted.total_bytes`` whose sweeps carry up to ``lanes`` requests.

    As many lanes as the smallest plan has room for; one, as ``fit`` does, where there is no room for more.
    What is predicted and bounded is a sweep of one request. Raises as ``fit``.
    """
    room = wanted.total_bytes
    if room is None or lanes == 1:
        return fit(program, architecture, wanted, profile, known)
    least = fit(
        program, architecture, replace(wanted, total_bytes=None, least=True), profile, known
    )
    fitting = (number for number in range(lanes, 1, -1) if _takes(program, least, number) <= room)
    number = next(fitting, 1)
    if number == 1:
        return fit(program, architecture, wanted, profile, known)
    left = room
    for _ in range(_MOST_TRIES):
        fitted = fit(program, architecture, replace(wanted, total_bytes=left), profile, known)
        plan = _with_lanes(program, fitted.plan, number)
        excess = plan.total_bytes - room
        if excess <= 0:
            break
        left = max(left - excess, least.plan.total_bytes)
    else:
        fitted, plan = least, _with_lanes(program, least.plan, number)
    reason = f"{number} lanes of {lanes}: a request of a sweep takes {plan.lane_bytes} bytes"
    return judged(plan, profile, (*fitted.reasons, reason), fitted.curve)


def _takes(program: Program, fitted: Fitted, lanes: int) -> int:
    return _with_lanes(program, fitted.plan, lanes).total_bytes


def _with_lanes(program: Program, plan: Plan, lanes: int) -> Plan:
    return make_plan(program, plan.architecture, choice=replace(plan.choice, lanes=lanes))
