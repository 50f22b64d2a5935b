"""The one decision of planning, which commands, benchmarks and the service share.

Pure: what is found is kept in memory; a caller that needs it on the disk saves it there. It may take
seconds. What searches is imported when there is something to search.
"""

from dataclasses import asdict, replace

from loader.errors import LoaderError
from pipeline.fitting.judge import check, judged, with_joined
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.wanted import LEAST, NOTHING, EnginePlanResult, Wanted
from pipeline.planning.found_plans import PLANNER_VERSION, FoundPlan, FoundPlans, canonical
from pipeline.planning.make import make_plan, of_weights
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.program.region_plan import RegionError
from pipeline.schedule.architectures import Architecture

#: Stands for all limits of everything that change nothing.
_UNLIMITED = 1 << 62
_HEURISTIC = "a first plan, found without a search: the best one is searched for"


def fit(
    program: Program,
    architecture: Architecture,
    wanted: Wanted = NOTHING,
    profile: Profile | None = None,
    cached: FoundPlans | None = None,
) -> EnginePlanResult:
    """Return the best plan of ``architecture`` that is what is ``wanted``.

    What an earlier search found is taken from ``cached``, and what is found is kept there.

    Raises:
        PlanError: there is none, with the figures; or not without a profile.
    """
    architecture = of_weights(architecture, program)
    _check_profile(program, architecture, wanted, profile)
    if cached is None or not architecture.tuned or wanted.ring_bytes is not None:
        return _searched(program, architecture, wanted, profile, cached)
    question = _question(program, architecture, wanted, profile)
    unlimited = _question(program, architecture, replace(wanted, total_bytes=_UNLIMITED), profile)
    before = _cached(cached, question, unlimited, wanted.total_bytes)
    if before is not None:
        earlier = _again(program, architecture, wanted, profile, before)
        if earlier is not None:
            return earlier
    fitted = _searched(program, architecture, wanted, profile, cached)
    kept = FoundPlan(
        *(fitted.plan.choice, fitted.reasons, fitted.curve),
        *(fitted.plan.total_bytes, fitted.enough_bytes),
    )
    if fitted.complete:
        cached.add(question if kept.enough_bytes is None else unlimited, kept)
    least = _question(program, architecture, LEAST, profile)
    smallest = cached.get(least)
    # A search for speed may come upon less than that for the least, whose rules try a few ways only.
    if smallest is not None and kept.total_bytes < smallest.total_bytes:
        cached.add(least, kept)
    return fitted


def _cached(
    plans: FoundPlans, question: str, unlimited: str, n_bytes: int | None
) -> FoundPlan | None:
    """Return what was found within the bytes of ``question``, or within as many as are enough."""
    plan = plans.get(unlimited)
    enough = None if plan is None else plan.enough_bytes
    if plan is None or n_bytes is None or enough is None or n_bytes < enough:
        return plans.get(question)
    return plan


def heuristic_plan(
    program: Program,
    architecture: Architecture,
    wanted: Wanted,
    least: Plan,
    profile: Profile | None = None,
) -> EnginePlanResult:
    """Return a plan within ``wanted.total_bytes`` that is found without a search.

    The whole network streams, or what is on rows is what ``least``, its smallest plan, has there: whichever
    is expected to be faster. Memory that is left keeps weights. Where nothing else fits, or the
    architecture is planned on a profile alone, it is ``least``.
    """
    plan = _streaming(program, architecture, wanted, least, profile) or least
    return replace(judged(program, plan, profile, (_HEURISTIC,)), heuristic=True)


def _streaming(
    program: Program,
    architecture: Architecture,
    wanted: Wanted,
    least: Plan,
    profile: Profile | None,
) -> Plan | None:
    if architecture.tuned == "search":
        return None
    from pipeline.fitting.plan_search import PlanSearch, Tried

    search = PlanSearch(Tried.of(program, of_weights(architecture, program), profile), wanted)
    choices = dict.fromkeys((Choice(), least.choice))
    plans = [plan for choice in choices if (plan := search.streaming(choice)) is not None]
    return min(plans, key=Predictions.of(program, profile).seconds, default=None)


def _searched(
    program: Program,
    architecture: Architecture,
    wanted: Wanted,
    profile: Profile | None,
    cached: FoundPlans | None,
) -> EnginePlanResult:
    from pipeline.fitting.plan_search import PlanSearch, Tried, plan_weights
    from pipeline.fitting.ring_search import judged_ring

    tried = Tried.of(program, architecture, profile)
    search = PlanSearch(tried, wanted, cached)
    if wanted.ring_bytes is not None:
        choice = Choice(wanted.ring_bytes, ahead=architecture.ahead)
        plan = make_plan(program, architecture, choice=choice)
        fitted = with_joined(program, EnginePlanResult(plan), profile)
    elif wanted.least:
        fitted = search.least()
    elif architecture.tuned == "search":
        assert profile is not None  # it is refused otherwise
        fitted = judged_ring(program, architecture, wanted.weight_bytes, profile)
    elif wanted.delay_seconds is not None:
        fitted = search.in_time()
    elif wanted.total_bytes is not None or wanted.arena_bytes is not None:
        fitted = search.fastest()
    else:
        fitted = with_joined(program, plan_weights(tried, wanted.weight_bytes), profile)
    check(program, fitted, wanted)
    return replace(fitted, complete=fitted.complete and search.complete)


def _again(
    program: Program,
    architecture: Architecture,
    wanted: Wanted,
    profile: Profile | None,
    earlier: FoundPlan,
) -> EnginePlanResult | None:
    """Return what an earlier search found; None: it is no plan, or not what is wanted."""
    try:
        plan = make_plan(program, architecture, choice=earlier.choice)
        fitted = judged(program, plan, profile, earlier.reasons, earlier.curve)
        check(program, fitted, wanted)
    except (PlanError, LoaderError, RegionError):
        return None
    return replace(fitted, enough_bytes=earlier.enough_bytes)


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
    """Return what a search depends on, as canonical JSON; no times decide on the least plan."""
    shape = [architecture.name, *architecture.stages, architecture.slots]
    decides = None if wanted.least else profile
    on = program.checksum if decides is None else decides.searched_on
    ahead = {} if program.reads_ahead else {"ahead": False}
    return canonical(
        {"planner": PLANNER_VERSION, "on": on, "architecture": shape, **asdict(wanted), **ahead}
    )


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
    cached: FoundPlans | None = None,
) -> EnginePlanResult:
    """Return the best plan within ``wanted.total_bytes`` whose sweeps carry up to ``lanes`` requests.

    As many lanes as the smallest plan has room for; one, as ``fit`` does, where there is no room for more.
    What is predicted and bounded is a sweep of one request. Raises as ``fit``.
    """
    room = wanted.total_bytes
    if room is None or lanes == 1:
        return fit(program, architecture, wanted, profile, cached)
    least = fit(
        program, architecture, replace(wanted, total_bytes=None, least=True), profile, cached
    )
    fitting = (number for number in range(lanes, 1, -1) if _takes(program, least, number) <= room)
    number = next(fitting, 1)
    if number == 1:  # with more bytes it may be several
        return replace(fit(program, architecture, wanted, profile, cached), enough_bytes=None)
    left = room
    for _ in range(_MOST_TRIES):
        fitted = fit(program, architecture, replace(wanted, total_bytes=left), profile, cached)
        plan = _with_lanes(program, fitted.plan, number)
        excess = plan.total_bytes - room
        if excess <= 0:
            break
        left = max(left - excess, least.plan.total_bytes)
    else:
        fitted, plan = least, _with_lanes(program, least.plan, number)
    reason = f"{number} lanes of {lanes}: a request of a sweep takes {plan.lane_bytes} bytes"
    return judged(program, plan, profile, (*fitted.reasons, reason), fitted.curve)


def _takes(program: Program, fitted: EnginePlanResult, lanes: int) -> int:
    return _with_lanes(program, fitted.plan, lanes).total_bytes


def _with_lanes(program: Program, plan: Plan, lanes: int) -> Plan:
    return make_plan(program, plan.architecture, choice=replace(plan.choice, lanes=lanes))
